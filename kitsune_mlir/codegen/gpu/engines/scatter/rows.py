"""A block combines rows of memory by lists of their numbers: a list for each row of the result, one after the other.

A short list is one of a few lanes, each of which has a vector of the row, with several rows on their way. A long list is the
whole block's: all threads bring rows to shared memory, where each element has a thread that adds it; the next rows are on their
way meanwhile, in registers.
"""

from __future__ import annotations

import dataclasses

from kitsune_mlir.codegen.gpu.contraction.combination import combined
from kitsune_mlir.codegen.gpu.emit.control_flow import ballot, count_bits, for_, if_, lane_id, sync_block, while_
from kitsune_mlir.codegen.gpu.emit.memory import load, offset
from kitsune_mlir.codegen.gpu.emit.value import Value, constant, i32, i64, minimum, select
from kitsune_mlir.codegen.gpu.emit.vectors import dtype_bytes, load_elements, store_elements
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.dialects.scatter_kinds import ASSIGN
from kitsune_mlir.dialects.tile_records import Buffer, Load

__all__ = ["STAGE_BYTES", "RowSums"]

SOURCES = 8
"""Rows in flight that are added to one row."""
LONG = 64
"""Entries of a list from which on it is the whole block's."""
VECTORS = 4
"""Vectors of 16 bytes that a thread has on their way for a long list."""
STAGE_BYTES = 16384
"""Of the rows of a long list that are added together: what 256 threads bring at a time."""
MOST_BYTES = 1024
"""Of a row, of which a long list adds so much at a time."""


@dataclasses.dataclass(frozen=True)
class RowSums:
    """How rows are combined: added, by most words here.

    Attributes:
        kind: as `kitsune.ordered_scatter` has it; with `assign` the last row of a list is all of it.
        updates: rows that are added.
        start: what they are added to: rows in memory, or a number.
        result: where sums are stored.
        columns: elements of a row.
        width: elements of one access to a row.
        register: type in which elements are added.
        threads: of the block, that work: 256.
    """

    kind: str
    updates: Buffer
    start: Load | float
    result: Buffer
    columns: int
    width: int
    register: str
    threads: int

    @property
    def dtype(self) -> str:
        """Type of an element in memory."""
        dtype = str(self.result.element)
        return "i8" if dtype == "i1" else dtype

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return dtype_bytes(self.dtype)

    def emit(
        self, tile: TileContext, starts: Value, sources: Value, stage: Value, first: Value, rows: Value, fresh: Value
    ) -> None:
        """Add up all lists; all threads of the block call it, and meet at its end.

        Args:
            starts: pointer to shared memory: where the list of each row starts, and where the last one ends, i32.
            sources: pointer to shared memory: the lists' entries, i32.
            stage: pointer to `STAGE_BYTES` of shared memory, aligned to 16.
            first, rows: of the result: the first, and how many.
            fresh: whether (i1) sums start from `start`; else from what the result has.
        """
        lists = _Lists(self, tile, starts, sources, stage, first, fresh)
        thread = tile.task.thread
        vectors = self.columns // self.width
        lanes = min(32, 1 << (vectors - 1).bit_length())

        def short(row: Value) -> None:
            begin, end = lists.of(row)
            # A row to which nothing is added is only written at first.
            wanted = (end - begin < LONG) & (fresh | (end > begin))
            if_(wanted, lambda: for_(thread % lanes, vectors, lanes, lambda vector: lists.add(row, begin, end, vector)))

        if_(thread < self.threads, lambda: for_(thread // lanes, rows, self.threads // lanes, short))

        def some(group: Value) -> None:
            begin, end = lists.of(minimum(group + lane_id(thread), rows - 1))
            long = (end - begin >= LONG) & (group + lane_id(thread) < rows)

            def next_(left: Value) -> Value:
                # The lowest bit that is set: every warp takes the same rows in the same order.
                low = left & (i32(0) - left)
                lists.add_long(group + count_bits(low - 1))
                return left ^ low

            while_([ballot(long)], lambda left: left != 0, next_)

        for_(0, rows, 32, some)
        sync_block()


@dataclasses.dataclass(frozen=True)
class _Lists:
    """The lists of a bin, while the code that adds them up is emitted."""

    plan: RowSums
    tile: TileContext
    starts: Value
    sources: Value
    stage: Value
    first: Value
    fresh: Value

    def of(self, row: Value) -> tuple[Value, Value]:
        """Where a row's list starts and ends."""
        begin, end = (load(offset(self.starts, row * 4 + 4 * one), "i32") for one in (0, 1))
        if self.plan.kind == ASSIGN:
            begin = select(begin < end, end - 1, begin)
        return begin, end

    def add(self, row: Value, begin: Value, end: Value, vector: Value) -> None:
        """Add up a vector of a row."""
        plan = self.plan
        inside = i64(vector) * (plan.width * plan.size)
        memory = offset(self.tile.pointer(plan.updates), inside)
        align = plan.width * plan.size

        def some(at: Value, *sums: Value) -> list[Value]:
            found = []
            for number in range(SOURCES):
                source = load(offset(self.sources, minimum(at + number, end - 1) * 4), "i32")
                place = offset(memory, i64(source) * (plan.columns * plan.size))
                found.append(load_elements(place, plan.dtype, plan.width, plan.register, align=align))
            for number, values in enumerate(found):
                exists = at + number < end
                sums = tuple(
                    select(exists, combined(plan.kind, sum, value), sum) for sum, value in zip(sums, values, strict=True)
                )
            return list(sums)

        sums = for_(begin, end, SOURCES, some, self._old(row, inside, plan.width))
        store_elements(sums, self._place(row, inside), plan.dtype, align=align)

    def add_long(self, row: Value) -> None:
        """Add up a row by all threads."""
        plan, thread = self.plan, self.tile.task.thread
        begin, end = self.of(row)
        width_bytes = plan.width * plan.size
        vectors = plan.columns // plan.width
        many = min(vectors, max(1, MOST_BYTES // width_bytes))  # vectors of a row at a time
        rows = VECTORS * plan.threads // many  # of a stage
        elements = many * plan.width
        memory = self.tile.pointer(plan.updates)

        def columns(first: Value) -> None:
            """Add up vectors `first` to `first + many`."""
            wide = minimum(i32(vectors) - first, many)

            def bring(at: Value) -> list[Value]:
                found = []
                for number in range(VECTORS):
                    place = thread + number * plan.threads
                    entry = minimum(at + place // many, end - 1)
                    vector = minimum(place % many, wide - 1) + first
                    source = load(offset(self.sources, entry * 4), "i32")
                    where = i64(source) * (plan.columns * plan.size) + i64(vector) * width_bytes
                    found += load_elements(offset(memory, where), plan.dtype, plan.width, align=width_bytes)
                return found

            def keep(values: list[Value]) -> None:
                for number in range(VECTORS):
                    place = thread + number * plan.threads
                    piece = values[number * plan.width : (number + 1) * plan.width]
                    if_(
                        (thread < plan.threads) & (place < rows * many),
                        lambda place=place, piece=piece: store_elements(
                            piece, offset(self.stage, place * width_bytes), plan.dtype, align=width_bytes
                        ),
                    )

            each = -(-elements // plan.threads)
            mine = [thread + number * plan.threads for number in range(each)]
            olds = [i64(first) * width_bytes + i64(minimum(one, wide * plan.width - 1)) * plan.size for one in mine]
            sums = [value for place in olds for value in self._old(row, place, 1)]

            def stage(at: Value, *carried: Value) -> list[Value]:
                sums, values = list(carried[:each]), list(carried[each:])
                sync_block()
                keep(values)
                sync_block()
                values = bring(at + rows)

                def add(entry: Value, *sums: Value) -> list[Value]:
                    place = offset(self.stage, entry * (many * width_bytes))
                    found = [
                        load_elements(offset(place, minimum(one, elements - 1) * plan.size), plan.dtype, 1, plan.register)[0]
                        for one in mine
                    ]
                    return [combined(plan.kind, sum, value) for sum, value in zip(sums, found, strict=True)]

                return [*for_(0, minimum(end - at, rows), 1, add, sums), *values]

            sums = for_(begin, end, rows, stage, [*sums, *bring(begin)])[:each]
            for one, place, sum in zip(mine, olds, sums, strict=True):
                if_(
                    (thread < plan.threads) & (one < wide * plan.width),
                    lambda place=place, sum=sum: store_elements([sum], self._place(row, place), plan.dtype),
                )

        for_(0, vectors, many, columns)

    def _place(self, row: Value, inside: Value) -> Value:
        """Where a row of the result is, and `inside` bytes further."""
        start = i64(self.first + row) * (self.plan.columns * self.plan.size)
        return offset(self.tile.pointer(self.plan.result), start + inside)

    def _old(self, row: Value, inside: Value, width: int) -> list[Value]:
        """What the sums of `width` elements start from."""
        plan, align = self.plan, width * self.plan.size

        def read(pointer: Value) -> list[Value]:
            return load_elements(pointer, plan.dtype, width, plan.register, align=align)

        def before() -> list[Value]:
            return read(self._place(row, inside))

        if not isinstance(plan.start, Load):
            number = constant(plan.start, plan.register)
            return if_(self.fresh, lambda: [number] * width, before, types=[plan.register] * width)
        start = i64(self.first + row) * (plan.columns * plan.size)
        old = offset(self.tile.pointer(plan.start.buffer), start + inside)
        return if_(self.fresh, lambda: read(old), before, types=[plan.register] * width)
