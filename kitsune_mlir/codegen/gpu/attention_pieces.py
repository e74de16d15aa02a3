"""Tiles whose keys several blocks share: each leaves maximum, sum and weighted sum of its keys, and the last one joins them.

What a piece leaves is written by rows, so that the joining threads read neighbours, and only for rows that exist. Pieces are
joined in their order, so results do not depend on timing.
"""

from __future__ import annotations

import math

from kitsune_mlir.codegen.gpu.attention_plan import AttentionPlan
from kitsune_mlir.codegen.gpu.attention_scores import Scores, Softmax, exp2, over_lanes
from kitsune_mlir.codegen.gpu.barriers import NamedBarrier, fence_async
from kitsune_mlir.codegen.gpu.builder import for_, if_
from kitsune_mlir.codegen.gpu.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.convert import pack_values
from kitsune_mlir.codegen.gpu.elements import load_elements
from kitsune_mlir.codegen.gpu.memory import offset, store
from kitsune_mlir.codegen.gpu.value import Value, f32, i32, i64, maximum, select, vector

__all__ = ["Pieces", "piece_blocks"]

MEET = 5
"""Named barrier of the consumer that writes and joins."""
GROUP = 128


def piece_blocks(plan: AttentionPlan, piece: Value, blocks: Value) -> tuple[Value, Value]:
    """The first block of keys of a piece, and the first after it, of a tile that has `blocks`."""
    if plan.pieces == 1:
        return i32(0), blocks
    return piece * blocks // plan.pieces, (piece + 1) * blocks // plan.pieces


class Pieces:
    """The pieces of a tile, by the consumer that has the block's sums.

    Args:
        local: index of the thread in its warpgroup.
    """

    def __init__(self, plan: AttentionPlan, task: TaskContext, tile: TileContext, local: Value):
        self.plan, self.task, self.tile, self.local = plan, task, tile, local
        self.rows, self.head = plan.pattern.row_count, plan.pattern.head

    def claim(self) -> None:
        """One thread waits until the memory of the pieces is free. Before `leave`, with a barrier of the consumer between."""
        assert self.task.place is not None
        before = self.task.place.before
        if before is not None:
            if_(self.local == 0, lambda: self.task.kernel.counters.poll(i32(before[0]), before[1], self.task.number))

    def leave(self, piece: Value, softmax: Softmax, sums: list[Value]) -> None:
        """Write what the block has found, and announce it."""
        counters = self.task.kernel.counters
        target = self._pointer(piece)
        lane = self.local & 31
        first = self.local // 32 * 16 + lane // 4
        totals = [over_lanes(total, lambda a, b: a + b) for total in softmax.total]
        for half in range(2):
            row = first + 8 * half

            def write(half: int = half, row: Value = row) -> None:
                line = offset(target, (row * self.head + (lane & 3) * 2) * 4)
                for block in range(self.head // 8):
                    pair = sums[4 * block + 2 * half : 4 * block + 2 * half + 2]
                    store(vector(pair), offset(line, block * 32))
                statistics = offset(target, row * 8 + self.rows * self.head * 4)
                store(vector([softmax.top[half], totals[half]]), statistics)  # four lanes write the same

            if_(row < self.rows, write)
        self._meet()
        last = piece == self.plan.pieces - 1
        if_((self.local == 0) & (last ^ True), lambda: counters.post(self._arrival()))

    def join(self, scores: Scores) -> None:
        """Join all pieces, the last block's own included, write the results and post them."""
        place, counters, pieces = self.task.place, self.task.kernel.counters, self.plan.pieces
        assert place is not None
        if_(self.local == 0, lambda: counters.poll(self._arrival(), pieces - 1, self.task.number))
        self._meet()
        sources = [self._pointer(i32(piece)) for piece in range(pieces)]
        factor = scores.factor if scores.pure else 1.0

        def vector_at(number: Value) -> None:
            row, col = number // (self.head // 4), number % (self.head // 4) * 4
            found = [load_elements(offset(source, number * 16), "f32", 4, align=16) for source in sources]
            statistics = [
                load_elements(offset(source, row * 8 + self.rows * self.head * 4), "f32", 2, align=8) for source in sources
            ]
            top = statistics[0][0]
            for other, _ in statistics[1:]:
                top = maximum(top, other)
            safe = select(top == -math.inf, f32(0.0), top)
            factors = [exp2((mine - safe) * factor) for mine, _ in statistics]
            total = _weighted(factors, [mine for _, mine in statistics])
            inverse = scores.inverse(total)
            values = [_weighted(factors, [piece[i] for piece in found]) * inverse for i in range(4)]
            words = pack_values(values, self.plan.pattern.attention.dtype)
            store(vector(words), self._result(row, col), 8)

        for_(self.local, self.rows * self.head // 4, GROUP, vector_at)
        if self.task.kernel.fences:
            fence_async()
        self._meet()

        def announce() -> None:
            self.tile.post()
            counters.post(i32(place.read))

        if_(self.local == 0, announce)

    def _result(self, row: Value, col: Value) -> Value:
        """Pointer to an element of the result, straight in global memory: a few rows are not worth a bulk copy's latency."""
        window = self.plan.pattern.result
        pointer = offset(window.start(self.tile), i64(col) * (window.stride("head") * window.bytes))
        inner = 1
        for number, extent in reversed(list(enumerate(self.plan.pattern.rows))):
            if extent > 1:
                pointer = offset(pointer, i64(row // inner % extent) * (window.stride(f"row{number}") * window.bytes))
            inner *= extent
        return pointer

    def _meet(self) -> None:
        NamedBarrier(MEET, GROUP).sync()

    def _arrival(self) -> Value:
        assert self.task.place is not None
        return self.tile.number + self.task.place.arrivals

    def _pointer(self, piece: Value) -> Value:
        assert self.task.partials is not None
        number = self.tile.number * self.plan.pieces + piece
        return offset(self.task.partials, i64(number) * self.plan.partial_bytes)


def _weighted(factors: list[Value], values: list[Value]) -> Value:
    total = factors[0] * values[0]
    for factor, value in zip(factors[1:], values[1:], strict=True):
        total = total + factor * value
    return total
