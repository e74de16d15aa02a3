"""`kitsune_mlir.compile(..., dynamic=...)` on a GPU: one object for all sizes, for fresh tensors and in captured graphs.

    python -m test.gpu.sized_programs build DIR [NAME...]    # on a GPU, or for one: then programs have no variants
    python -m test.gpu.sized_programs run DIR [NAME...]      # needs a Hopper GPU; no compiler

Each case is called for one row, few, odd numbers and the most, in turns, and is compared with float64; results must have the
sizes and strides that PyTorch's have. Then a graph is captured for a size, and replayed with other values.
"""

from __future__ import annotations

import copy
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from bench.sizes import Layer, MessagePassing, Recommender
from bench.timing import graphed
from test.gpu.driver import program_main

SIZES = (1000, 1, 7, 129, 2, 64, 999, 1)


class Centred(nn.Module):
    """Rows without their mean: each depends on how many there are."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Scores(nn.Module):
    """Of all pairs of two sets of rows, and rows in the other order."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(32, 48), nn.Linear(40, 48)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.left(x) @ self.right(y).T, torch.relu(x).T


def _mlp(dtype: torch.dtype, width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 96), nn.GELU(), nn.Linear(96, 56), nn.LayerNorm(56)).to(dtype)


def _graph(n: int) -> tuple[Tensor, ...]:
    return torch.randn(n, 64), torch.randint(0, n, (2, 3 * n + n // 2))


N, M = Dim("n", max=1000), Dim("m", max=4000)
CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[Tensor, ...]], Mapping[Any, Any]]] = {
    "mlp_f32": (lambda: _mlp(torch.float32, 64), lambda n: (torch.randn(n, 64),), {0: {0: N}}),
    "mlp_13_bf16": (lambda: _mlp(torch.bfloat16, 13), lambda n: (torch.randn(n, 13).bfloat16(),), {0: {0: N}}),
    "mlp_transposed": (lambda: _mlp(torch.float32, 33), lambda n: (torch.randn(33, n).T,), {0: {0: N}}),
    "centred": (Centred, lambda n: (torch.randn(n, 20),), {0: {0: N}}),
    "graph": (MessagePassing, _graph, {0: {0: N}, 1: {1: M}}),
    "recommender": (Recommender, lambda n: (torch.randn(n, 13), torch.randint(0, 1000, (n, 8))), {0: {0: N}, 1: {0: N}}),
    "layer": (Layer, lambda n: (torch.randn(n, 16, 128),), {0: {0: N}}),
    "layer_bf16": (lambda: Layer().bfloat16(), lambda n: (torch.randn(n, 16, 128).bfloat16(),), {0: {0: N}}),
    "scores": (Scores, lambda n: (torch.randn(n, 32), torch.randn(3 * n + 1, 40)), {0: {0: N}, 1: {0: M}}),
}
"""By name: the model, arguments for a size, what of them changes."""


def made(name: str) -> tuple[nn.Module, Callable[[int], list[Tensor]], Mapping[Any, Any]]:
    """A case on the GPU, if there is one."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, inputs, dynamic = CASES[name]
    return model().eval().to(device), lambda n: [value.to(device) for value in inputs(n)], dynamic


def build(folder: Path, names: Sequence[str]) -> int:
    """Compile to DIR/NAME.kit; how many cases failed."""
    import kitsune_mlir

    folder.mkdir(parents=True, exist_ok=True)
    bad = 0
    for name in names or CASES:
        model, inputs, dynamic = made(name)
        try:
            program = kitsune_mlir.compile(model, inputs(50), target="sm_90a", dynamic=dynamic)
        except Exception as error:
            bad += 1
            print(f"FAIL {name}: {type(error).__name__}: {error}", flush=True)
            continue
        program.save(folder / f"{name}.kit", ir=False)
        print(f"{name}: {', '.join(words for words, _ in program.compiled.programs())}", flush=True)
    return bad


def run(folder: Path, names: Sequence[str], given: Namespace) -> int:
    """Check all cases; how many are wrong."""
    return sum(not check(name, folder) for name in names or CASES)


def check(name: str, folder: Path) -> bool:
    """Run a case; whether all is right."""
    import kitsune_mlir

    model, inputs, _ = made(name)
    program = kitsune_mlir.load(folder / f"{name}.kit")
    wide = copy.deepcopy(model).double()
    worst, wrong = {"a call": 0.0, "a replay": 0.0}, []

    def compare(how: str, n: int, args: Sequence[Tensor], got: Any) -> None:
        with torch.no_grad():
            want = wide(*[arg.double() if arg.is_floating_point() else arg for arg in args])
            like = model(*args)
        several = [got, want, like] if isinstance(want, tuple) else [(got,), (want,), (like,)]
        for one, right, other in zip(*several, strict=True):
            if (one.shape, one.dtype) != (other.shape, other.dtype) or (n > 1 and one.stride() != other.stride()):
                wrong.append(f"{n} rows: {tuple(one.shape)} {one.stride()}, PyTorch {tuple(other.shape)} {other.stride()}")
            off, near = (float((each.double() - right).abs().max()) for each in (one, other))
            limit = 4 * near + 1e-5 * max(1.0, float(right.abs().max()))
            worst[how] = max(worst[how], off / limit) if off == off else float("inf")

    for n in SIZES:
        args = inputs(n)
        compare("a call", n, args, program(*args))
    for n in (7, 129):
        args = inputs(n)
        replay = graphed(lambda args=args: program(*args))
        for _ in range(2):
            for arg, fresh in zip(args, inputs(n), strict=True):
                arg.copy_(fresh)
            compare("a replay", n, args, replay())
            program(*inputs(1000))  # another call changes what lies behind valid rows, in its own buffers
    ok = max(worst.values()) <= 1 and not wrong
    words = ", ".join([*(f"{how} {share:.2f} of the limit" for how, share in worst.items()), *wrong])
    print(f"{'ok  ' if ok else 'FAIL'} {name}: {len(program.programs)} programs, {words}", flush=True)
    return ok


if __name__ == "__main__":
    sys.exit(program_main(__doc__, build, run))
