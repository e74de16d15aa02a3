"""The producer of a product whose operands TMA cannot load: some warps copy chunks into swizzled shared memory.

Pieces of 4, 8 or 16 bytes go by `cp.async`, which tells the stage's barrier when they have come, so many are in flight;
elements that are not aligned so (odd rows of 16-bit numbers) go through registers.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

from torch_mlir.dialects import nvvm

from kitsune_mlir.codegen.gpu.barriers import NamedBarrier, Slot
from kitsune_mlir.codegen.gpu.builder import for_, if_
from kitsune_mlir.codegen.gpu.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.elements import load_elements
from kitsune_mlir.codegen.gpu.inline import fresh
from kitsune_mlir.codegen.gpu.memory import copy_async, offset, store
from kitsune_mlir.codegen.gpu.mma_operand import Operand
from kitsune_mlir.codegen.gpu.mma_order import ordered
from kitsune_mlir.codegen.gpu.mma_plan import MmaPlan
from kitsune_mlir.codegen.gpu.mma_ring import Stages
from kitsune_mlir.codegen.gpu.mma_split import Pieces
from kitsune_mlir.codegen.gpu.value import Value, bitcast, i64, select, vector
from kitsune_mlir.shared_tile import SharedTile

__all__ = ["Copier"]

BARRIER = 1
"""Named barrier of the copying threads."""
PIECE_BYTES = 16
"""What lies together in swizzled shared memory."""
STEP_BYTES = 32
"""What one instruction of the tensor cores reads of a row."""
ROWS = 2
"""Rows that a thread brings through its registers at a time."""


@dataclasses.dataclass(frozen=True)
class Copier:
    """Emits the producer; attributes as `mma_load.Loader`'s."""

    plan: MmaPlan
    task: TaskContext
    stages: Stages

    def run(self) -> None:
        """All tiles of the block; the plan's `copiers` threads."""
        slot = self.stages.ring.producer_start()
        self.task.for_each_piece(lambda tile, *state: self._piece(ordered(tile), *state), slot.values)

    def _piece(self, tile: TileContext, piece: Value, stage: Value, parity: Value) -> list[Value]:
        view = tile.task.view
        tile.resolve()
        if view.waits:
            if_(self.task.thread == 0, lambda: [tile.poll(wait) for wait in view.waits] and None)
            NamedBarrier(BARRIER, self.plan.copiers).sync()
        starts = [operand.window.start(tile) for operand in (self.plan.a, self.plan.b)]

        def chunk(index: Value, stage: Value, parity: Value) -> list[Value]:
            slot = Slot(stage, parity)
            self.stages.ring.empty(stage).wait(parity)
            self._copy(starts, slot, index)
            return self.stages.ring.next(slot).values

        return for_(*Pieces(self.plan, self.task).chunks(piece, self.plan.sum.chunks), 1, chunk, [stage, parity])

    def _copy(self, starts: list[Value], slot: Slot, chunk: Value) -> None:
        plan, stage, full = self.plan, self.stages.pointer(slot.stage), self.stages.ring.full(slot.stage)
        jobs = [
            self._job(plan.a, plan.a_tile, starts[0], stage, chunk),
            self._job(plan.b, plan.b_tile, starts[1], offset(stage, plan.a_tile.bytes), chunk),
        ]
        for job in jobs:
            job.copy()
        if any(job.asynchronous for job in jobs):
            # One arrival more is pending until this thread's copies so far are done.
            nvvm.cp_async_mbarrier_arrive(full.pointer.ir)
        full.arrive()

    def _job(self, operand: Operand, tile: SharedTile, start: Value, target: Value, chunk: Value) -> _Job:
        plan, window, order = self.plan, operand.window, self.plan.sum
        inner = chunk
        if order.outer:
            inner, rest = chunk % order.inner_chunks, chunk // order.inner_chunks
            for side, length in reversed(order.outer):
                start = offset(start, i64(rest % length) * (window.stride(side) * window.bytes))
                rest = rest // length
        used = tile.cols if operand.transposed else order.steps * (STEP_BYTES // window.bytes)
        return _Job(operand, tile, used, order.inner, start, target, inner * order.chunk, fresh(self.task.thread), plan.copiers)


@dataclasses.dataclass(frozen=True)
class _Job:
    """Copying one operand's chunk, by pieces.

    Attributes:
        operand, tile: what, and its layout in shared memory.
        used: columns of the tile that tensor cores read.
        inner: side and length of the innermost loop of the sum.
        start: pointer to the window's first element, moved along the outer loops.
        target: pointer to the tile in shared memory.
        first: of the inner loop, the chunk's first.
        thread: index of the thread.
        threads: that copy.
    """

    operand: Operand
    tile: SharedTile
    used: int
    inner: tuple[str, int]
    start: Value
    target: Value
    first: Value
    thread: Value
    threads: int

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return self.operand.window.bytes

    @property
    def width(self) -> int:
        """Elements that are neighbours in memory, lie inside or outside of the tile together, and are aligned together."""
        window, (inner, length) = self.operand.window, self.inner
        side, limit = (self.operand.side, self.operand.size) if self.operand.transposed else (inner, length)
        if window.stride(side) not in (0, 1):
            return 1
        return math.gcd(PIECE_BYTES // self.size, limit, window.align((side,)) // self.size)

    @property
    def asynchronous(self) -> bool:
        """Whether `cp.async` can copy the operand: 4 bytes at least that are neighbours in memory."""
        return self.width * self.size >= 4

    @property
    def piece(self) -> int:
        """Elements that are copied at a time."""
        return self.width if self.asynchronous else PIECE_BYTES // self.size

    def copy(self) -> None:
        """Copy the chunk: a warp goes over the tile by its lanes' pieces, in the direction in which memory runs."""
        tile, across = self.tile, self.used // self.piece
        warp, lane, warps = self.thread // 32, self.thread % 32, self.threads // 32
        emit = self._asynchronous if self.asynchronous else self._through_registers
        if self.upright:
            # Neighbouring lanes have neighbouring rows of the tile; warps have columns.
            for first in range(0, tile.rows, 32):
                row = lane + first
                each = functools.partial(self._guarded, emit, row) if tile.rows % 32 else functools.partial(emit, row)
                for_(warp, across, warps, lambda part, each=each: each(part * self.piece))
            return
        width = min(32, across & -across)  # lanes that share a row
        step = warps * (32 // width)
        for first in range(0, across, width):
            col = (lane % width + first) * self.piece
            if self.asynchronous or tile.rows % (ROWS * step):
                for_(warp * (32 // width) + lane // width, tile.rows, step, lambda row, col=col: emit(row, col))
            else:
                each = functools.partial(self._rows_through_registers, step, col)
                for_(warp * (32 // width) + lane // width, tile.rows, ROWS * step, each)

    @property
    def upright(self) -> bool:
        """Whether memory runs down the tile's rows."""
        return self.piece == 1 and not self.operand.transposed and self.operand.window.stride(self.operand.side) == 1

    def _guarded(self, emit: Callable[[Value, Value], None], row: Value, col: Value) -> None:
        if_(row < self.tile.rows, lambda: emit(row, col))

    def _asynchronous(self, row: Value, col: Value) -> None:
        pointer, inside = self._source(row, col)
        copy_async(offset(self.target, self.tile.offset(row, col)), pointer, self.width * self.size, inside)

    def _through_registers(self, row: Value, col: Value) -> None:
        self._put(row, col, self._fetch(row, col))

    def _rows_through_registers(self, step: int, col: Value, row: Value) -> None:
        """Rows `step` apart, all of them read before any is written: nothing waits for memory in between."""
        rows = [row + step * number for number in range(ROWS)]
        fetched = [self._fetch(row, col) for row in rows]
        for row, words in zip(rows, fetched, strict=True):
            self._put(row, col, words)

    def _fetch(self, row: Value, col: Value) -> list[Value]:
        words = []
        for element in range(self.piece):
            pointer, inside = self._source(row, col + element)
            loaded = load_elements(pointer, "i16", 1, constant=self.operand.window.constant)[0]
            words.append(select(inside, loaded, 0))
        return words

    def _put(self, row: Value, col: Value, words: list[Value]) -> None:
        store(bitcast(vector(words), "vector<4xi32>"), offset(self.target, self.tile.offset(row, col)))

    def _source(self, row: Value, col: Value) -> tuple[Value, Value]:
        """Where an element of the tile is in global memory, and whether it exists; if not, another that does."""
        operand, window, (inner, length) = self.operand, self.operand.window, self.inner
        # In the tile, the sum runs along the rows, or down the rows if the operand is transposed.
        along, summed = (col, row) if operand.transposed else (row, col)
        summed = summed + self.first
        inside = summed < length
        if operand.size < (self.tile.cols if operand.transposed else self.tile.rows):
            inside = inside & (along < operand.size)
        pointer = self.start
        for side, at in ((operand.side, along), (inner, summed)):
            pointer = offset(pointer, i64(at) * (window.stride(side) * window.bytes))
        return select(inside, pointer, self.start), inside
