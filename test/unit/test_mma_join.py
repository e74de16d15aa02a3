"""Successive products that share a ring: which are joined, and that a block starts its roles once for all of them."""

from __future__ import annotations

import dataclasses

import pytest
from torch_mlir import ir

from kitsune_mlir.codegen.gpu.compile import compile_gpu
from kitsune_mlir.codegen.gpu.engines.mma.engine import MmaEngine
from kitsune_mlir.codegen.gpu.engines.mma.plan import ONES
from kitsune_mlir.codegen.gpu.engines.mma.task_fusion import MOST_TASKS, join_plans
from kitsune_mlir.codegen.gpu.engines.mma.tma_epilogue import SLOTS
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions, Plan
from kitsune_mlir.codegen.gpu.sm90.warp_specialize import CONSUMERS
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.tile_reader import ProgramView
from test.gpu.mma_text import Layer, program
from test.programs.kept import kept

WIDE = Layer(2048, 1024, 480, tile=(128, 128))
NARROW = Layer(2048, 512, 1024, tile=(128, 64))


def plans_of(layers: list[Layer]) -> list[Plan]:
    view = ProgramView(kept(program(layers)[0]))
    found = [MmaEngine().plan(task, KernelOptions()) for task in view.tasks]
    return [plan for plan in found if isinstance(plan, Plan)]


def test_joined_tasks_have_room_for_the_largest_of_them(context) -> None:
    alone = plans_of([WIDE, NARROW])
    wide, narrow = join_plans(alone, KernelOptions()) or []
    assert wide.shared_bytes == narrow.shared_bytes <= KernelOptions().shared_bytes
    assert wide.barriers == narrow.barriers and wide.private.stages == narrow.private.stages
    assert narrow.private.stage_bytes == wide.private.stage_bytes == max(plan.private.stage_bytes for plan in alone)
    assert narrow.private.slot_bytes >= max(plan.private.out_tile.bytes for plan in alone)


def summing(plan: Plan) -> Plan:
    """A plan whose product adds up an operand, too: any op will do, as nothing is emitted."""
    pattern = dataclasses.replace(plan.private.pattern, operand_sum=plan.private.pattern.product.op)
    return dataclasses.replace(plan, private=dataclasses.replace(plan.private, pattern=pattern))


@pytest.mark.parametrize("sums", [(0,), (1,), (0, 1)])
def test_ones_lie_behind_the_places_for_results_and_within_the_memory_of_all(context, sums: tuple[int, ...]) -> None:
    alone = [summing(plan) if n in sums else plan for n, plan in enumerate(plans_of([WIDE, NARROW]))]
    joined = join_plans(alone, KernelOptions()) or []
    assert len(joined) == 2 and joined[0].shared_bytes == joined[1].shared_bytes <= KernelOptions().shared_bytes
    for n in sums:
        mma = joined[n].private
        assert mma.ones >= mma.stages * mma.stage_bytes + SLOTS * mma.geometry.groups * mma.slot_bytes
        assert joined[n].shared_bytes >= mma.ones + CONSUMERS * ONES.bytes


def test_few_tasks_are_joined_and_none_that_threads_copy_for(context) -> None:
    four = [WIDE, NARROW, Layer(2048, 512, 512, tile=(128, 64)), Layer(2048, 512, 512, tile=(128, 64))]
    assert len(four) == MOST_TASKS and join_plans(plans_of(four), KernelOptions())
    assert join_plans(plans_of([*four, Layer(2048, 512, 512, tile=(128, 64))]), KernelOptions()) is None
    assert join_plans(plans_of([Layer(2048, 1024, 13, tile=(128, 128)), NARROW]), KernelOptions()) is None
    assert join_plans(plans_of([Layer(256, k, k, dtype="f32", out="f32") for k in (128, 128)]), KernelOptions()) is None


def test_tasks_whose_tiles_blocks_share_are_joined_too(context) -> None:
    shared = [Layer(128, 4096, 4096, tile=(128, 128))] * 2
    alone, joined = plans_of(shared), join_plans(plans_of(shared), KernelOptions())
    assert joined and all(plan.split and plan.split.pieces == 4 for plan in alone)
    assert [plan.split for plan in joined] == [plan.split for plan in alone]


def test_long_products_keep_the_stages_that_they_have_alone(context) -> None:
    up, down = Layer(768, 8192, 2048, tile=(128, 192)), Layer(768, 2048, 8192, tile=(128, 96))
    assert join_plans(plans_of([up, down]), KernelOptions()) is None
    short = [Layer(1536, 4096, 1024, tile=(128, 192)), Layer(1536, 1024, 4096, tile=(128, 96))]
    assert join_plans(plans_of(short), KernelOptions())


@pytest.mark.parametrize(("layers", "regions"), [([WIDE, NARROW], 1), ([Layer(300, 64, 13), Layer(300, 96, 64)], 2)])
def test_roles_begin_once_for_a_run(layers: list[Layer], regions: int) -> None:
    with new_context(), ir.Location.unknown():
        code = compile_gpu(ir.Module.parse(program(layers)[0]), "main_p0")
    assert not code.resources.spills and not code.warnings
    assert code.ptx.count("setmaxnreg") == 4 * regions  # both sides, at the beginning and at the end


@pytest.mark.parametrize(("rows", "numbered"), [(2048, False), (129, True)])
def test_products_that_fill_the_machine_keep_the_numbers_of_the_hardware(rows: int, numbered: bool) -> None:
    layers = [Layer(rows, 512, 480, tile=(128, 64)), Layer(rows, 256, 512, tile=(128, 64))]
    with new_context(), ir.Location.unknown():
        code = compile_gpu(ir.Module.parse(program(layers)[0]), "main_p0")
    assert ("%smid" in code.ptx) == numbered
