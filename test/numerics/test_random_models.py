"""A sample of the random models: right on the host, code for the GPU without ptxas. `random_models.py` runs any number."""

from __future__ import annotations

import pytest
import torch
from torch_mlir import ir

import kitsune_mlir
from kitsune_mlir.codegen.gpu.engines.simt.engine import SimtEngine
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions, Plan
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.tile_reader import ProgramView, program_functions
from kitsune_mlir.runtime.program import Program
from test.gpu.unassembled import unassembled
from test.numerics.compare import beside_eager, exact
from test.numerics.random_families import FAMILIES, drawn
from test.numerics.random_models import failure
from test.numerics.recorded import Model, Recorder, Value, shrunk
from test.rotation import in_turn


@pytest.mark.parametrize("seed", in_turn(range(30), 4))
def test_host(seed: int) -> None:
    assert failure(drawn(seed), "host") is None


@pytest.mark.parametrize("seed", in_turn(range(30, 42), 3))
def test_gpu_code(seed: int) -> None:
    with unassembled():
        assert failure(drawn(seed), "sm_90a") is None


@pytest.mark.parametrize("target", ["host", "sm_90a"])
def test_what_is_wrong_is_found(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An element that is off, in a program's outputs, by more than eager's is."""
    record = Recorder(0)
    x = record.input(129, 65, dtype=torch.bfloat16)
    model = Model([record("torch.sigmoid", x), record("torch.argmax", x, -1)])
    with unassembled():
        assert failure(model, target) is None
        call = Program.__call__
        monkeypatch.setattr(Program, "__call__", lambda self, *args: _off(*call(self, *args)))
        assert "an element is off" in (failure(model, target) or "")
        monkeypatch.setattr(Program, "__call__", lambda self, *args: tuple(y + 1 for y in call(self, *args)))
        found = failure(model, target) or ""
    assert "output 0: error" in found and "output 1: 129 of 129 elements differ" in found


def _off(y: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """By 3 % of the largest number, which a norm over 8,385 of them does not see."""
    y[7, 3] += 0.03 * y.abs().max()
    return y, index


def test_what_amplifies_roundings_is_compared_with_how_far_it_does() -> None:
    """Differences of numbers that are almost equal: PyTorch's result may be right by chance."""
    x = torch.rand(1, 4) + 1e4
    model = Model([Recorder(0)("torch.sub", Value(x), Value(x + 0.01))])
    wanted = exact(model, model.arguments)
    assert beside_eager(model, model.arguments, tuple(y.float() + 5e-4 for y in wanted)) == []
    assert beside_eager(model, model.arguments, tuple(y.float() + 0.1 for y in wanted)) != []


@pytest.mark.parametrize("seed", range(len(FAMILIES)))
def test_seeds_have_models_of_their_own(seed: int) -> None:
    """The same ones each time, and of shapes only where they are to fill a GPU."""
    assert drawn(seed).source() == drawn(seed).source() != drawn(seed + len(FAMILIES)).source()
    large = drawn(seed, large=True)
    assert large.calls[-1].sample.device.type == "meta" and all(a.device.type == "cpu" for a in large.arguments)


def test_failures_are_shrunk() -> None:
    record = Recorder(0)
    x = record.input(3, 4)
    y = record("torch.exp", record("torch.tanh", record("torch.neg", x)))
    model = Model([record("torch.add", y, record("torch.sin", y)), x])
    wanted, got = (torch.tanh(-x.sample).exp() + torch.tanh(-x.sample).exp().sin(), model(*model.arguments)[0])
    assert torch.allclose(wanted, got)
    smaller = shrunk(model, lambda m: any(value.name == "torch.tanh" for value in m.calls))
    assert smaller.source() == "v0: input [3, 4] torch.float32\nv1 = torch.tanh(v0)\nreturn v1"


class Turned(torch.nn.Module):
    def forward(self, x, gate, weight):
        y = x * gate
        rows = torch.nn.functional.layer_norm(y.permute(0, 2, 3, 1), (33,), weight)
        return rows.permute(0, 3, 1, 2), y.amax((2, 3))


def test_what_turns_in_shared_memory_has_a_place_there():
    """Of a stage whose rows are reduced and kept: its second schedule wrote where the block has no memory (a GPU said so)."""
    x, gate, weight = (torch.randn(*shape).half() for shape in ((3, 33, 17, 7), (3, 33, 1, 1), (33,)))
    with unassembled(), torch.no_grad():
        program = kitsune_mlir.compile(Turned(), (x, gate, weight), target="sm_90a")
    engine, kinds = SimtEngine(), set()
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(program.ir("tiles"))
        for task in [task for function in program_functions(module.operation) for task in ProgramView(function).tasks]:
            plan = engine.plan(task, KernelOptions())
            if isinstance(plan, Plan):
                schedules = plan.private.schedules
                kinds.add(len(schedules))
                turning = sum(load.bytes for one in schedules for load in getattr(one, "crossed", ()))
                assert turning <= plan.shared_bytes
    assert 2 in kinds  # there is such a stage
