"""What the producer's warpgroup does for gradients: one warp loads, a thread of another stores results and posts."""

from __future__ import annotations

import math

from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_, if_all, lane_id
from kitsune_mlir.codegen.gpu.emit.memory import load, offset, store
from kitsune_mlir.codegen.gpu.emit.value import Value, f32, i32, i64, minimum, select
from kitsune_mlir.codegen.gpu.engines.attention.gradient_blocks import blocks_of
from kitsune_mlir.codegen.gpu.engines.attention.gradient_plan import GradientPlan
from kitsune_mlir.codegen.gpu.engines.attention.plan import GROUP_ROWS
from kitsune_mlir.codegen.gpu.engines.attention.producer import PipelineState, place_of_box
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.codegen.gpu.interface.window import Window
from kitsune_mlir.codegen.gpu.sm90 import tma
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Slot, fence_async

__all__ = ["load_gradient_tiles", "numbers_of", "row_numbers", "store_gradients"]


def row_numbers(plan: GradientPlan, tile: TileContext, side: str, index: Value) -> tuple[Value, Value]:
    """What products of a row of queries, along `side`, start from: scores from minus the logarithm, as it is before they are
    scaled, the probabilities' gradients from minus their mean."""

    def number(window: Window) -> Value:
        place = offset(window.start(tile), i64(index) * (window.stride(side) * window.bytes))
        return load(place, "f32", constant=window.constant)

    return number(plan.pattern.logarithm) * (-1 / plan.pattern.gradient.scale), -number(plan.pattern.mean)


def numbers_of(pipeline: PipelineState, stage: Value) -> Value:
    """Pointer to the numbers of a slot's rows (`row_numbers`): those of the scores, then the others."""
    plan: GradientPlan = pipeline.plan
    return offset(offset(pipeline.task.shared, plan.numbers_at), stage * (plan.block * 8))


def load_gradient_tiles(pipeline: PipelineState) -> None:
    """One warp loads all tiles: both resident operands, then blocks of the streamed ones through the ring.

    Its first lane starts TMA; all lanes copy the numbers of queries, which may begin at any address.
    """
    plan: GradientPlan = pipeline.plan
    task, pattern = pipeline.task, pipeline.plan.pattern
    ring, lane = pipeline.ring(0), lane_id(pipeline.task.thread)
    last_maps = len(plan.boxes) - 2

    def resident(tile: TileContext, turn: Value) -> None:
        pipeline.query_empty.wait(turn ^ 1)
        for group in range(2):
            pipeline.result_empty[group].wait(turn ^ 1)
        boxes = plan.boxes[:2]
        pipeline.query_full.arrive_and_expect(sum(box.panels * box.map.box_bytes for box in boxes))
        for number, (box, shared) in enumerate(zip(boxes, plan.resident, strict=True)):
            for panel in range(box.panels):
                target = offset(task.shared, plan.resident_at(number) + panel * shared.panel_bytes)
                tma.load_tile(target, task.tensor_map(number), pipeline.query_full, place_of_box(tile, box, panel))

    def streamed(tile: TileContext, block: Value, slot: Slot) -> None:
        full, target = ring.full(slot.stage), pipeline.slot(0, slot.stage)
        boxes = plan.boxes[last_maps:]
        full.arrive_and_expect(sum(box.panels * box.map.box_bytes for box in boxes))
        for number, (box, shared) in enumerate(zip(boxes, plan.blocks, strict=True)):
            for panel in range(box.panels):
                to = offset(target, number * plan.blocks[0].bytes + panel * shared.panel_bytes)
                tma.load_tile(to, task.tensor_map(last_maps + number), full, place_of_box(tile, box, panel, block * plan.block))

    # Queries that are not there: the exponents of their powers of 2 are minus infinity.
    nothing = f32(math.copysign(math.inf, -pattern.gradient.scale))

    def numbers(tile: TileContext, block: Value, slot: Slot) -> None:
        base = numbers_of(pipeline, slot.stage)
        for part in range(-(-plan.block // 32)):
            local = lane + 32 * part
            row = block * plan.block + local
            there, row = row < pattern.length, minimum(row, pattern.length - 1)
            score, slope = row_numbers(plan, tile, "key", row)
            place = offset(base, local * 4)

            def put(there=there, score=score, slope=slope, place=place) -> None:
                store(select(there, score, nothing), place)
                store(select(there, slope, f32(0.0)), offset(place, plan.block * 4))

            if_all([local < plan.block if 32 * (part + 1) > plan.block else None], put)
        # Each lane for itself: racecheck does not see what a warp's barrier orders before one lane's arrival.
        ring.full(slot.stage).arrive()

    def tile(tile: TileContext, piece: Value, stage: Value, parity: Value, turn: Value) -> list[Value]:
        tile = pipeline.walk.tile(tile)
        if task.view.waits:
            tile.poll_by_warp(lane)
        if_(lane == 0, lambda: resident(tile, turn))
        blocks = blocks_of(plan, tile, 0, pattern.row_count - 1)

        def block(index: Value, stage: Value, parity: Value) -> list[Value]:
            slot = Slot(stage, parity)
            ring.empty(stage).wait(parity)
            if_(lane == 0, lambda: streamed(tile, index, slot))
            if plan.keys:
                numbers(tile, index, slot)
            return ring.next(slot).values

        state = [stage, parity]
        for _ in range(plan.sweeps):
            state = for_(blocks.begin, blocks.end, 1, block, state)
        return [*state, turn ^ 1]

    task.for_each_piece(tile, [*ring.producer_start().values, i32(0)])


def store_gradients(pipeline: PipelineState) -> None:
    """One thread stores the results of all tiles, as the consumers leave them in shared memory, and posts."""
    plan: GradientPlan = pipeline.plan
    task = pipeline.task

    def tile(tile: TileContext, piece: Value, turn: Value) -> Value:
        tile = pipeline.walk.tile(tile)
        for group in range(2):
            pipeline.result_full[group].wait(turn)
            if group < plan.groups:
                for number in range(len(plan.pattern.results)):
                    which, shared = 2 + number * plan.groups + group, plan.resident[number]
                    box = plan.boxes[which]
                    first = offset(task.shared, plan.result_at_of(number) + group * GROUP_ROWS * 128)
                    for panel in range(box.panels):
                        source = offset(first, panel * shared.panel_bytes)
                        place = place_of_box(tile, box, panel, row=group * GROUP_ROWS)
                        tma.store_tile(task.tensor_map(which), source, place)
                tma.commit()
        tma.wait(0)
        for group in range(2):
            pipeline.result_empty[group].arrive()
        if task.view.posts:
            fence_async()
            tile.post()
        return turn ^ 1

    task.for_each_piece(tile, [i32(0)])
