"""Chains that go forward and back through layers: stored on the way, kept as bits, numbers a row; on the processor."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.chain import layers
from kitsune_mlir.codegen.gpu.engines.chain.core.liveness import order_of
from kitsune_mlir.codegen.gpu.engines.chain.core.match import match_chain
from kitsune_mlir.codegen.gpu.engines.chain.core.records import ChainPlan
from kitsune_mlir.codegen.gpu.engines.chain.wide.plan import WidePlan
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions, Plan
from kitsune_mlir.codegen.gpu.kernel.executor import build
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.tile_reader import ProgramView
from test.emulators.chain import run_chain
from test.rotation import in_turn
from test.unit.test_chain_engine import compiled, task_of, tiles, to_numpy, widened

BF16 = torch.bfloat16


class Back(nn.Module):
    """Three layers with ReLU and two heads, and the gradients of all that they are made of."""

    def __init__(self, width: int, extra: int):
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.third = nn.Linear(width + extra, width)
        self.one, self.eight = nn.Linear(width, 1), nn.Linear(width, 8)

    def forward(self, x: Tensor, e: Tensor, t: Tensor, s: Tensor) -> tuple[Tensor, ...]:
        back = torch.ops.aten.threshold_backward
        a = torch.relu(self.first(x))
        b = torch.relu(self.second(a))
        c = torch.relu(self.third(torch.cat([b, e], 1)))
        y, z = self.eight(c) - t, self.one(c) - s
        dc = back(y @ self.eight.weight + z @ self.one.weight, c, 0)
        db = back((dc @ self.third.weight)[:, : x.shape[1]], b, 0)
        return a, b, c, dc, db, back(db @ self.second.weight, a, 0)


def back(rows: int, width: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Back(width, 16), tuple(torch.randn(rows, columns).to(BF16) for columns in (width, 16, 8, 1))


class Statistics(nn.Module):
    """Rows that are normalised, and what is normalised by."""

    def __init__(self, width: int):
        super().__init__()
        self.first, self.second, self.gain = nn.Linear(width, width), nn.Linear(width, width), nn.Parameter(torch.rand(width))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        a = torch.relu(self.first(x))
        b = self.second(a)
        wide = b if b.dtype == torch.float64 else b.float()
        mean = wide.mean(-1)
        scale = torch.rsqrt((wide - mean[:, None]).square().mean(-1) + 1e-5)
        return a, b, mean, scale, ((wide - mean[:, None]) * scale[:, None] * self.gain).to(b.dtype)


def statistics(rows: int, width: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Statistics(width), (torch.randn(rows, width).to(BF16),)


def emulated(model: nn.Module, args: tuple[Tensor, ...]) -> tuple[list[Plan], list[Tensor], list[Tensor], list[Tensor]]:
    """A model's plans, what its kernel gives, what PyTorch does, and what float64."""
    program = compiled(model, *args)
    state = dict(model.named_parameters())
    inputs = [to_numpy(widened(state[weight.name], weight.wide)) for weight in program.signature.weights]
    inputs += [to_numpy(args[item.position]) for item in program.signature.inputs]
    with torch.no_grad():
        plain = list(model(*args))
        exact = list(model.double()(*[a.double() for a in args]))
    results = [np.zeros(tuple(w.shape), np.float32 if w.dtype == torch.float32 else ml_dtypes.bfloat16) for w in plain]
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(program.ir("tiles"))
        kernel = build(ProgramView(list(module.body.operations)[0].operation), "kernel", KernelOptions())
        run_chain(kernel.module.operation, kernel.manifest, inputs, results)
        plans = [decision.plan for decision in kernel.decisions]
    return plans, [torch.from_numpy(result.astype(np.float64)) for result in results], plain, exact


def check(found: list[Tensor], plain: list[Tensor], exact: list[Tensor]) -> None:
    """No result is further from float64's than PyTorch's own, but for a little."""
    for got, own, want in zip(found, plain, exact, strict=True):
        error, theirs = ((x.double() - want).norm() / want.norm() for x in (got, own))
        assert error <= 1.05 * theirs + 1e-3, (error, theirs)


@pytest.mark.parametrize(
    ("rows", "width", "height"), in_turn([(300, 64, 128), (129, 128, 64), (40, 96, 64), (260, 256, 128)], 2)
)
def test_forward_and_back(rows: int, width: int, height: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(rows)
    monkeypatch.setattr(layers, "tile_rows", lambda count, target: min(count, height))
    plans, *results = emulated(*back(rows, width))
    assert [type(plan.private) for plan in plans] == [ChainPlan]
    assert [(one.made, one.last) for one in plans[0].private.order.compared] == [(2, 5), (1, 6), (0, 7)]
    # Where there is no room for two panels of results, threads store them.
    by_tma = [output.map is not None for output in plans[0].private.outputs]
    assert by_tma == [width < 256] * 6 and plans[0].private.staged == (2 if width < 256 else 1)
    check(*results)


@pytest.mark.rotated(2)
@pytest.mark.parametrize(("rows", "width", "kind"), [(200, 512, WidePlan), (70, 320, WidePlan), (200, 128, ChainPlan)])
def test_numbers_a_row_are_results(rows: int, width: int, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(rows)
    monkeypatch.setattr(layers, "tile_rows", lambda count, target: min(count, 64))
    plans, *results = emulated(*statistics(rows, width))
    assert [type(plan.private) for plan in plans] == [kind]
    check(*results)


def test_what_is_compared_waits_as_bits_and_what_is_spread_is_made_later(context) -> None:
    model, args = back(128, 64)
    chain = match_chain(task_of(tiles(model, *args)))
    as_bits, as_tensors = order_of(chain, bits=True), order_of(chain)
    assert len(as_bits.compared) == 3 and not as_tensors.compared
    waiting = [max(len(kept) for kept in order.kept) for order in (as_bits, as_tensors)]
    assert waiting[0] < waiting[1]


class Other(nn.Module):
    """A layer's result is compared with one number, then with another, and read as it is."""

    def __init__(self, as_it_is: bool):
        super().__init__()
        self.as_it_is = as_it_is
        self.first, self.second, self.third, self.fourth = (nn.Linear(64, 64) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        back = torch.ops.aten.threshold_backward
        a = self.first(x)
        b = back(self.third(self.second(a)), a, 0)
        c = back(self.fourth(b), a, 0 if self.as_it_is else 1)
        return c + a if self.as_it_is else c


@pytest.mark.parametrize("as_it_is", [False, True])
def test_what_is_needed_otherwise_stays_a_tensor(as_it_is: bool, context) -> None:
    model, x = Other(as_it_is), torch.randn(128, 64)
    assert not order_of(match_chain(task_of(tiles(model, x))), bits=True).compared
