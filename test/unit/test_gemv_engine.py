"""The gemv engine without a GPU: what it takes and declines, its plans, and that its kernels assemble without spills."""

from __future__ import annotations

import dataclasses
import re

import pytest
from torch_mlir import ir

from kitsune_mlir.codegen.gpu.compile import compile_gpu
from kitsune_mlir.codegen.gpu.engines.gemv.engine import GemvEngine
from kitsune_mlir.codegen.gpu.engines.gemv.l2_prefetch import AHEAD, chunks_ahead
from kitsune_mlir.codegen.gpu.engines.gemv.plan import (
    BOX_COLS,
    CONSUMERS,
    ENOUGH_BYTES,
    SUM_REGISTERS,
    WINDOW_BYTES,
    Geometry,
    share_ring,
)
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions, Plan
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.tile_reader import ProgramView
from test.gpu.mma_text import Layer, program
from test.programs.kept import kept


def text_of(*layers: Layer) -> str:
    return program(list(layers))[0].replace('engine = "mma"', 'engine = "gemv"')


def plans_of(*layers: Layer) -> list[Plan | Decline]:
    view = ProgramView(kept(text_of(*layers)))
    return [GemvEngine().plan(task, KernelOptions()) for task in view.tasks]


def geometry_of(layer: Layer) -> Geometry:
    (plan,) = plans_of(layer)
    assert isinstance(plan, Plan), plan
    return plan.private.geometry


KERNELS = {
    "row": [Layer(1, 1024, 4096, tile=(1, 8), epilogue=("bias", "gelu"))],
    "rows_7": [Layer(7, 1000, 1000, tile=(7, 8), epilogue=("bias", "residual"))],
    "rows_16_f16": [Layer(16, 1792, 4096, tile=(16, 112), dtype="f16", out="f16")],
    "rows_64": [Layer(64, 6144, 1024, tile=(64, 48), epilogue=("bias", "both"))],
    "two": [Layer(4, 512, 256, (4, 8), epilogue=("silu",)), Layer(4, 264, 512, (4, 8), epilogue=("bias",))],
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_assemble_without_spills(name: str) -> None:
    with new_context(), ir.Location.unknown():
        code = compile_gpu(ir.Module.parse(text_of(*KERNELS[name])), "main_p0")
    assert {choice.engine for choice in code.engines} == {"gemv"}
    assert not code.resources.spills and not code.resources.stack_bytes
    assert "mma.sync.aligned.m16n8k16" in code.ptx
    assert re.search(r"cp\.async\.bulk\.tensor\.2d[^\n]*L2::cache_hint", code.ptx)


@pytest.mark.rotated(1)
@pytest.mark.parametrize("rows", [40, 51, 64])
def test_f32_of_many_rows_does_not_spill(rows: int) -> None:
    """One chunk of the sum, so no loop that would keep additions where they are."""
    with new_context(), ir.Location.unknown():
        layer = Layer(rows, 48, 48, tile=(rows, 16), epilogue=("bias",), dtype="f32", out="f32")
        code = compile_gpu(ir.Module.parse(text_of(layer)), "main_p0")
    assert {choice.engine for choice in code.engines} == {"gemv"}
    assert not code.resources.spills and code.resources.registers < 128


@pytest.mark.rotated(41)
@pytest.mark.parametrize("rows", [1, 4, 7, 16, 32, 33, 64])
@pytest.mark.parametrize("cols", [3, 8, 24, 32, 48, 96, 112, 976])
@pytest.mark.parametrize("depth", [8, 1000, 14336])
def test_geometry(context, rows: int, cols: int, depth: int) -> None:
    geometry = geometry_of(Layer(rows, cols, depth, tile=(rows, cols)))
    assert geometry.passes * geometry.pass_cols >= cols and geometry.chunks * geometry.chunk >= depth
    assert geometry.shared_bytes <= KernelOptions().shared_bytes and geometry.stages >= 3
    # Many rows of few columns: a stage is mostly activations.
    assert geometry.stages * geometry.weights_bytes >= ENOUGH_BYTES or (rows > 32 and cols <= 8)
    # Boxes fill whole lines of a pass, and none reads columns of another tile.
    assert geometry.pass_cols % geometry.box_cols == 0
    assert cols % geometry.box_cols == 0 or geometry.box_cols == BOX_COLS[-1]
    # Panels and slots start where the swizzle's pattern does.
    assert all(size % 1024 == 0 for size in (geometry.slot_bytes, geometry.lines * 128))
    assert geometry.activations_panel % 1024 == 0 or rows == 1  # one row is not permuted
    # The warps have all rows and the whole sum between them, four pieces of 16 bytes a step.
    assert geometry.row_parts * geometry.warp_blocks * 8 >= rows and geometry.row_parts * geometry.sum_parts == CONSUMERS
    assert 8 * geometry.panels // geometry.sum_parts % 4 == 0
    assert geometry.sums <= SUM_REGISTERS or geometry.pass_cols == 16


def test_activations_are_read_seldom(context) -> None:
    few, many = (geometry_of(Layer(rows, 112, 4096, tile=(rows, 112))) for rows in (1, 32))
    assert few.lines == 32 and few.panels == 8
    assert many.lines > 32  # wider passes: activations come once for each


def test_partial_sums_hit_different_banks(context) -> None:
    for cols in (16, 32, 48, 112):
        pitch = geometry_of(Layer(16, cols, 4096, tile=(16, cols))).sum_pitch
        banks = {(row * pitch + line) % 32 for row in range(4) for line in range(8)}
        assert len(banks) == 32


def test_swizzled_lines_hit_different_banks() -> None:
    """The eight lanes that read at a time: index g = lane / 4 of a fragment is line g / 2 + 4 (g mod 2) of eight."""
    for step in (0, 4):
        for first in range(0, 32, 8):
            pieces = set()
            for lane in range(first, first + 8):
                line = lane // 4 // 2 + lane // 4 % 2 * 4
                pieces.add((lane % 4 + step) ^ line)
            assert len(pieces) == 8


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (Layer(65, 64, 512, tile=(65, 64)), "65 rows"),
        (Layer(4, 64, 512, tile=(4, 64), b="kn"), "not neighbours in memory"),
        (Layer(4, 64, 13, tile=(4, 64)), "multiple of 16 bytes"),
    ],
)
def test_declines(context, layer: Layer, reason: str) -> None:
    (decision,) = plans_of(layer)
    assert isinstance(decision, Decline) and reason in decision.reason


def test_successive_tasks_share_a_ring(context) -> None:
    plans = plans_of(Layer(4, 4096, 4096, (4, 32)), Layer(4, 1024, 4096, (4, 8)))
    assert all(isinstance(plan, Plan) for plan in plans)
    joined = share_ring([plan for plan in plans if isinstance(plan, Plan)], KernelOptions())
    assert joined is not None
    first, second = (plan.private.geometry for plan in joined)
    assert (first.stages, first.slot_bytes) == (second.stages, second.slot_bytes)
    assert first.slot_bytes >= second.stage_bytes and joined[0].barriers == joined[1].barriers
    assert max(plan.shared_bytes for plan in joined) <= KernelOptions().shared_bytes


def test_rings_that_would_be_shallow_are_not_shared(context) -> None:
    wide, narrow = plans_of(Layer(64, 4096, 4096, (64, 64)), Layer(64, 1024, 4096, (64, 8)))
    assert isinstance(wide, Plan) and isinstance(narrow, Plan)
    shared = share_ring([wide, narrow], KernelOptions())
    assert shared is None or all(plan.private.geometry.deep for plan in shared)


def test_copies_start_before_the_kernel_waits() -> None:
    with new_context(), ir.Location.unknown():
        code = compile_gpu(ir.Module.parse(text_of(*KERNELS["two"])), "main_p0")
    loads, waits = (code.ptx.find(what) for what in ("cp.async.bulk.tensor", "ld.acquire.gpu"))
    assert 0 < loads < waits


def test_what_is_asked_for_ahead(context) -> None:
    (plan,) = plans_of(Layer(1, 4096, 4096, (1, 32)))
    assert isinstance(plan, Plan)
    gemv = plan.private
    assert chunks_ahead(gemv) * gemv.geometry.weights_bytes == AHEAD
    made = dataclasses.replace(gemv.weights[0].window.buffer, role="arena")
    source = dataclasses.replace(gemv.weights[0], window=dataclasses.replace(gemv.weights[0].window, buffer=made))
    assert not chunks_ahead(dataclasses.replace(gemv, weights=(source,)))


def test_a_chunk_that_ends_beyond_the_sum_is_not_asked_for(context) -> None:
    (plan,) = plans_of(Layer(1, 64, 1000, (1, 64)))
    assert isinstance(plan, Plan)
    assert chunks_ahead(plan.private) * plan.private.geometry.chunk <= 1000


def test_one_row_needs_no_place_for_eight(context) -> None:
    one, two = (geometry_of(Layer(rows, 32, 4096, tile=(rows, 32))) for rows in (1, 2))
    assert (one.activations_panel, two.activations_panel) == (128, 1024)
    assert one.stages > two.stages
    # 256 elements come in one copy, whatever a panel has.
    assert one.input_panels == 4 and two.input_panels == 1


def test_weights_and_activations_arrive_apart(context) -> None:
    (plan,) = plans_of(Layer(4, 4096, 4096, (4, 32)))
    assert isinstance(plan, Plan)
    stages = plan.private.geometry.stages
    assert plan.barriers == (1,) * stages + (CONSUMERS,) * stages + (1,) * stages
    assert plan.threads == 32 * (CONSUMERS + 2)


def test_a_window_of_weights_is_under_way(context) -> None:
    geometry = geometry_of(Layer(1, 112, 4096, tile=(1, 112)))
    assert 2 <= geometry.first_window < geometry.window < geometry.stages
    assert WINDOW_BYTES <= geometry.window * geometry.weights_bytes < WINDOW_BYTES + geometry.weights_bytes
    assert geometry_of(Layer(64, 8, 4096, tile=(64, 8))).window == geometry_of(Layer(64, 8, 4096, tile=(64, 8))).stages


def test_sixteen_rows_do_not_make_columns_narrower_in_memory(context) -> None:
    """Runs of 1 KB come faster than the activations' rereading costs; those of 32 rows cost more."""
    assert geometry_of(Layer(16, 112, 4096, tile=(16, 112))).chunk * 2 == 1024
    assert geometry_of(Layer(32, 112, 4096, tile=(32, 112))).lines > 32


def test_l2_brings_what_a_box_needs_of_a_column_only(context) -> None:
    (plan,) = plans_of(Layer(1, 4096, 4096, (1, 32)))
    assert isinstance(plan, Plan)
    assert all(use.map.promotion == use.map.box[-1] * 2 == 128 for use in plan.tensor_maps[:-1])


def test_two_block_barriers_behind_barriers_that_are_initialised_again():
    """One is enough for the hardware, not for racecheck."""
    layers = [Layer(16, 64, 128, (16, 16)), Layer(16, 128, 64, (16, 64))]
    text = program(layers)[0].replace('engine = "mma"', 'engine = "gemv"', 1)
    with new_context(), ir.Location.unknown():
        code = compile_gpu(ir.Module.parse(text), "main_p0")
    assert [choice.engine for choice in code.engines] == ["gemv", "mma"]
    first, *again = code.ptx.split("fence.mbarrier_init")[1:]
    assert len(again) == 1
    meets = [len(re.findall(r"bar\.sync\s+0;", part.split("mbarrier.try_wait")[0])) for part in (first, *again)]
    assert meets == [1, 2]
