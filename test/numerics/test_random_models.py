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
from test.numerics.random_models import drawn, failure, unassembled
from test.numerics.recorded import Model, Recorder, shrunk
from test.rotation import todays


@pytest.mark.parametrize("seed", todays(range(25), 10))
def test_host(seed: int) -> None:
    assert failure(drawn(seed), "host") is None


@pytest.mark.parametrize("seed", todays(range(25, 37), 5))
def test_gpu_code(seed: int) -> None:
    with unassembled():
        assert failure(drawn(seed), "sm_90a") is None


def test_failures_are_shrunk() -> None:
    record = Recorder(0)
    x = record.input(3, 4)
    y = record("torch.exp", record("torch.tanh", record("torch.neg", x)))
    model = Model([record("torch.add", y, record("torch.sin", y)), x])
    wanted, got = (torch.tanh(-x.sample).exp() + torch.tanh(-x.sample).exp().sin(), model(*model.arguments)[0])
    assert torch.allclose(wanted, got)
    smaller = shrunk(model, lambda m: any(value.name == "torch.tanh" for value in m.calls))
    assert smaller.source() == "v0: input [3, 4] torch.float32\nv1 = torch.tanh(v0)\nreturn v1"


def test_what_turns_in_shared_memory_has_a_place_there():
    """Of a stage whose rows are reduced and kept: its second schedule wrote where the block has no memory (a GPU said so)."""
    with unassembled(), torch.no_grad():
        program = kitsune_mlir.compile(drawn(45045), drawn(45045).arguments, target="sm_90a")
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
    assert 2 in kinds  # the seed still draws such a stage
