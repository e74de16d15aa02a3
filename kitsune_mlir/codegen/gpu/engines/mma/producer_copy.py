"""The producer of a product whose operands TMA cannot load: some warps copy chunks into swizzled shared memory.

Where TMA loads all but some ranges of A (`mma.k_ranges`), they copy those, and only take part in the barriers of other chunks.
Rows of a table are copied from where their indices say, which a thread reads for the rows that it copies.
Pieces of 4, 8 or 16 bytes go by `cp.async`, which tells the stage's barrier when they have come, so many are in flight;
elements that are not aligned so (odd rows of 16-bit numbers) go through registers.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

from torch_mlir import ir
from torch_mlir.dialects import nvvm

from kitsune_mlir.codegen.gpu.contraction.split_k import Pieces
from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_
from kitsune_mlir.codegen.gpu.emit.inline_ptx import fresh
from kitsune_mlir.codegen.gpu.emit.memory import copy_async, offset, store
from kitsune_mlir.codegen.gpu.emit.value import Value, bitcast, i1, i64, minimum, select, vector
from kitsune_mlir.codegen.gpu.emit.vectors import load_elements
from kitsune_mlir.codegen.gpu.engines.mma.k_ranges import by_range
from kitsune_mlir.codegen.gpu.engines.mma.mainloop import Stages
from kitsune_mlir.codegen.gpu.engines.mma.operand import Operand
from kitsune_mlir.codegen.gpu.engines.mma.plan import MmaPlan
from kitsune_mlir.codegen.gpu.engines.mma.rasterize import ordered
from kitsune_mlir.codegen.gpu.interface.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.sm90.mbarrier import NamedBarrier, Slot
from kitsune_mlir.machine.shared_tile import SharedTile

__all__ = ["CopyProducer"]

BARRIER = 1
"""Named barrier of the copying threads."""
PIECE_BYTES = 16
"""What lies together in swizzled shared memory."""
STEP_BYTES = 32
"""What one instruction of the tensor cores reads of a row."""
SWIZZLED_ROWS = 8
"""Rows after which the order of a swizzled tile's pieces repeats."""
ROWS = 2
"""Rows that a thread brings through its registers at a time."""


@dataclasses.dataclass(frozen=True)
class CopyProducer:
    """Emits the producer; attributes as `mma.producer_tma.Loader`'s."""

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
        thread = self.task.thread - self.plan.first_copier
        if view.waits:
            if_(thread == 0, tile.poll_by_thread)
            NamedBarrier(BARRIER, self.plan.copiers).sync()
        a, b = [self._rows(tile, part) for part in range(max(1, len(self.plan.ranges)))], self._columns(tile)

        def chunk(index: Value, stage: Value, parity: Value) -> list[Value]:
            slot = Slot(stage, parity)
            self.stages.ring.empty(stage).wait(parity)
            by_range(self.plan.sum, index, lambda part: self._copy(a[part], b, slot, index, part))
            return self.stages.ring.next(slot).values

        return for_(*Pieces(self.plan, self.task).chunks(piece, self.plan.sum.chunks), 1, chunk, [stage, parity])

    def _rows(self, tile: TileContext, part: int) -> _Job | None:
        """What to copy of A's range `part` in a tile; None if TMA loads it."""
        plan, order = self.plan, self.plan.sum
        if plan.boxes is not None and plan.boxes[part] is not None:
            return None
        if not plan.ranges:
            return self._job(plan.a, plan.a_tile, plan.a.window.start(tile), order.inner[1])
        range_ = plan.ranges[part]
        operand = dataclasses.replace(plan.a, window=range_.window)
        gather = range_.gather
        number = None if gather is None else lambda row: gather.row(tile, minimum(row, operand.size - 1))
        job = self._job(operand, plan.a_tile, range_.window.start(tile), range_.length)
        return dataclasses.replace(job, number=number)

    def _columns(self, tile: TileContext) -> _Job | None:
        """What to copy of B in a tile; None if TMA loads it."""
        plan = self.plan
        if plan.boxes is not None:
            return None
        starts = tuple(start for start, _ in plan.sum.ranges)
        return self._job(plan.b, plan.b_tile, plan.b.window.start(tile), plan.sum.inner[1], starts)

    def _thread(self) -> Value:
        return fresh(self.task.thread - self.plan.first_copier)

    def _job(self, operand: Operand, tile: SharedTile, start: Value, length: int, starts: tuple[int, ...] = ()) -> _Job:
        used = tile.cols if operand.transposed else self.plan.sum.steps * (STEP_BYTES // operand.window.bytes)
        return _Job(operand, tile, used, (self.plan.sum.inner[0], length), start, self.plan.copiers, starts)

    def _copy(self, a: _Job | None, b: _Job | None, slot: Slot, chunk: Value, part: int) -> None:
        stage, full, order = self.stages.pointer(slot.stage), self.stages.ring.full(slot.stage), self.plan.sum
        inner = chunk - order.firsts[part] if order.ranges else chunk
        if order.outer:
            inner = chunk % order.inner_chunks
        first = inner * order.chunk
        begun = order.ranges[part][0] if order.ranges else 0
        jobs: list[_Job] = []
        for job, target, at in ((a, stage, first), (b, offset(stage, self.plan.a_tile.bytes), first + begun)):
            if job is not None:
                jobs.append(job)
                dataclasses.replace(job, start=self._moved(job, chunk)).copy(target, at, self._thread())
        if not any(job.asynchronous for job in jobs):
            full.arrive()
            return
        if not all(job.asynchronous for job in jobs):
            # What went through registers: the arrival below orders `cp.async` only.
            nvvm.memory_barrier(ir.Attribute.parse("#nvvm.mem_scope<cta>"))
        # The thread's one arrival, when its copies so far are done. A second one by itself would be an error to synccheck.
        nvvm.cp_async_mbarrier_arrive(full.pointer.ir, noinc=True)

    def _moved(self, job: _Job, chunk: Value) -> Value:
        """Where a job's window starts for a chunk: moved along the outer loops of the sum."""
        start, window, order = job.start, job.operand.window, self.plan.sum
        rest = chunk // order.inner_chunks if order.outer else chunk
        for side, length in reversed(order.outer):
            start = offset(start, i64(rest % length) * (window.stride(side) * window.bytes))
            rest = rest // length
        return start


@dataclasses.dataclass(frozen=True)
class _Job:
    """Copying one operand's chunk, by pieces.

    Attributes:
        operand, tile: what, and its layout in shared memory.
        used: columns of the tile that tensor cores read.
        inner: side and length of the innermost loop of the sum.
        start: pointer to the window's first element.
        threads: that copy.
        starts: terms of the sum that chunks may begin at, beside multiples of a chunk's length.
        number: emits which row of the table a row of the tile is; None where nothing is gathered.
    """

    operand: Operand
    tile: SharedTile
    used: int
    inner: tuple[str, int]
    start: Value
    threads: int
    starts: tuple[int, ...] = ()
    number: Callable[[Value], Value] | None = None

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return self.operand.window.bytes

    @property
    def elements(self) -> int:
        """Elements that are neighbours in memory, lie inside or outside of the tile together, and are aligned together."""
        window, (inner, length) = self.operand.window, self.inner
        side, limit = (self.operand.side, self.operand.size) if self.operand.transposed else (inner, length)
        if window.stride(side) not in (0, 1):
            return 1
        starts = (0,) if self.operand.transposed else self.starts
        return math.gcd(PIECE_BYTES // self.size, limit, window.align((side,)) // self.size, *starts)

    @property
    def asynchronous(self) -> bool:
        """Whether `cp.async` can copy the operand: 4 bytes at least that are neighbours in memory."""
        return self.elements * self.size >= 4

    @property
    def piece(self) -> int:
        """Elements that are copied at a time."""
        return self.elements if self.asynchronous else PIECE_BYTES // self.size

    @property
    def across(self) -> int:
        """Pieces of a row."""
        return self.used // self.piece

    @property
    def width(self) -> int:
        """Lanes that share a row."""
        return min(32, self.across & -self.across)

    def _rows_of(self, thread: Value) -> list[Value]:
        """The rows of the tile that a thread copies pieces of, where lanes go along rows; the last may be beyond the tile."""
        warp, lane, per_warp = thread // 32, thread % 32, 32 // self.width
        first, step = warp * per_warp + lane // self.width, self.threads // self.width
        return [first + number * step for number in range(-(-self.tile.rows // step))]

    def copy(self, target: Value, first: Value, thread: Value) -> None:
        """Copy a chunk: a warp goes over the tile by its lanes' pieces, in the direction in which memory runs.

        Args:
            target: pointer to the tile in shared memory.
            first: of the inner loop, the chunk's first.
            thread: index of the thread among those that copy.
        """
        chunk = _Chunk(self, target, first)
        tile, across, width = self.tile, self.across, self.width
        warp, lane, warps = thread // 32, thread % 32, self.threads // 32
        emit = chunk.asynchronous if self.asynchronous else chunk.through_registers
        if self.number is not None:
            # In registers for all chunks the rows' numbers would be too many; they are in L1.
            rows = self._rows_of(thread)
            for row, number in zip(rows, [self.number(row) for row in rows], strict=True):
                for start in range(0, across, width):
                    col = (lane % width + start) * self.piece
                    each = functools.partial(emit, row, col, number)
                    each() if tile.rows % (self.threads // width) == 0 else if_(row < tile.rows, each)
            return
        if self.upright:
            # Neighbouring lanes have neighbouring rows of the tile; warps have columns.
            for start in range(0, tile.rows, 32):
                row = lane + start
                each = functools.partial(self._guarded, emit, row) if tile.rows % 32 else functools.partial(emit, row)
                for_(warp, across, warps, lambda part, each=each: each(part * self.piece))
            return
        step = self.threads // width
        for start in range(0, across, width):
            col = (lane % width + start) * self.piece
            begin = warp * (32 // width) + lane // width
            if self.asynchronous:
                chunk.rows_asynchronously(begin, step, col)
            elif tile.rows % (ROWS * step):
                for_(begin, tile.rows, step, lambda row, col=col: emit(row, col))
            else:
                for_(begin, tile.rows, ROWS * step, functools.partial(chunk.rows_through_registers, step, col))

    @property
    def upright(self) -> bool:
        """Whether memory runs down the tile's rows."""
        return self.piece == 1 and not self.operand.transposed and self.operand.window.stride(self.operand.side) == 1

    def _guarded(self, emit: Callable[[Value, Value], None], row: Value, col: Value) -> None:
        if_(row < self.tile.rows, lambda: emit(row, col))


@dataclasses.dataclass(frozen=True)
class _Chunk:
    """One chunk of a job; `target` and `first` as in `_Job.copy`. Rows and columns are the tile's.

    Rows of a table have a `number` there, which is not the row's in the tile.
    """

    job: _Job
    target: Value
    first: Value

    def asynchronous(self, row: Value, col: Value, number: Value | None = None) -> None:
        """Start to copy a piece."""
        job = self.job
        pointer, inside = self._source(row, col, number)
        copy_async(self._place(row, col), pointer, job.elements * job.size, inside)

    def rows_asynchronously(self, begin: Value, step: int, col: Value) -> None:
        """Start to copy a piece of every `step`-th row from `begin` (which is below `step`) on.

        Addresses are found for as many rows as the swizzle takes to repeat; others are constants away from these, which
        instructions hold, so that one is all that most copies are.
        """
        job, tile = self.job, self.job.tile
        period = SWIZZLED_ROWS // math.gcd(SWIZZLED_ROWS, step)
        rows = [begin + step * number for number in range(period)]
        places = [self._place(row, col) for row in rows]
        operand, window, (inner, _) = job.operand, job.operand.window, job.inner
        apart = window.stride(inner if operand.transposed else operand.side) * window.bytes * step
        first = self._pointer(begin, col, None)

        def copy(number: int) -> None:
            place = offset(places[number % period], (number - number % period) * step * tile.swizzle)
            pointer, inside = offset(first, number * apart), self._inside(begin + step * number, col)
            if inside is not None:
                pointer = select(inside, pointer, job.start)
            copy_async(place, pointer, job.elements * job.size, inside)

        count = -(-tile.rows // step)
        for number in range(count):
            each = functools.partial(copy, number)
            each() if (number + 1) * step <= tile.rows else if_(begin + step * number < tile.rows, each)

    def through_registers(self, row: Value, col: Value, number: Value | None = None) -> None:
        """Copy a piece element by element."""
        self._put(row, col, self._fetch(row, col, number))

    def rows_through_registers(self, step: int, col: Value, row: Value) -> None:
        """Rows `step` apart, all of them read before any is written: nothing waits for memory in between."""
        rows = [row + step * number for number in range(ROWS)]
        fetched = [self._fetch(row, col) for row in rows]
        for row, words in zip(rows, fetched, strict=True):
            self._put(row, col, words)

    def _fetch(self, row: Value, col: Value, number: Value | None = None) -> list[Value]:
        words = []
        for element in range(self.job.piece):
            pointer, inside = self._source(row, col + element, number)
            loaded = load_elements(pointer, "i16", 1, constant=self.job.operand.window.constant)[0]
            words.append(select(inside, loaded, 0))
        return words

    def _put(self, row: Value, col: Value, words: list[Value]) -> None:
        store(bitcast(vector(words), "vector<4xi32>"), self._place(row, col))

    def _place(self, row: Value, col: Value) -> Value:
        return offset(self.target, self.job.tile.offset(row, col))

    def _source(self, row: Value, col: Value, number: Value | None) -> tuple[Value, Value]:
        """Where an element of the tile is in global memory, and whether it exists; if not, another that does."""
        inside, pointer = self._inside(row, col), self._pointer(row, col, number)
        return (pointer, i1(True)) if inside is None else (select(inside, pointer, self.job.start), inside)

    def _places(self, row: Value, col: Value) -> tuple[Value, Value]:
        """An element's place along the operand's side, and along the sum (down the rows of a tile of a transposed operand)."""
        along, summed = (col, row) if self.job.operand.transposed else (row, col)
        return along, summed + self.first

    def _inside(self, row: Value, col: Value) -> Value | None:
        """Whether an element exists; None where all do."""
        job, operand, (_, length) = self.job, self.job.operand, self.job.inner
        along, summed = self._places(row, col)
        sides, chunk = (job.tile.cols, job.tile.rows) if operand.transposed else (job.tile.rows, job.tile.cols)
        inside = None if math.gcd(length, *job.starts) % chunk == 0 else summed < length
        if operand.size < sides:
            inside = along < operand.size if inside is None else inside & (along < operand.size)
        return inside

    def _pointer(self, row: Value, col: Value, number: Value | None) -> Value:
        """Where an element would be in global memory."""
        job, window, pointer = self.job, self.job.operand.window, self.job.start
        along, summed = self._places(row, col)
        for side, at in ((job.operand.side, along if number is None else number), (job.inner[0], summed)):
            pointer = offset(pointer, i64(at) * (window.stride(side) * window.bytes))
        return pointer
