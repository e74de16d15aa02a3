"""Deciding how a tile of attention runs: block sizes, shared memory, tensor maps.

A tile has up to 128 rows, 64 for each of two consumer warpgroups, which walk the same blocks of keys. With 64 rows or fewer
both have the same rows, and every other block of keys each; their results are joined at the end.
"""

from __future__ import annotations

import dataclasses

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.attention.match import Pattern, match
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions, MapUse, Plan
from kitsune_mlir.codegen.gpu.interface.split import Split
from kitsune_mlir.codegen.gpu.interface.window import Dim, Window, tensor_map_of
from kitsune_mlir.codegen.gpu.sm90 import warp_specialize as roles
from kitsune_mlir.codegen.gpu.sm90.tensor_map import TensorMap
from kitsune_mlir.dialects.deep import postorder
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.dialects.tile_records import TaskView
from kitsune_mlir.machine.shared_tile import PANEL_COLS, SharedTile

__all__ = ["GROUP_ROWS", "AttentionPlan", "Box", "box_of", "make_plan"]

GROUP_ROWS = 64
MOST_SLOTS = 12
WARPS = 4  # of a consumer
MERGED_THREADS = 128
FEW_ROWS, FEW_ELEMENTS, FEW_BLOCK = 16, 2048, 64
"""Up to this many rows, and elements of a tile's result, are done by warps with keys of their own, 16 of each block."""
PIECE_BLOCKS, LONG_PIECE_BLOCKS = 2, 8  # blocks of keys that a piece of a tile has at least: of few rows, of more
MOST_PIECES = 16  # partial results of a row that a thread has in registers at a time


@dataclasses.dataclass(frozen=True)
class Box:
    """TMA's view of a window.

    Attributes:
        map: one box is one panel.
        dims: the map's dimensions; their sides say where a tile's coordinates are added.
        panels: boxes along the elements of a head.
    """

    map: TensorMap
    dims: tuple[Dim, ...]
    panels: int


@dataclasses.dataclass(frozen=True)
class AttentionPlan:
    """What was decided for a task.

    Attributes:
        pattern: the body.
        split: both warpgroups have all rows, and every other block of keys each.
        once: no other tile reads the same keys.
        block: keys of a block.
        slots: blocks of keys or values that a ring holds; there are two rings if `split`, else one.
        query_tile, key_tile, value_tile, result_tile: how they lie in shared memory.
        query: TMA's view of q, keys, values: of each part; results: of the rows of each warpgroup that has some.
        result_at, ring_at, merge_at: offsets in shared memory; q is at 0.
        workers: multiprocessors that tiles of unequal cost are ordered for.
        few: rows are so few that each warp has all of them, and keys of its own (`attention.decode`).
        pieces: blocks that share a tile's keys.
    """

    pattern: Pattern
    split: bool
    once: bool
    block: int
    slots: int
    query_tile: SharedTile
    key_tile: SharedTile
    value_tile: SharedTile
    result_tile: SharedTile
    query: Box
    keys: tuple[Box, ...]
    values: tuple[Box, ...]
    results: tuple[Box, ...]
    result_at: int
    ring_at: int
    merge_at: int
    workers: int
    few: bool = False
    pieces: int = 1

    @property
    def partial_bytes(self) -> int:
        """What a piece leaves: a weighted sum of values, a maximum and a sum for each row, in f32."""
        rows = self.pattern.row_count
        return -(-(rows * self.pattern.head * 4 + rows * 8) // 16) * 16

    @property
    def bulk_results(self) -> bool:
        """Whether results go through shared memory and bulk copies."""
        return not self.few and self.pieces == 1

    @property
    def aliased(self) -> bool:
        """Whether the result takes the place of q in shared memory."""
        return self.result_at == 0

    @property
    def slot_bytes(self) -> int:
        """Shared memory of a slot."""
        return max(self.key_tile.bytes, self.value_tile.bytes)

    @property
    def rings(self) -> int:
        """Rings of slots: one for each warpgroup if they walk different blocks."""
        return 2 if self.split else 1

    @property
    def uneven(self) -> bool:
        """Whether a row may be in two tiles, one with more blocks of keys: both must add in one order to store the same."""
        overlap = any(dim.extent % dim.size for dim in self.pattern.result.dims)
        return overlap and len(self.pattern.parts) == 1 and any(step.kind == "causal" for step in self.pattern.attention.steps)

    @property
    def blocks(self) -> int:
        """Blocks of keys of all parts."""
        return sum(self.part_blocks)

    @property
    def part_blocks(self) -> tuple[int, ...]:
        """Blocks of keys of each part."""
        return tuple(-(-part.size // self.block) for part in self.pattern.parts)

    @property
    def order(self) -> tuple[int, ...]:
        """Parts of the keys in the order in which blocks are numbered. The last are read first: those that are the program's
        inputs, which need not be waited for."""
        parts = self.pattern.parts
        return tuple(sorted(range(len(parts)), key=lambda number: parts[number].constant))

    @property
    def made_blocks(self) -> int:
        """Blocks of keys that other tasks make: those with the lowest numbers."""
        return sum(self.part_blocks[number] for number in self.order if not self.pattern.parts[number].constant)

    @property
    def early(self) -> int:
        """Blocks of keys, with values but for the last one's, that a ring has room for."""
        return (self.slots + 1) // 2

    @property
    def boxes(self) -> tuple[Box, ...]:
        """All boxes, in the order of the plan's tensor maps: q, results, keys, values."""
        return (self.query, *self.results, *self.keys, *self.values)


def make_plan(engine: str, task: TaskView, options: KernelOptions) -> Plan:
    """Plan a task.

    Raises:
        MatchFailure: it cannot be done.
    """
    pattern = match(task)
    plan = _choose(pattern, options, _read_once(pattern, task))
    plan = dataclasses.replace(plan, pieces=_pieces(plan, task.tiles, options.workers))
    sharers = task.tiles
    split = Split(plan.pieces, sharers * plan.pieces * plan.partial_bytes, sharers, sharers) if plan.pieces > 1 else None
    shared = plan.ring_at + plan.rings * plan.slots * plan.slot_bytes
    buffers = [
        pattern.query.buffer,
        *[pattern.result.buffer] * len(plan.results),
        *(part.key.buffer for part in pattern.parts),
        *(part.value.buffer for part in pattern.parts),
    ]
    # q full, q empty; result full and empty of each warpgroup; full and empty of each ring's slots
    readers = roles.CONSUMERS * (WARPS if plan.few else 1)
    barriers = [1, readers, *[128] * 2, *[1] * 2]
    for _ in range(plan.rings):
        barriers += [1] * plan.slots + [readers // plan.rings] * plan.slots
    return Plan(
        engine,
        task,
        shared_bytes=shared,
        threads=roles.THREADS,
        registers=roles.SHARED_REGISTERS,
        barriers=tuple(barriers),
        tensor_maps=tuple(MapUse(buffer, box.map) for buffer, box in zip(buffers, plan.boxes, strict=True)),
        async_reads=True,
        async_writes=True,
        parameters={
            "rows": pattern.row_count,
            "keys": plan.block,
            "slots": plan.slots * plan.rings,
            "pieces": plan.pieces,
            "steps": [step.kind for step in pattern.attention.steps],
        },
        split=split,
        private=plan,
    )


def _pieces(plan: AttentionPlan, tiles: int, workers: int) -> int:
    """How many blocks share a tile: as many as are idle otherwise, each with a few blocks of keys for both consumers."""
    if not plan.split or plan.uneven or plan.pattern.logarithm is not None:
        return 1
    least = PIECE_BLOCKS if plan.few else LONG_PIECE_BLOCKS
    return max(1, min(workers // tiles, plan.blocks // least, MOST_PIECES))


def _choose(pattern: Pattern, options: KernelOptions, once: bool) -> AttentionPlan:
    rows = pattern.row_count
    split = rows <= GROUP_ROWS
    if rows > 2 * GROUP_ROWS:
        raise MatchFailure(f"a tile of {rows} rows; {2 * GROUP_ROWS} are done")
    if not split and len(pattern.rows) > 1:
        raise MatchFailure("more than 64 rows in several dimensions")
    wide, deep = (-(-size // PANEL_COLS) * PANEL_COLS for size in (pattern.width, pattern.head))
    partial = rows * (pattern.head + 2) * 4
    ways = [(False, block) for block in _block_sizes(pattern, split)]
    plain = pattern.logarithm is None and pattern.attention.dropout is None
    if rows <= FEW_ROWS and rows * pattern.head <= FEW_ELEMENTS and plain:
        ways.insert(0, (True, FEW_BLOCK))
    for few, block in ways:
        covered = FEW_ROWS if few else GROUP_ROWS if split else 2 * GROUP_ROWS
        query_tile, result_tile = SharedTile(covered, wide, 2), SharedTile(covered, deep, 2)
        merge = (
            roles.CONSUMERS * WARPS * -(-partial // 16) * 16
            if few
            else MERGED_THREADS * (pattern.head // 2 + 4) * 4
            if split
            else 0
        )
        key_tile, value_tile = SharedTile(block, wide, 2), SharedTile(block, deep, 2)
        slot = max(key_tile.bytes, value_tile.bytes)
        rings = 2 if split else 1
        for aliased in (False, True):
            result_at = 0 if aliased else query_tile.bytes
            merge_at = query_tile.bytes if few else max(query_tile.bytes, result_at + result_tile.bytes)
            ring_at = -(-(merge_at + merge) // 1024) * 1024
            slots = min(MOST_SLOTS, (options.shared_bytes - ring_at) // (slot * rings))
            if slots >= (3 if few else 4 if block > 32 else 2):
                return AttentionPlan(
                    pattern,
                    split,
                    once,
                    block,
                    slots,
                    query_tile,
                    key_tile,
                    value_tile,
                    result_tile,
                    _rows_box(pattern, pattern.query, "width", wide),
                    tuple(_keys_box(part.key, block, "width", wide, once) for part in pattern.parts),
                    tuple(_keys_box(part.value, block, "head", deep, once) for part in pattern.parts),
                    _result_boxes(pattern, split, deep),
                    result_at,
                    ring_at,
                    merge_at,
                    options.workers,
                    few,
                )
    raise MatchFailure(f"heads of {pattern.width} and {pattern.head} elements do not fit shared memory")


def _read_once(pattern: Pattern, task: TaskView) -> bool:
    """Whether tiles have keys of their own: each coordinate of a tile says where these begin."""
    starts = [dim.start for part in pattern.parts for dim in part.key.dims if not isinstance(dim.start, int)]
    used = set(postorder(starts, lambda value: [] if isinstance(value.owner, ir.Block) else value.owner.operands))
    return all(extent == 1 or value in used for value, extent in zip(task.coordinates, task.grid, strict=True))


def _block_sizes(pattern: Pattern, split: bool) -> tuple[int, ...]:
    """Keys of a block, in the order of preference: as many as registers hold beside the sums."""
    if pattern.attention.dropout is not None:
        return (64, 32)  # what is kept takes registers, too
    if max(pattern.width, pattern.head) <= 128:
        return (128, 64, 32)
    return (64, 32) if split else (80, 64, 32)


def _keys_box(window: Window, block: int, side: str, elements: int, once: bool) -> Box:
    """A panel of a block of keys or values; `once`: one block of threads reads it, so L2 needs no more than the box."""
    return box_of(
        window, (("key", block), (side, PANEL_COLS)), elements // PANEL_COLS, PANEL_COLS * window.bytes if once else 256
    )


def _rows_box(pattern: Pattern, window: Window, side: str, elements: int, most: int = 2 * GROUP_ROWS) -> Box:
    sides = [(f"row{number}", min(extent, most)) for number, extent in enumerate(pattern.rows)]
    return box_of(window, (*sides, (side, PANEL_COLS)), elements // PANEL_COLS)


def _result_boxes(pattern: Pattern, split: bool, deep: int) -> tuple[Box, ...]:
    firsts = (0,) if split else (0, GROUP_ROWS)
    counts = (min(GROUP_ROWS, pattern.row_count - first) for first in firsts)
    return tuple(_rows_box(pattern, pattern.result, "head", deep, rows) for rows in counts)


def box_of(window: Window, sides: tuple[tuple[str, int], ...], panels: int, promotion: int = 256) -> Box:
    """The map of a window whose last dimensions are `sides`, with their box extents, in this order.

    Raises:
        MatchFailure: TMA cannot read it.
    """
    inner = dict(sides)
    if any(dim.side and dim.side not in inner for dim in window.dims):
        raise MatchFailure("an operand lies along a side that it should not have")
    if any(dim.side == "key" and "key" in inner and dim.size != dim.extent for dim in window.dims):
        raise MatchFailure("the keys are a part of a longer tensor")
    if window.stride(sides[-1][0]) != 1:
        raise MatchFailure("the elements of a head are not neighbours in memory")
    found = tensor_map_of(window, inner, promotion=promotion)
    if isinstance(found, str):
        raise MatchFailure(found)
    return Box(*found, panels)
