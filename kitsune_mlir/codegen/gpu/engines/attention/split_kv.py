"""Tiles whose keys several blocks share: each leaves maximum, sum and weighted sum of its keys, and the last one joins them.

What a piece leaves is written by rows, so that the joining threads read neighbours, and only for rows that exist. Pieces are
joined in their order, so results do not depend on timing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from kitsune_mlir.codegen.gpu.emit.approx_math import exp2
from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_
from kitsune_mlir.codegen.gpu.emit.convert import pack_values
from kitsune_mlir.codegen.gpu.emit.memory import offset, store
from kitsune_mlir.codegen.gpu.emit.reduce import over_lanes
from kitsune_mlir.codegen.gpu.emit.value import Value, f32, i32, i64, maximum, select, vector
from kitsune_mlir.codegen.gpu.emit.vectors import load_elements
from kitsune_mlir.codegen.gpu.engines.attention.online_softmax import ROW_LANES, Scores, Softmax
from kitsune_mlir.codegen.gpu.engines.attention.plan import AttentionPlan
from kitsune_mlir.codegen.gpu.interface.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.interface.split_exchange import SplitExchange
from kitsune_mlir.codegen.gpu.sm90.mbarrier import NamedBarrier, fence_async
from kitsune_mlir.codegen.gpu.sm90.warp_specialize import WARPGROUP_THREADS

__all__ = ["Joined", "Pieces", "joined_at", "piece_blocks", "write_partial"]

MEET = 5
"""Named barrier of the consumer that writes and joins."""


def piece_blocks(plan: AttentionPlan, piece: Value, blocks: Value) -> tuple[Value, Value]:
    """The first block of keys of a piece, and the first after it, of a tile that has `blocks`."""
    if plan.pieces == 1:
        return i32(0), blocks
    return piece * blocks // plan.pieces, (piece + 1) * blocks // plan.pieces


def write_partial(plan: AttentionPlan, target: Value, row: Value, lane: Value, softmax: Softmax, sums: list[Value]) -> None:
    """Write the weighted sums, maxima and sums of a warp's 16 rows, of which a thread has `row` and `row` + 8, by rows."""
    rows, head = plan.pattern.row_count, plan.pattern.head
    totals = [over_lanes("add", total, ROW_LANES) for total in softmax.total]
    for half in range(2):
        mine = row + 8 * half

        def write(half: int = half, mine: Value = mine) -> None:
            line = offset(target, (mine * head + (lane & 3) * 2) * 4)
            for block in range(head // 8):
                store(vector(sums[4 * block + 2 * half : 4 * block + 2 * half + 2]), offset(line, block * 32))
            statistics = offset(target, mine * 8 + rows * head * 4)
            store(vector([softmax.top[half], totals[half]]), statistics)  # four lanes write the same

        if_(mine < rows, write)


@dataclasses.dataclass(frozen=True)
class Joined:
    """Four neighbouring elements of what several parts of the keys give together.

    Attributes:
        plan, scores: of the tile.
        row, col: the first element's place.
        values, top, total: weighted sums of the values, and the row's maximum and sum.
    """

    plan: AttentionPlan
    scores: Scores
    row: Value
    col: Value
    values: list[Value]
    top: Value
    total: Value

    def store(self, tile: TileContext) -> None:
        """Write the result, straight to global memory: a few rows are not worth a bulk copy's latency."""
        window = self.plan.pattern.result
        pointer = offset(window.start(tile), i64(self.col) * (window.stride("head") * window.bytes))
        inner = 1
        for number, extent in reversed(list(enumerate(self.plan.pattern.rows))):
            if extent > 1:
                pointer = offset(pointer, i64(self.row // inner % extent) * (window.stride(f"row{number}") * window.bytes))
            inner *= extent
        inverse = self.scores.inverse(self.total)
        words = pack_values([value * inverse for value in self.values], self.plan.pattern.attention.dtype)
        store(vector(words), pointer, 8)


def joined_at(plan: AttentionPlan, scores: Scores, sources: Sequence[Value], number: Value) -> Joined:
    """Join what `write_partial` has left at each of `sources`, for the tile's vector of four elements `number`."""
    rows, head = plan.pattern.row_count, plan.pattern.head
    row, col = number // (head // 4), number % (head // 4) * 4
    found = [load_elements(offset(source, number * 16), "f32", 4, align=16) for source in sources]
    statistics = [load_elements(offset(source, row * 8 + rows * head * 4), "f32", 2, align=8) for source in sources]
    factor = scores.factor if scores.pure else 1.0
    top = statistics[0][0]
    for other, _ in statistics[1:]:
        top = maximum(top, other)
    safe = select(top == -math.inf, f32(0.0), top)
    factors = [exp2((mine - safe) * factor) for mine, _ in statistics]
    values = [_weighted(factors, [part[i] for part in found]) for i in range(4)]
    return Joined(plan, scores, row, col, values, top, _weighted(factors, [mine for _, mine in statistics]))


class Pieces:
    """The pieces of a tile, by the consumer that has the block's sums.

    Args:
        local: index of the thread in its warpgroup.
    """

    def __init__(self, plan: AttentionPlan, task: TaskContext, tile: TileContext, local: Value):
        self.plan, self.task, self.tile, self.local = plan, task, tile, local
        self.exchange = SplitExchange(task, lambda: local == 0, NamedBarrier(MEET, WARPGROUP_THREADS).sync)

    def claim(self) -> None:
        """One thread waits until the memory of the pieces is free. Before `leave`, with a barrier of the consumer between."""
        self.exchange.claim(sync=False)

    def leave(self, piece: Value, softmax: Softmax, sums: list[Value]) -> None:
        """Write what the block has found, and announce it."""
        lane = self.local & 31
        write_partial(self.plan, self.pointer(piece), self.local // 32 * 16 + lane // 4, lane, softmax, sums)
        self.exchange.sync()
        self.announce(piece)

    def announce(self, piece: Value) -> None:
        """Tell the last piece that this one is there, by one thread, which has seen all of it."""
        self.exchange.announce(self.tile.number, (piece == self.plan.pieces - 1) ^ True)

    def join(self, scores: Scores) -> None:
        """Join all pieces, the last block's own included, write the results and post them."""
        pieces, pattern = self.plan.pieces, self.plan.pattern
        self.exchange.wait(self.tile.number, pieces - 1)
        sources = [self.pointer(i32(piece)) for piece in range(pieces)]

        def vector_at(number: Value) -> None:
            joined_at(self.plan, scores, sources, number).store(self.tile)

        for_(self.local, pattern.row_count * pattern.head // 4, WARPGROUP_THREADS, vector_at)
        if self.task.kernel.fences:
            fence_async()
        self.exchange.release(also=self.tile.post)

    def pointer(self, piece: Value) -> Value:
        """Where a piece leaves what it has found."""
        return self.exchange.partials(self.tile.number * self.plan.pieces + piece, self.plan.partial_bytes)


def _weighted(factors: list[Value], values: list[Value]) -> Value:
    total = factors[0] * values[0]
    for factor, value in zip(factors[1:], values[1:], strict=True):
        total = total + factor * value
    return total
