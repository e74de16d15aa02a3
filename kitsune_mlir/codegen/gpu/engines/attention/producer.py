"""What the producer's warpgroup does: one warp loads q, keys and values, a thread of another stores results and posts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_, lane_id
from kitsune_mlir.codegen.gpu.emit.memory import Cache, offset
from kitsune_mlir.codegen.gpu.emit.value import Value, i32, maximum, minimum
from kitsune_mlir.codegen.gpu.engines.attention.kv_schedule import KvSchedule, block_count, part_of
from kitsune_mlir.codegen.gpu.engines.attention.plan import GROUP_ROWS, AttentionPlan, Box
from kitsune_mlir.codegen.gpu.engines.attention.split_kv import piece_blocks
from kitsune_mlir.codegen.gpu.interface.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.sm90 import tma
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Barrier, Ring, Slot, fence_async

__all__ = ["PipelineState", "ask_for_cached", "load_tiles", "place_of_box", "store_tiles"]


class PipelineState:
    """Where the roles meet: mbarriers and places in shared memory.

    Tiles are counted by their parity ("turn"): the barriers of q and of the results complete one phase a tile.
    """

    def __init__(self, plan: Any, task: TaskContext, walk: KvSchedule):
        self.plan, self.task, self.walk = plan, task, walk
        self.query_full, self.query_empty = task.barriers[0], task.barriers[1]
        self.result_full, self.result_empty = task.barriers[2:4], task.barriers[4:6]
        self.query = task.shared
        self.result = offset(task.shared, plan.result_at)

    def ring(self, number: Value | int) -> Ring:
        """The ring of blocks number 0, or 1 if there are two."""
        stride = 2 * self.plan.slots * Barrier.BYTES
        return Ring(offset(offset(self.task.barrier_base, 6 * Barrier.BYTES), number * stride), self.plan.slots)

    def slot(self, ring: Value | int, stage: Value) -> Value:
        """Pointer to a slot of a ring."""
        plan = self.plan
        start = offset(self.task.shared, plan.ring_at)
        return offset(offset(start, ring * (plan.slots * plan.slot_bytes)), stage * plan.slot_bytes)


AHEAD = 2
"""Blocks of keys, and of values, that a ring's warp asks for beyond those that the ring takes before it waits for others."""


def load_tiles(pipeline: PipelineState, number: int) -> None:
    """One warp loads what ring `number` needs for all tiles; that of ring 0 loads q too. Its lanes wait, its first loads.

    Blocks come from the last one down, as those are masked, or are inputs of the program: of these the ring is filled before
    the wait. A block of keys goes ahead of the values of the block before.
    """
    plan, task = pipeline.plan, pipeline.task
    ring, lane = pipeline.ring(number), lane_id(task.thread)
    waits = bool(task.view.waits)
    early = waits and plan.made_blocks < plan.blocks

    def tile(tile: TileContext, piece: Value, stage: Value, parity: Value, turn: Value) -> list[Value]:
        tile = pipeline.walk.tile(tile)
        low, high = piece_blocks(plan, piece, block_count(plan, tile))
        first = high - (1 + number)

        def keys(distance: Value | int, slot: Slot) -> Slot:
            return _load_block(pipeline, number, tile, plan.keys, 0, first - distance, slot)

        def both(distance: Value, stage: Value, parity: Value) -> list[Value]:
            after = keys(distance, Slot(stage, parity))
            return _load_block(pipeline, number, tile, plan.values, 1, first - distance + plan.rings, after).values

        def begin(limit: Value | int) -> list[Value]:
            """The first keys, then more of them with the values before, up to a distance: it, and the next slot."""
            after = keys(0, Slot(stage, parity))
            return [i32(limit), *for_(plan.rings, limit, plan.rings, both, after.values)]

        nothing = [i32(0), stage, parity]
        begun = nothing
        if early:
            cached = maximum(low, plan.made_blocks)
            limit = minimum(first - cached, (plan.early - 1) * plan.rings)
            limit = limit // plan.rings * plan.rings + plan.rings
            begun = if_(
                (lane == 0) & (first >= cached), lambda: begin(limit), lambda: nothing, [value.type for value in nothing]
            )
        if waits:
            if early:
                _ask_ahead(plan, task, tile, lane, first - plan.early * plan.rings, low, plan.rings)
            tile.poll_by_warp(lane)

        def rest() -> list[Value]:
            distance, *values = begun
            if early:
                distance, *values = if_(distance == 0, lambda: begin(plan.rings), lambda: begun, ["i32"] * 3)
            else:
                distance, *values = begin(plan.rings)
            if number == 0:  # after the first keys: their place is free before q's is
                _load_query(pipeline, tile, turn)
            after = Slot(*for_(distance, first - low + 1, plan.rings, both, values))
            last = low + (first - low) % plan.rings if plan.rings > 1 else low
            return _load_block(pipeline, number, tile, plan.values, 1, last, after).values

        def none() -> list[Value]:
            if number == 0:
                _load_query(pipeline, tile, turn)
            return [stage, parity]

        def load() -> list[Value]:
            return if_(first >= low, rest, none, ["i32", "i32"]) if plan.split else rest()

        return [*if_(lane == 0, load, lambda: [stage, parity], ["i32", "i32"]), turn ^ 1]

    task.for_each_piece(tile, [*ring.producer_start().values, i32(0)])


def ask_for_cached(plan: AttentionPlan, task: TaskContext, lane: Value) -> None:
    """Bring cached keys and values of the block's first piece of a tile to L2, by one warp."""

    def ask(number: Value) -> None:
        tile = TileContext(task, number // plan.pieces)
        tile.resolve()
        low, high = piece_blocks(plan, number % plan.pieces, block_count(plan, tile))
        for ring in range(plan.rings):
            _ask_ahead(plan, task, tile, lane, high - (1 + ring), low)

    if plan.split:
        if_(task.first < task.view.tiles * plan.pieces, lambda: ask(task.first))


def _ask_ahead(
    plan: AttentionPlan, task: TaskContext, tile: TileContext, lane: Value, first: Value, low: Value, lag: int = 0
) -> None:
    """Bring blocks of keys from `first` on, and of values from `lag` blocks earlier on, to L2, as far as they are the program's
    inputs: one box a lane."""
    maps = 1 + len(plan.results)
    for which, boxes in enumerate((plan.keys, plan.values)):
        panels = boxes[0].panels
        block = first + which * lag - (lane // panels - which * AHEAD) * plan.rings

        def ask(part: int, local: Value, which: int = which, boxes: tuple[Box, ...] = boxes, panels: int = panels) -> None:
            if plan.pattern.parts[part].constant:
                place = place_of_box(tile, boxes[part], lane % panels, local * plan.block)
                tma.prefetch_tile(task.tensor_map(maps + which * len(boxes) + part), place)

        mine = (lane // panels // AHEAD == which) & (block >= low)
        if_(mine, functools.partial(_of_its_part, part_of(plan, block), ask))


def _of_its_part(parts: list[tuple[int, Value]], do: Callable[[int, Value], None]) -> None:
    """`do(part, number within it)` for the part that a block belongs to; `parts` as `part_of` gives them."""
    (part, local), rest = parts[-1], parts[:-1]
    if rest:
        if_(local >= 0, lambda: do(part, local), lambda: _of_its_part(rest, do))
    else:
        do(part, local)


def _load_query(pipeline: PipelineState, tile: TileContext, turn: Value) -> None:
    plan = pipeline.plan
    pipeline.query_empty.wait(turn ^ 1)
    if plan.aliased and plan.bulk_results:
        for group in range(len(plan.results)):
            pipeline.result_empty[group].wait(turn ^ 1)
    box = plan.query
    pipeline.query_full.arrive_and_expect(box.panels * box.map.box_bytes)
    for panel in range(box.panels):
        target = offset(pipeline.query, panel * plan.query_tile.panel_bytes)
        tma.load_tile(target, pipeline.task.tensor_map(0), pipeline.query_full, place_of_box(tile, box, panel))


def _load_block(
    pipeline: PipelineState, number: int, tile: TileContext, boxes: tuple[Box, ...], which: int, block: Value, slot: Slot
) -> Slot:
    """Load a block of keys (`which` 0) or values (1) into a slot of ring `number`; the slot after it."""
    plan, ring = pipeline.plan, pipeline.ring(number)
    ring.empty(slot.stage).wait(slot.parity)
    full, target = ring.full(slot.stage), pipeline.slot(number, slot.stage)
    full.arrive_and_expect(boxes[0].panels * boxes[0].map.box_bytes)
    maps = 1 + len(plan.results) + which * len(boxes)
    panel_bytes = (plan.value_tile if which else plan.key_tile).panel_bytes

    def load(part: int, local: Value) -> None:
        for panel in range(boxes[part].panels):
            place = place_of_box(tile, boxes[part], panel, local * plan.block)
            cache = Cache.STREAM if plan.once else Cache.DEFAULT
            tma.load_tile(offset(target, panel * panel_bytes), pipeline.task.tensor_map(maps + part), full, place, cache=cache)

    _of_its_part(part_of(plan, block), load)
    return ring.next(slot)


def place_of_box(tile: TileContext, box: Box, panel: Value | int, key: Value | int = 0, row: int = 0) -> list[Value | int]:
    """The coordinates of a box: `key` is added along the keys, `row` along the first row dimension that the box has."""
    place: list[Value | int] = []
    for number, dim in enumerate(box.dims):
        start = tile.index(dim.start)
        if number == len(box.dims) - 1:
            start = start + panel * 64
        elif dim.side == "key":
            start = start + key
        elif dim.side.startswith("row") and row:
            start, row = start + row, 0
        place.append(start)
    return place


def store_tiles(pipeline: PipelineState) -> None:
    """One thread stores the results of all tiles, as the consumers leave them in shared memory, and posts.

    Few rows are stored and posted by a consumer, tiles in pieces by the block that joins these.
    """
    plan, task = pipeline.plan, pipeline.task
    if not plan.bulk_results:
        return

    def tile(tile: TileContext, piece: Value, turn: Value) -> Value:
        tile = pipeline.walk.tile(tile)
        for group, box in enumerate(plan.results):
            pipeline.result_full[group].wait(turn)
            for panel in range(box.panels):
                source = offset(pipeline.result, panel * plan.result_tile.panel_bytes + group * GROUP_ROWS * 128)
                tma.store_tile(task.tensor_map(1 + group), source, place_of_box(tile, box, panel, row=group * GROUP_ROWS))
            tma.commit()
        tma.wait(0)
        for group in range(len(plan.results)):
            pipeline.result_empty[group].arrive()
        if task.view.posts:
            fence_async()
            tile.post()
        return turn ^ 1

    task.for_each_piece(tile, [i32(0)])
