"""The `ordered` engine: rows added at indices (or combined otherwise) in the order of the rows, so that results are the same
bits on every run.

The task's one tile is shared by all blocks (`interface/split.py`), each of which does a part of the indices, then some *bins*:
ranges of rows of the result.

    sort     each block sorts its part of the indices by bin, keeping their order, and leaves them in memory
    (`interface.stable_sort`) meet     all parts are there collect  a block brings what all parts have for its bin to shared
    memory, in order, and sorts it by row add      some lanes for each row of the bin add up its rows, several in flight
    (`scatter.rows`)

Every index is looked at by one block, twice. A bin that has more entries than fit takes several rounds of the last two steps;
16-bit floats are added in f32 and rounded once a round.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_, sync_block, while_
from kitsune_mlir.codegen.gpu.emit.memory import load, offset, store
from kitsune_mlir.codegen.gpu.emit.value import Value, cast, i32, i64, minimum, select, unpack, vector
from kitsune_mlir.codegen.gpu.emit.vectors import dtype_bytes
from kitsune_mlir.codegen.gpu.engines.scatter.rows import STAGE_BYTES, RowSums
from kitsune_mlir.codegen.gpu.interface.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.interface.engine import Engine
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions, Plan
from kitsune_mlir.codegen.gpu.interface.split import Split
from kitsune_mlir.codegen.gpu.interface.split_exchange import SplitExchange
from kitsune_mlir.codegen.gpu.interface.stable_sort import StableSort, prefix_sums
from kitsune_mlir.codegen.gpu.interface.traits import Traits
from kitsune_mlir.codegen.gpu.interface.window import BASE_ALIGN
from kitsune_mlir.dialects.scatter_kinds import ASSIGN
from kitsune_mlir.dialects.tile_records import Load, TaskView
from kitsune_mlir.machine.rates import ENGINES

__all__ = ["OrderedEngine"]

THREADS = 256
ENTRIES = 4096  # of a bin that are added in one round
KEYS = 2048  # rows of a bin, and bins, where that is enough for all rows
MOST_KEYS = 4096
SUMS = {"bf16": "f32", "f16": "f32", "f32": "f32", "f64": "f64", "i32": "i32", "i64": "i64"}
"""Types of rows that are added, and what they are added in."""
ASSIGNED = {**SUMS, "i1": "i8", "i8": "i8", "i16": "i16"}
"""Types of rows that are assigned, and those of their elements in registers."""


@dataclasses.dataclass(frozen=True)
class _Sum:
    """A `kitsune.ordered_scatter`.

    Attributes:
        sums: how rows are added.
        indices: where to.
        pieces: blocks that do it.
        bins, rows: how many bins there are, and rows of the result in each but the last ones.
    """

    sums: RowSums
    indices: Load
    pieces: int
    bins: int
    rows: int

    @property
    def count(self) -> int:
        """Rows that are added."""
        return math.prod(self.indices.sizes)

    @property
    def part(self) -> int:
        """Indices of a block."""
        return -(-self.count // self.pieces)

    @property
    def by_bin(self) -> StableSort:
        """How a part of the indices is sorted."""
        return StableSort(self.bins, THREADS)

    @property
    def by_row(self) -> StableSort:
        """How a bin is."""
        return StableSort(self.rows, THREADS)

    @property
    def table(self) -> int:
        """Bytes before the table: where each bin starts in each part. Before it are the parts: source and row of each entry."""
        return 8 * self.part * self.pieces

    @property
    def bytes(self) -> int:
        """Of what blocks leave for each other."""
        return self.table + 4 * self.pieces * (self.bins + 1)

    @property
    def collected(self) -> int:
        """Bytes of shared memory before a bin's entries; their sources in order, and rows on their way, follow."""
        sort = max(self.by_bin.shared_bytes, self.by_row.shared_bytes)
        return -(-(sort + 4 * (2 * self.pieces + 1 + THREADS // 32)) // 16) * 16

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return self.collected + 12 * ENTRIES + STAGE_BYTES


class OrderedEngine(Engine):
    """See the module's docstring."""

    name: ClassVar[str] = "ordered"
    traits: ClassVar[Traits] = Traits(ENGINES["ordered"], row_updates="ordered")

    def plan(self, task: TaskView, options: KernelOptions) -> Plan | Decline:
        found = _read(task, min(options.workers, THREADS))
        if isinstance(found, str):
            return Decline(self.name, found)
        shared = found.shared_bytes
        if shared > options.shared_bytes:
            return Decline(self.name, f"{found.rows} rows of a bin need {shared} bytes of shared memory")
        parameters = {"pieces": found.pieces, "bins": found.bins, "rows": found.rows, "width": found.sums.width}
        split = Split(found.pieces, found.bytes, 1, found.pieces, spread=True)
        return Plan(
            self.name,
            task,
            shared_bytes=shared,
            threads=THREADS,
            registers=96,
            parameters=parameters,
            split=split,
            private=found,
        )

    def emit(self, plan: Plan, task: TaskContext) -> None:
        def piece(tile: TileContext, number: Value) -> None:
            tile.resolve()
            tile.wait()
            _Piece(plan.private, tile, number).emit()

        task.for_each_piece(piece)


def _read(task: TaskView, pieces: int) -> _Sum | str:
    """The ordered sum that a task consists of; a reason where it is none that this engine does."""
    work = [op for op in task.work() if op.name not in ("tensor.empty", "linalg.fill")]
    if len(work) != 1 or work[0].name != "kitsune.ordered_scatter" or len(task.stores) != 1 or len(task.grid) != 1:
        return "the task is no ordered scatter alone"
    op, store_ = work[0], task.stores[0]
    updates, indices = (task.load_of(value) for value in list(op.operands)[1:3])
    if updates is None or indices is None or store_.tensor != op.results[0]:
        return "the rows are computed in the task"
    start = _start(task, op.operands[0])
    if start is None:
        return "what they are combined with is computed in the task"
    dtype = str(store_.buffer.element)
    columns = math.prod(store_.sizes[1:])
    whole = (updates, store_, *([start] if isinstance(start, Load) else []))
    kind = ir.StringAttr(op.attributes["kind"]).value
    registers = ASSIGNED if kind == ASSIGN else SUMS
    if dtype not in registers or any(part.sizes != part.buffer.shape for part in whole):
        return f"parts of rows or of the result, or rows of {dtype}, are put there"
    total = store_.buffer.shape[0]
    rows = -(-total // pieces)
    if rows > KEYS:
        bins = max(KEYS, -(-total // MOST_KEYS))
        rows = -(-total // bins)
    bins = -(-total // rows)
    if max(bins, rows) > MOST_KEYS:
        return f"there are {total} rows; {MOST_KEYS * MOST_KEYS} are possible"
    buffers = [part.buffer.offset for part in whole]
    align = math.gcd(16, BASE_ALIGN, columns * dtype_bytes(dtype), *buffers)
    width = max(1, align // dtype_bytes(dtype))
    sums = RowSums(kind, updates.buffer, start, store_.buffer, columns, width, registers[dtype], THREADS)
    return _Sum(sums, indices, pieces, bins, rows)


def _start(task: TaskView, value: ir.Value) -> Load | float | None:
    """What a sum starts from: rows in memory, or a number; None for anything else."""
    if (found := task.load_of(value)) is not None:
        return found
    op = value.owner
    if isinstance(op, ir.Block) or op.name != "linalg.fill":
        return None
    maker = op.operands[0].owner
    if isinstance(maker, ir.Block) or maker.name != "arith.constant":
        return None
    attribute = maker.attributes["value"]
    if isinstance(attribute, ir.FloatAttr):
        return ir.FloatAttr(attribute).value
    number = ir.IntegerAttr(attribute)
    return abs(int(number.value)) if str(number.type) == "i1" else number.value


class _Piece:
    """Emits what one block does."""

    def __init__(self, sum_: _Sum, tile: TileContext, number: Value):
        self.sum, self.tile, self.number = sum_, tile, number
        task = tile.task
        self.thread, self.shared = task.thread, task.shared
        assert task.partials is not None
        self.partials = task.partials
        self.total = sum_.sums.result.shape[0]

    def emit(self) -> None:
        """All steps."""
        exchange = SplitExchange(self.tile.task, lambda: self.thread == 0, sync_block)
        exchange.claim()
        self._sort()
        exchange.announce(self.tile.number)
        exchange.wait(self.tile.number, self.sum.pieces)
        for_(self.number, self.sum.bins, self.sum.pieces, self._bin)

        def finish() -> None:
            exchange.counters.post(i32(exchange.slot.read))
            self.tile.post(self.sum.pieces)

        if_(self.thread == 0, finish)
        sync_block()

    def _entry(self, part: Value, number: Value) -> Value:
        """Where a part's entry is: its source and its row, i32 each."""
        return offset(self.partials, (i64(part) * self.sum.part + i64(number)) * 8)

    def _in_table(self, part: Value, bin: Value) -> Value:
        """Where the table says at which entry of a part a bin starts."""
        return offset(self.partials, (i64(part) * (self.sum.bins + 1) + i64(bin)) * 4 + self.sum.table)

    def _sort(self) -> None:
        """Sort the block's part of the indices by bin. Indices of no row are left out."""
        indices, dtype = self.sum.indices, str(self.sum.indices.buffer.element)
        memory = self.tile.pointer(indices.buffer)
        if indices.offsets[0] != 0:
            memory = offset(memory, i64(self.tile.index(indices.offsets[0])) * (indices.buffer.strides[0] * dtype_bytes(dtype)))
        start = self.number * self.sum.part
        count = minimum(i32(self.sum.count) - start, self.sum.part)

        def entry(number: Value) -> list[Value]:
            source = start + number
            row = cast(load(offset(memory, i64(source) * dtype_bytes(dtype)), dtype), "i64")
            here = row.below(i64(self.total))
            row = cast(row, "i32")
            return [select(here, row // self.sum.rows, -1), source, row]

        def put(place: Value, values: Sequence[Value]) -> None:
            store(vector(values[1:]), self._entry(self.number, place))

        self.sum.by_bin.emit(self.shared, self.thread, count, entry, put)

        def note(bin: Value) -> None:
            store(load(offset(self.shared, bin * 4), "i32"), self._in_table(self.number, bin))

        for_(self.thread, self.sum.bins + 1, self.tile.task.threads, note)
        sync_block()

    def _bin(self, bin: Value) -> None:
        """Add all that belongs to a bin, in rounds."""
        pieces = self.sum.pieces
        places = offset(self.shared, max(self.sum.by_bin.shared_bytes, self.sum.by_row.shared_bytes))
        begins = offset(places, 4 * (pieces + 1))
        sums = offset(begins, 4 * pieces)
        part = minimum(self.thread, pieces - 1)
        begin, end = (load(self._in_table(part, bin + one), "i32") for one in (0, 1))
        counted = select(self.thread < pieces, end - begin, 0)
        before, total = prefix_sums(counted, self.thread, sums, THREADS)

        def note() -> None:
            store(before, offset(places, self.thread * 4))
            store(begin, offset(begins, self.thread * 4))

        if_(self.thread < pieces, note)
        sync_block()
        first = bin * self.sum.rows
        rows = minimum(i32(self.total) - first, self.sum.rows)
        collected = offset(self.shared, self.sum.collected)
        sources, stage = offset(collected, 8 * ENTRIES), offset(collected, 12 * ENTRIES)

        def part_of(at: Value) -> Value:
            """The part that has the entry: the last one that starts there or before."""
            low = i32(0)
            for step in reversed([1 << n for n in range((pieces - 1).bit_length())]):
                other = minimum(low + step, pieces - 1)
                low = select(load(offset(places, other * 4), "i32") <= at, other, low)
            return low

        def round_(done: Value) -> Value:
            count = minimum(total - done, ENTRIES)

            def collect(number: Value) -> None:
                part = part_of(done + number)
                inside = done + number - load(offset(places, part * 4), "i32") + load(offset(begins, part * 4), "i32")
                source, row = unpack(load(self._entry(part, inside), "vector<2xi32>"))
                store(vector([source, row - first]), offset(collected, number * 8))

            for_(self.thread, count, self.tile.task.threads, collect)
            sync_block()

            def entry(number: Value) -> list[Value]:
                source, key = unpack(load(offset(collected, number * 8), "vector<2xi32>"))
                return [key, source]

            def put(place: Value, values: Sequence[Value]) -> None:
                store(values[1], offset(sources, place * 4))

            self.sum.by_row.emit(self.shared, self.thread, count, entry, put)
            self.sum.sums.emit(self.tile, self.shared, sources, stage, first, rows, done == 0)
            return done + ENTRIES

        while_([i32(-1)], lambda done: (done < 0) | (done < total), lambda done: round_(select(done < 0, 0, done)))
