"""`torch.cond`, `map` and `scan` of exported programs: written out, with the values that PyTorch gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.map import map as mapped
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import kitsune_mlir
from kitsune_mlir.errors import FrontendError
from kitsune_mlir.frontend import calls
from kitsune_mlir.frontend.higher_order import MOST_STEPS


class Chosen(nn.Module):
    """A layer or another one, inside of which there is another choice; its results are those of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(7, 7), nn.Linear(7, 7)

    def forward(self, x: Tensor) -> Any:
        def second(x: Tensor) -> tuple[Tensor, Tensor]:
            y = torch.cond(x.sum() < -40, lambda x: x * 2, lambda x: self.second(x).sin(), (x,))
            return y, x.sum(0)

        return torch.cond(x.sum() > 0, lambda x: (self.first(x).relu(), x.mean(0)), second, (x,))


class Mapped(nn.Module):
    """A layer, a row at a time, of two operands, one for all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        def row(x: Tensor, shift: Tensor) -> Tensor:
            return torch.cond(x.sum() > 0, lambda x: x.relu(), lambda x: x.sin(), (self.layer(x + shift),))

        return mapped(row, x, torch.ones(7, dtype=x.dtype)) * 2  # type: ignore[arg-type]


class Scanned(nn.Module):
    """A cell whose state comes along."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(14, 7)

    def forward(self, x: Tensor) -> Any:
        def step(state: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            state = torch.tanh(self.cell(torch.cat([state, x], -1)))
            return state, state.sum(-1)

        return scan(step, torch.zeros(7, dtype=x.dtype), x)


def check(model: nn.Module, program: Any, x: Tensor) -> None:
    with torch.no_grad():
        wanted = model.double()(x.double())
    model.float()
    torch.testing.assert_close(program(x), torch.utils._pytree.tree_map(Tensor.float, wanted))


@pytest.mark.rotated(2)
@pytest.mark.parametrize("made", [Chosen, Mapped, Scanned])
@pytest.mark.parametrize("rows", [1, 5])
def test_values(made: type[nn.Module], rows: int) -> None:
    model = made().eval()
    x = torch.randn(rows, 7)
    program = kitsune_mlir.compile(model, (x,), target="host")
    for shift in (-10, -1, 0, 1):
        check(model, program, x + shift)


def test_an_exported_program() -> None:
    model, x = Chosen().eval(), torch.randn(3, 7)
    program = kitsune_mlir.compile(torch.export.export(model, (x,)), (x,), target="host")
    for shift in (-10, -1, 1):
        check(model, program, x + shift)


def test_for_a_gpu() -> None:
    x = torch.randn(64, 7)
    assert kitsune_mlir.compile(Chosen().eval(), (x,), target="sm_90a").summary


def without(x: Tensor) -> Tensor:
    """Parts without gradients, and without autocast, one inside of the other."""
    with torch.no_grad():
        y = x.softmax(-1)
        with torch.autocast("cpu", enabled=False):
            z, w = (y @ y.mT).split(1, 0)[0], y.mean(-1)
    return z * x.exp().sum() + w


def test_parts_without_gradients_or_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are decomposed call by call, as what stands outside of them."""
    found = []
    monkeypatch.setattr(calls, "drop_dead", lambda graph: found.append([str(node.target) for node in graph.nodes]))
    x = torch.randn(3, 3, requires_grad=True)
    program = kitsune_mlir.compile(without, (x,), target="host")
    torch.testing.assert_close(program(x.detach()), without(x).detach())
    assert found and not any("wrap" in target for target in found[0])


def looked_up(x: Tensor, index: Tensor) -> Tensor:
    return torch.cond(index.max() < 4, lambda x, index: x[index], lambda x, index: x[:2] * 1, (x, index))


def long(x: Tensor) -> Any:
    return scan(lambda state, x: (state + x, state * x), torch.zeros(2), x)


def rounds(x: Tensor) -> Any:
    return while_loop(lambda x: x.sum() < 100, lambda x: (x * 1.5,), (x,))


@pytest.mark.parametrize(
    "model, args, message",
    [
        (looked_up, (torch.randn(4, 3), torch.tensor([1, 2])), r"^[^\n]*a branch of 'cond' calls 'aten.index.Tensor'"),
        (long, (torch.randn(MOST_STEPS + 1, 2),), f"'scan' has {MOST_STEPS + 1} steps, and up to {MOST_STEPS} are written out"),
        (rounds, (torch.rand(3),), "cannot import the higher-order operator 'while_loop'.*torch.compile"),
    ],
)
def test_what_is_left(model: Callable[..., Any], args: tuple[Tensor, ...], message: str) -> None:
    with pytest.raises(FrontendError, match=message) as raised:
        kitsune_mlir.compile(model, args, target="host")
    assert "torch cannot decompose" not in str(raised.value) and "eval_with_key" not in str(raised.value)
    assert raised.value.operator in ("cond", "scan", "while_loop")
