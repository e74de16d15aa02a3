"""Waits of a product that come late: for which products, from which chunk on, and that they stand between the loads."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch_mlir import ir

from kitsune_mlir.codegen.gpu.compile import compile_gpu
from kitsune_mlir.codegen.gpu.engines.mma.column_groups import MOST, column_groups
from kitsune_mlir.codegen.gpu.engines.mma.deferred_waits import late_waits
from kitsune_mlir.codegen.gpu.engines.mma.engine import MmaEngine
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions, Plan
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.tile_reader import ProgramView
from kitsune_mlir.frontend import import_model
from kitsune_mlir.machine.target import find_target
from kitsune_mlir.passes.registry import PIPELINE
from kitsune_mlir.passmanager.manager import run_pipeline

H200 = find_target("h200")


class Layers(torch.nn.Module):
    """Two layers; `residual`: what the second adds to its result is made by the first."""

    def __init__(self, wide: int, residual: bool):
        super().__init__()
        self.up = torch.nn.Linear(1024, wide, dtype=torch.bfloat16)
        self.down = torch.nn.Linear(wide, wide if residual else 1024, dtype=torch.bfloat16)
        self.residual = residual

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.up(x))
        return self.down(hidden) + hidden if self.residual else self.down(hidden)


def lowered(rows: int, wide: int = 4096, residual: bool = False) -> ir.Module:
    model, x = Layers(wide, residual), torch.zeros(rows, 1024, dtype=torch.bfloat16)
    module = import_model(model, (x,), {}, context=new_context()).module
    run_pipeline(module, f"builtin.module({','.join(PIPELINE)})", target="sm_90a")
    return module


def second_plan(module: ir.Module) -> Plan:
    """The second layer's plan, as if it shared a ring with the first one's."""
    task = ProgramView(list(module.body.operations)[0].operation).tasks[-1]
    plan = MmaEngine().plan(task, KernelOptions())
    assert isinstance(plan, Plan) and not late_waits(plan.private), plan
    return dataclasses.replace(plan, private=dataclasses.replace(plan.private, room=plan.private.stage_bytes))


@pytest.mark.parametrize(("rows", "groups"), [(1536, 2), (2048, 2), (4096, 4), (1024, 1)])
def test_a_wait_comes_with_the_first_chunk_that_needs_it(rows: int, groups: int) -> None:
    module = lowered(rows)
    with module.context, ir.Location.unknown():
        plan = second_plan(module)
        waits, late = plan.task.waits, late_waits(plan.private)
        assert [wait for _, wait in late] == list(waits[1:]) and len(waits) == groups
        first = ProgramView(list(module.body.operations)[0].operation).tasks[0]
        width, done = first.stores[0].sizes[-1], 0
        for wait, (chunk, _) in zip(waits, late, strict=False):
            done += wait.count
            # What comes before the chunk is in the tiles that were waited for, and little of these is left out.
            assert width * (done - 1) < chunk * plan.private.sum.chunk <= width * done


def test_nothing_else_may_depend_on_the_waits() -> None:
    module = lowered(1536, 4096, residual=True)
    with module.context, ir.Location.unknown():
        plan = second_plan(module)
        assert len(plan.task.waits) > 1 and not late_waits(plan.private)


def test_waits_stand_between_the_loads() -> None:
    module = lowered(1536)
    with module.context, ir.Location.unknown():
        code = compile_gpu(module, "main_p0")
    assert not code.resources.spills
    rows = code.ptx[: code.ptx.rindex("ld.acquire.gpu")]
    assert code.ptx.count("ld.acquire.gpu") >= 2 and "cp.async.bulk.tensor" in rows[rows.rindex("ld.acquire.gpu") :]


@pytest.mark.rotated(4)
@pytest.mark.parametrize(
    ("kinds", "counts", "groups"),
    [
        (("m", "n"), (12, 22), 2),
        (("m", "n"), (8, 16), 1),
        (("m", "n"), (16, 64), MOST),
        (("m", "n"), (100, 5), 3),  # four groups of two would leave one empty
        (("m", "n"), (300, 1), 1),
        (("batch", "m", "n"), (4, 12, 22), 1),
        (("batch", "m", "n"), (1, 12, 22), 2),
        (("n", "m"), (12, 22), 1),
    ],
)
def test_groups_of_columns(kinds: tuple[str, ...], counts: tuple[int, ...], groups: int) -> None:
    assert column_groups(kinds, counts, H200) == groups


class Joined(torch.nn.Module):
    """A layer of the rows of another one beside some of the input: rows that lie together nowhere."""

    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(128, 1024, dtype=torch.bfloat16)
        self.down = torch.nn.Linear(1280, 1024, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.down(torch.cat([torch.relu(self.up(x)), y], -1))


def test_rows_that_are_made_in_the_task_have_all_waits_first() -> None:
    inputs = (torch.zeros(1000, 128, dtype=torch.bfloat16), torch.zeros(1000, 256, dtype=torch.bfloat16))
    module = import_model(Joined(), inputs, {}, context=new_context()).module
    run_pipeline(module, f"builtin.module({','.join(PIPELINE)})", target="sm_90a")
    with module.context, ir.Location.unknown():
        plan = MmaEngine().plan(ProgramView(list(module.body.operations)[0].operation).tasks[-1], KernelOptions())
        assert isinstance(plan, Plan) and plan.task.waits and not late_waits(plan.private)
        assert not compile_gpu(module, "main_p0").resources.spills
