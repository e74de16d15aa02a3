"""Training steps with a GradScaler and with something done to gradients before the update, beside the same in PyTorch."""

from __future__ import annotations

import copy
import itertools
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

import kitsune_mlir
from kitsune_mlir.errors import ArgumentError
from test.rotation import in_turn

R = torch.randn
CLIP = 0.05
BATCH = 9


def scaler_of(scale: float) -> torch.amp.GradScaler:
    """One whose scale grows after two steps."""
    return torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2)


class Pair:
    """A model twice: with `train_step`, and in PyTorch."""

    def __init__(self, model: nn.Module, make: Any, scaler: bool = True, clip: bool = False, **given: Any):
        self.models = model, copy.deepcopy(model)
        self.best = [make(m.parameters()) for m in self.models]
        self.scalers = [scaler_of(1024.0) if scaler else None for _ in range(2)]
        self.clip = clip
        self.step = kitsune_mlir.train_step(
            model,
            F.mse_loss,
            self.best[0],
            scaler=self.scalers[0],
            before_update=(lambda: self.clipped(0)) if clip else None,
            **given,
        )

    def clipped(self, which: int) -> None:
        nn.utils.clip_grad_norm_(self.models[which].parameters(), CLIP)

    def eager(self, x: Tensor, y: Tensor, update: bool) -> Tensor:
        loss, best, scaler = F.mse_loss(self.models[1](x), y), self.best[1], self.scalers[1]
        (loss if scaler is None else scaler.scale(loss)).backward()
        if update:
            if scaler is not None:
                scaler.unscale_(best)
            if self.clip:
                self.clipped(1)
            if scaler is None:
                best.step()
            else:
                scaler.step(best)
                scaler.update()
            best.zero_grad()
        return loss.detach()

    def __call__(self, x: Tensor, y: Tensor, update: bool = True, digits: float = 1e-5) -> None:
        """One more step of both, which end alike: losses, weights, gradients, state, the scale."""
        losses = self.step(x, y, update=update), self.eager(x, y, update)
        torch.testing.assert_close(*losses, rtol=digits, atol=digits, equal_nan=True)
        for ours, theirs in zip(*(m.parameters() for m in self.models), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=digits, atol=digits)
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=digits, atol=1024 * digits, equal_nan=True)
        states = [best.state_dict()["state"] for best in self.best]
        torch.testing.assert_close(*states, rtol=10 * digits, atol=10 * digits)
        assert len({str(scaler.state_dict()) for scaler in scales(self)}) < 2


def scales(pair: Pair) -> list[torch.amp.GradScaler]:
    """Those of a pair that has them."""
    return [scaler for scaler in pair.scalers if scaler is not None]


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(7, 11), nn.GELU(), nn.Linear(11, 5))


OPTIMIZERS = {
    "AdamW": lambda p: optim.AdamW(p, 0.01),
    "SGD": lambda p: optim.SGD(p, 0.05, momentum=0.9),
    "Adagrad": lambda p: optim.Adagrad(p, 0.02, foreach=True),
}


@pytest.mark.parametrize("name, clip", in_turn(list(itertools.product(OPTIMIZERS, (False, True))), 1))
def test_scaler(name: str, clip: bool) -> None:
    """The scale grows; one step meets an infinity and changes nothing but the scale; one program."""
    pair = Pair(layers(), OPTIMIZERS[name], clip=clip)
    for n in range(7):
        x = R(BATCH, 7)
        if n == 3:
            x[2, 1] = float("inf")
        before = [p.detach().clone() for p in pair.models[0].parameters()]
        pair(x, R(BATCH, 5))
        same = all(torch.equal(a, b) for a, b in zip(before, pair.models[0].parameters(), strict=True))
        assert same == (n == 3)
    assert len(pair.step.reports) == 1 and len(pair.step.reports[0].programs) == 1, pair.step.reports[0].details()
    assert scales(pair)[0].get_scale() == 2048.0  # doubled twice, halved once, and not yet again


def test_clipping_alone() -> None:
    pair = Pair(layers(), OPTIMIZERS["SGD"], scaler=False, clip=True, options={"require_full": True})
    for _ in range(3):
        pair(R(BATCH, 7), R(BATCH, 5))


def test_gradients_added_up() -> None:
    """Two batches without an update, the second with an infinity once, then one with it: two programs and one more."""
    pair = Pair(layers(), OPTIMIZERS["AdamW"], clip=True)
    for infinite in (False, True, False):
        pair(R(BATCH, 7), R(BATCH, 5), update=False)
        x = R(BATCH, 7)
        if infinite:
            x[0, 0] = float("nan")
        pair(x, R(BATCH, 5), update=False)
        pair(R(BATCH, 7), R(BATCH, 5))
    assert len(pair.step.reports) == 3


def test_saved_and_loaded() -> None:
    """A scaler's state is loaded into the tensors that the program reads; a scale is set."""
    pair = Pair(layers(), OPTIMIZERS["AdamW"])
    for _ in range(3):
        pair(R(BATCH, 7), R(BATCH, 5))
    for scaler in scales(pair):
        scaler.load_state_dict({**scaler.state_dict(), "scale": 64.0})
    pair(R(BATCH, 7), R(BATCH, 5))
    for scaler in scales(pair):
        scaler.update(8.0)
    pair(R(BATCH, 7), R(BATCH, 5))
    assert scales(pair)[0].get_scale() == 8.0 and len(pair.step.reports) == 1


def test_autocast() -> None:
    """f16 products under autocast, the usual recipe."""
    pair = Pair(layers(), OPTIMIZERS["SGD"], clip=True)
    with torch.autocast("cpu", torch.float16):
        for _ in range(4):
            pair(R(BATCH, 7), R(BATCH, 5), digits=5e-3)
    assert len(pair.step.reports) == 1


def test_state_made_by_the_first_update() -> None:
    """A skipped update makes none, so the first one runs in parts; f16 parameters are refused as PyTorch does."""
    pair = Pair(layers(), lambda p: optim.SGD(p, 0.05, momentum=0.9, dampening=0.1))
    with pytest.warns(UserWarning, match="GradScaler may skip"):
        pair(R(BATCH, 7), R(BATCH, 5))
    pair(R(BATCH, 7), R(BATCH, 5))
    half = nn.Linear(7, 5).half()
    step = kitsune_mlir.train_step(half, F.mse_loss, optim.SGD(half.parameters(), 0.1), scaler=scaler_of(8.0))
    with pytest.warns(UserWarning, match="no f16 gradients"), pytest.raises(ValueError, match="FP16"):
        step(R(3, 7).half(), R(3, 5).half())


def test_not_enabled() -> None:
    model = layers()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    step = kitsune_mlir.train_step(model, F.mse_loss, optim.SGD(model.parameters(), 0.1), scaler=scaler)
    assert step.scaler is None
    with pytest.raises(ArgumentError, match="'scaler'.*GradScaler"):
        kitsune_mlir.train_step(model, F.mse_loss, optim.SGD(model.parameters(), 0.1), scaler=2.0)  # type: ignore[arg-type]


def test_parts() -> None:
    """A model whose values decide: a program for one way; for the other its graphs, and the whole update as a program."""

    class Decides(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(7, 6), nn.Linear(6, 5)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            return self.second(x * 2 if x.sum() > 0 else x.sin())

    pair = Pair(Decides(), OPTIMIZERS["AdamW"], clip=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in range(4):
            x = R(BATCH, 7).abs() * (-1) ** (n < 2)
            x[0, 0] = float("inf") if n == 2 else 0.0
            pair(x, R(BATCH, 5))
            for best in pair.best:
                best.param_groups[0].update(lr=0.01 / (n + 2), betas=(0.9 - n / 10, 0.99))
    assert [len(report.programs) for report in pair.step.reports if report.kind == "step"] == [1, 1]


def trained(compiled: Any) -> tuple[list[Tensor], list[Tensor], dict[str, Any]]:
    """Losses, parameters and the scaler's state after four steps by the usual code."""
    torch.manual_seed(3)
    model, scaler = layers(), scaler_of(1024.0)
    best = optim.AdamW(model.parameters(), 0.01)

    def step(x: Tensor, y: Tensor) -> Tensor:
        best.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(best)
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        scaler.step(best)
        scaler.update()
        return loss.detach()

    fast, losses = compiled(step), []
    for n in range(4):
        x = R(BATCH, 7)
        x[0, 0] = float("inf") if n == 2 else 0.0
        losses.append(fast(x, R(BATCH, 5)))
    return losses, list(model.parameters()), scaler.state_dict()


def test_compiled_function() -> None:
    """The usual code under torch.compile."""
    torch._dynamo.reset()
    ours, theirs = trained(lambda f: torch.compile(f, backend="kitsune")), trained(lambda f: f)
    torch.testing.assert_close(ours[:2], theirs[:2], rtol=2e-2, atol=2e-2, equal_nan=True)
    assert ours[2] == theirs[2]
