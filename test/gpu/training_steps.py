"""Whole training steps (`kitsune_mlir.train_step`) on a GPU, beside PyTorch in float64.

    python -m test.gpu.training_steps [NAME...]        # needs the compiler and a Hopper GPU

Each case takes one step of plain gradient descent, so what its parameters move by is the gradient, which is compared with that
of float64, parameter by parameter; then a few steps of AdamW, whose losses are compared with eager PyTorch's. A case fails
where a gradient's relative error, by norm, is above `LIMIT` and above three times eager's own. Products are exact in f32: in
TF32 another maximum of a window may be chosen, which moves a gradient by more than rounding does.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map

import kitsune_mlir
from bench.demo_train import SIZES
from bench.radiance import RadianceField

LIMIT = 3e-4
STEPS = 4

Made = tuple[nn.Module, Callable[[], tuple[Any, Tensor]], Callable[[Tensor, Tensor], Tensor]]


def _field(name: str) -> Made:
    size = SIZES[name]

    def batch() -> tuple[Any, Tensor]:
        directions = F.normalize(torch.randn(size.rays, 3), dim=-1)
        origins = torch.rand(size.rays, 3) - 0.5 - 2 * directions
        return (origins, directions, torch.rand(size.rays, size.samples)), torch.rand(size.rays, 3)

    return RadianceField(size.width, size.samples, size.octaves), batch, F.mse_loss


def _classes(model: nn.Module, *shape: int, classes: int = 10) -> Made:
    def batch() -> tuple[Any, Tensor]:
        return torch.randn(shape), torch.randint(0, classes, shape[:1])

    return model, batch, F.cross_entropy


class Block(nn.Module):
    """Attention and a gated network, with norms in front."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down, self.last = nn.Linear(width, 4 * width), nn.Linear(2 * width, width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in self.qkv(self.norms[0](x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        gate, up = self.up(self.norms[1](x)).chunk(2, -1)
        return self.last((x + self.down(F.silu(gate) * up)).mean(1))


class Bags(nn.Module):
    """Embeddings, and a network of their sums."""

    def __init__(self, rows: int = 500) -> None:
        super().__init__()
        self.table, self.rest = nn.Embedding(rows, 33), nn.Sequential(nn.Linear(33, 65), nn.ReLU(), nn.Linear(65, 10))

    def forward(self, rows: Tensor) -> Tensor:
        return self.rest(self.table(rows).sum(1))


def _network(*widths: int) -> nn.Module:
    layers = [part for a, b in zip(widths, widths[1:], strict=False) for part in (nn.Linear(a, b), nn.LayerNorm(b), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 10))


def _large(rows: int) -> Made:
    """A weight of odd rows whose update is a stage of its own."""
    return _classes(nn.Sequential(nn.Linear(2050, 2049), nn.GELU(), nn.Linear(2049, 10)), rows, 2050)


def _convolutions() -> nn.Module:
    first = (nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2))
    second = (nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.GroupNorm(4, 64), nn.SiLU())
    return nn.Sequential(*first, *second, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def _bags(rows: int = 500) -> Made:
    return Bags(rows), lambda: (torch.randint(0, rows, (129, 7)), torch.randint(0, 10, (129,))), F.cross_entropy


OPTIONS = {"matmul_precision": "highest"}

CASES: dict[str, Callable[[], Made]] = {
    "field_tiny": lambda: _field("tiny"),
    "field_small": lambda: _field("small"),
    "field_full": lambda: _field("full"),
    "network": lambda: _classes(_network(129, 256, 63), 1000, 129),
    "network_large": lambda: _classes(_network(256, 512, 512), 8192, 256),
    "convolutions": lambda: _classes(_convolutions(), 7, 3, 33, 33),
    "block": lambda: _classes(Block(128, 4), 3, 65, 128),
    "large": lambda: _large(64),
    "large_alone": lambda: _large(1),
    "bags": _bags,
    "bags_large": lambda: _bags(400_000),
}


def _wide(batch: Any) -> Any:
    return tree_map(lambda x: x.double() if x.is_floating_point() else x, batch)


def _called(model: nn.Module, x: Tensor | tuple[Tensor, ...]) -> Tensor:
    return model(*x) if isinstance(x, tuple) else model(x)


def gradients(model: nn.Module, loss_fn: Callable[..., Tensor], batch: Any) -> dict[str, Tensor]:
    """By parameter, in float64."""
    model.zero_grad(set_to_none=True)
    loss_fn(_called(model, batch[0]), batch[1]).backward()
    return {name: p.grad.double() for name, p in model.named_parameters() if p.grad is not None}


def _distance(mine: Tensor, other: Tensor) -> float:
    return float((mine - other).norm() / other.norm().clamp(min=1e-30))


def check(name: str) -> bool:
    """One case; prints what was found."""
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False
    start = time.perf_counter()
    model, make, loss_fn = CASES[name]()
    model = model.cuda()
    batch = tree_map(lambda x: x.cuda(), make())
    exact = gradients(copy.deepcopy(model).double(), loss_fn, _wide(batch))
    eager = gradients(copy.deepcopy(model), loss_fn, batch)
    stepped = copy.deepcopy(model)
    step = kitsune_mlir.train_step(stepped, loss_fn, torch.optim.SGD(stepped.parameters(), 1.0), options=OPTIONS)
    step(*batch)
    before = dict(model.named_parameters())
    moved = {key: (before[key].double() - p.double()) for key, p in stepped.named_parameters()}
    errors = {key: _distance(moved[key], want) for key, want in exact.items()}
    wrong = {}
    for key, error in errors.items():
        rounding = 1e-7 * float(before[key].detach().norm() / exact[key].norm().clamp(min=1e-30))  # of p - gradient
        if error > max(LIMIT, 3 * _distance(eager[key], exact[key])) + 2 * rounding:
            wrong[key] = f"{error:.1e} (eager {_distance(eager[key], exact[key]):.1e})"
    losses = []
    for compiled in (True, False):
        used = copy.deepcopy(model)
        optimizer = torch.optim.AdamW(used.parameters(), 1e-3)
        one = kitsune_mlir.train_step(used, loss_fn, optimizer, options=OPTIONS) if compiled else None
        losses.append([])
        for _ in range(STEPS):
            if one is not None:
                losses[-1].append(float(one(*batch)))
                continue
            optimizer.zero_grad()
            loss = loss_fn(_called(used, batch[0]), batch[1])
            loss.backward()
            optimizer.step()
            losses[-1].append(float(loss))
    apart = max(abs(a - b) / max(abs(b), 1e-3) for a, b in zip(*losses, strict=True))
    programs = "; ".join(str(report).splitlines()[0] for report in step.reports)
    ok = not wrong and apart < 1e-2
    print(f"{'ok  ' if ok else 'FAIL'} {name}: gradients {max(errors.values()):.1e}, losses {apart:.1e} from eager's", end="")
    print(f" ({time.perf_counter() - start:.0f} s; {programs})", flush=True)
    for key, words in wrong.items():
        print(f"       wrong: {key} {tuple(before[key].shape)}: {words}", flush=True)
    if apart >= 1e-2:
        print(f"       losses {losses[0]}, eager {losses[1]}", flush=True)
    return ok


def main() -> int:
    """Command line; 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=", ".join(CASES))
    names = parser.parse_args().names or list(CASES)
    return min(1, sum(not check(name) for name in names))


if __name__ == "__main__":
    sys.exit(main())
