"""The main loop of a product whose operands TMA cannot load: all threads copy chunks into swizzled shared memory.

The loads of a chunk are under way while the chunk before is multiplied. Two stages take turns, with one barrier a chunk.
"""

from __future__ import annotations

import dataclasses
import functools
import math

from kitsune_mlir.codegen.gpu import wgmma
from kitsune_mlir.codegen.gpu.barriers import NamedBarrier, fence_async_shared
from kitsune_mlir.codegen.gpu.builder import for_, if_
from kitsune_mlir.codegen.gpu.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.elements import load_elements
from kitsune_mlir.codegen.gpu.memory import offset, store
from kitsune_mlir.codegen.gpu.mma_operand import CHUNK, Operand
from kitsune_mlir.codegen.gpu.mma_plan import COPY_STAGES, THREADS, MmaPlan
from kitsune_mlir.codegen.gpu.mma_ring import operands
from kitsune_mlir.codegen.gpu.value import Value, bitcast, i64, select, vector
from kitsune_mlir.shared_tile import SharedTile

__all__ = ["Copier"]

PIECE = 8
"""Elements of 16 bytes, what a thread writes to shared memory at a time."""


@dataclasses.dataclass(frozen=True)
class Copier:
    """Emits the loop; attributes as `mma_ring.Ring`'s."""

    plan: MmaPlan
    task: TaskContext
    thread: Value
    group: Value

    def product(self, tile: TileContext) -> list[Value]:
        """The warpgroup's accumulators, complete. Both warpgroups call it, after the waits."""
        plan = self.plan
        starts = [operand.window.start(tile) for operand in (plan.a, plan.b)]
        accumulators = self._step(starts, 0, None)
        if plan.sum.chunks > 1:

            def step(chunk: Value, *carried: Value) -> list[Value]:
                return self._step(starts, chunk, list(carried))

            accumulators = for_(1, plan.sum.chunks, 1, step, accumulators)
        return wgmma.wait(0, accumulators)

    def _step(self, starts: list[Value], chunk: Value | int, accumulators: list[Value] | None) -> list[Value]:
        """Copy a chunk and start its product; `accumulators` are those of the chunk before, in flight."""
        plan = self.plan
        stage = offset(self.task.shared, chunk % COPY_STAGES * plan.stage_bytes)
        jobs = [
            self._job(plan.a, plan.a_tile, starts[0], stage, chunk),
            self._job(plan.b, plan.b_tile, starts[1], offset(stage, plan.a_tile.bytes), chunk),
        ]
        # Whole pieces are under way while the chunk before is multiplied; narrow loads would take too many registers.
        early = [job.read(index) for job in jobs if job.width == PIECE for index in range(job.rounds)]
        if accumulators is not None:
            accumulators = wgmma.wait(0, accumulators)
        for piece in early:
            _put(*piece)
        for job in jobs:
            if job.width != PIECE:
                for_(0, job.rounds, 1, job.copy)
        fence_async_shared()
        NamedBarrier(1, THREADS).sync()
        a, b = operands(plan, stage, self.group)
        return wgmma.multiply(accumulators, a, b, plan.geometry.n, plan.pattern.product.dtype, plan.sum.steps)

    def _job(self, operand: Operand, tile: SharedTile, start: Value, target: Value, chunk: Value | int) -> _Job:
        window, order = operand.window, self.plan.sum
        inner: Value | int = chunk
        if order.outer:
            inner, rest = chunk % order.inner_chunks, chunk // order.inner_chunks
            for side, length in reversed(order.outer):
                start = offset(start, i64(rest % length) * (window.stride(side) * window.bytes))
                rest = rest // length
        return _Job(operand, tile, order.inner, start, target, inner * CHUNK, self.thread)


@dataclasses.dataclass(frozen=True)
class _Job:
    """Copying one operand's chunk, by pieces of 16 bytes.

    Attributes:
        operand, tile: what, and its layout in shared memory.
        inner: side and length of the innermost loop of the sum.
        start: pointer to the window's first element, moved along the outer loops.
        target: pointer to the tile in shared memory.
        first: of the inner loop, the chunk's first.
        thread: index of the thread.
    """

    operand: Operand
    tile: SharedTile
    inner: tuple[str, int]
    start: Value
    target: Value
    first: Value | int
    thread: Value

    @property
    def rounds(self) -> int:
        """Pieces of each thread."""
        return -(-self.tile.rows * self.tile.cols // (PIECE * THREADS))

    @property
    def width(self) -> int:
        """Elements that are neighbours in memory, lie inside or outside of the tile together, and are aligned together."""
        window, (inner, length) = self.operand.window, self.inner
        side, limit = (self.operand.side, self.operand.size) if self.operand.transposed else (inner, length)
        if window.stride(side) not in (0, 1):
            return 1
        return math.gcd(PIECE, limit, window.align((side,)) // window.bytes)

    def read(self, index: Value | int) -> tuple[Value, Value, Value | None]:
        """Load one piece: its 16 bytes, its place in shared memory, and whether it exists (None: always)."""
        window, tile, width = self.operand.window, self.tile, self.width
        across = tile.cols // PIECE  # pieces of a row of the tile, which memory runs along
        piece = self.thread + index * THREADS
        row, col = piece // across, piece % across * PIECE
        exists = None if tile.rows * across % THREADS == 0 else piece < tile.rows * across
        # In the tile, the sum runs along the rows, or down the rows if the operand is transposed.
        place = (
            {self.operand.side: col, self.inner[0]: row}
            if self.operand.transposed
            else {self.operand.side: row, self.inner[0]: col}
        )
        place[self.inner[0]] = place[self.inner[0]] + self.first
        limits = {self.operand.side: self.operand.size, self.inner[0]: self.inner[1]}
        moving = self.operand.side if self.operand.transposed else self.inner[0]
        words = []
        for part in range(0, PIECE, width):
            at = {**place, moving: place[moving] + part}
            sides = list(at)
            inside = (at[sides[0]] < limits[sides[0]]) & (at[sides[1]] < limits[sides[1]])
            pointer = self.start
            for side in sides:
                pointer = offset(pointer, i64(at[side]) * (window.stride(side) * window.bytes))
            pointer = select(inside, pointer, self.start)
            for value in load_elements(pointer, "i16", width, align=2 * width, constant=window.constant):
                words.append(select(inside, value, 0))
        return bitcast(vector(words), "vector<4xi32>"), offset(self.target, tile.offset(row, col)), exists

    def copy(self, index: Value) -> None:
        """Copy one piece."""
        _put(*self.read(index))


def _put(words: Value, target: Value, exists: Value | None) -> None:
    if exists is None:
        store(words, target)
    else:
        if_(exists, functools.partial(store, words, target))
