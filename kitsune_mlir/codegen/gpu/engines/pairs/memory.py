"""What the `pairs` engine moves: rows from memory, the table of columns, the result.

A table has, for every column of the result, where the first sample has it in shared memory; so stores are the same for columns
from memory, picked products and zeros. Products of all samples lie behind everything else. Of the result, what does not depend
on late vectors may be stored before these are there.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.contraction.gather import indices_read
from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_
from kitsune_mlir.codegen.gpu.emit.memory import copy_async, copy_async_commit, copy_async_wait, load, offset, store
from kitsune_mlir.codegen.gpu.emit.value import Value, bitcast, i32, i64, minimum, select, unpack, vector
from kitsune_mlir.codegen.gpu.emit.vectors import load_elements, store_elements
from kitsune_mlir.codegen.gpu.engines.pairs.plan import PIECE, PairsPlan, row_align
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.codegen.gpu.interface.thread_group import ThreadGroup
from kitsune_mlir.codegen.gpu.sm90 import tma
from kitsune_mlir.dialects.access import affine_maps, plain_loops
from kitsune_mlir.dialects.pairs import Vectors
from kitsune_mlir.dialects.sizes import element_bytes
from kitsune_mlir.dialects.tile_records import Load, Store

__all__ = ["PairsMemory"]

BATCH = 4
"""Copies that a thread starts one after the other."""


class PairsMemory:
    """Emits the parts of a tile that move data, by the threads of a group."""

    def __init__(self, plan: PairsPlan, tile: TileContext, group: ThreadGroup):
        self.plan, self.pairs, self.tile, self.task = plan, plan.pairs, tile, tile.task
        self.group, self.thread, self.threads = group, group.thread, group.threads

    # --- what comes from memory -----------------------------------------------------------------------------------------

    def fetch_early(self) -> None:
        """Start bulk copies of the rows that are gathered before the waits; the barrier tells when they are there."""
        row_bytes = self.pairs.width * 2
        barrier, count = self.task.barriers[0], self.plan.samples * sum(part.count for part in self.plan.early)
        if_(self.thread == 0, lambda: barrier.arrive_and_expect(row_bytes * count))
        for part, item, exists, place in self._all_gathered(self.plan.early):
            table, target = self.plan.loads[part.extract.operands[0]], offset(self.task.shared, self._target(part, item))
            source = offset(self.tile.pointer(table.buffer), place)
            if_(exists, functools.partial(tma.load_span, target, source, row_bytes, barrier))

    def _target(self, part: Vectors, item: Value) -> Value:
        """Where vector `item` of a part, counted through the samples, is in shared memory."""
        before = sum(other.count for other in self.pairs.vectors[: self.pairs.vectors.index(part)])
        return self._sample(item // part.count) + (item % part.count + before) * self.pairs.vector_bytes

    def copy_vectors(self, parts: Sequence[Vectors]) -> None:
        """Start the copies of some of the vectors of all samples. All threads call it.

        Where gathered rows are is found out first, by as many threads as there are rows, so that indices are read at once.
        """
        gathers = [part for part in parts if part.gather is not None]
        for part, item, exists, place in self._all_gathered(gathers):
            if_(exists, functools.partial(store, place, self._found(part, item), 8))
        if gathers:
            self.group.sync()
        for part in parts:
            source, target = functools.partial(self._vector, part), functools.partial(self._target, part)
            self._copy_rows(self.plan.samples * part.count, self.pairs.width // PIECE, source, target)

    def _vector(self, part: Vectors, item: Value) -> Value:
        """Pointer to vector `item` of the tile's, counted through the samples."""
        if part.gather is None:
            record = self.plan.loads[part.value]
            return self._element(record, 3, [item // part.count, item % part.count, i32(0)])
        table = self.plan.loads[part.extract.operands[0]]
        return offset(self.tile.pointer(table.buffer), load(self._found(part, item), "i64", 8))

    def _found(self, part: Vectors, item: Value) -> Value:
        """Where the place of a gathered vector is kept."""
        gathers = [other for other in self.pairs.vectors if other.gather is not None]
        before = sum(other.count for other in gathers[: gathers.index(part)]) * self.plan.samples
        return offset(self.task.shared, (item + before) * 8 + self.plan.places_at)

    def copy_columns(self) -> None:
        """Start the copies of columns that come from memory."""
        for number, part in enumerate(self.pairs.columns):
            if part.kind != "rows" or self.plan.makes(part.value):
                continue
            record = self.plan.loads[part.value]

            def target(item: Value, place: int = self.pairs.column_at(number)) -> Value:
                return self._sample(item) + place

            source = functools.partial(self._element, record, 2)
            self._copy_rows(self.plan.samples, part.width // PIECE, lambda item, read=source: read([item, i32(0)]), target)

    def _copy_rows(self, rows: int, pieces: int, source: Callable[[Value], Value], target: Callable[[Value], Value]) -> None:
        """Copy rows of `pieces` times 16 bytes: neighbouring threads have neighbouring pieces."""
        together = self.threads // pieces
        row, piece = self.thread // pieces, self.thread % pieces

        def batch(first: Value) -> None:
            items = [first + together * number for number in range(BATCH)]
            starts = [source(minimum(item, rows - 1)) for item in items]
            for item, start in zip(items, starts, strict=True):
                place = offset(self.task.shared, target(item) + piece * 16)
                if_(item < rows, functools.partial(copy_async, place, offset(start, piece * 16)))

        if_(row < together, lambda: for_(row, rows, together * BATCH, batch) and None)

    def _all_gathered(self, parts: Sequence[Vectors]) -> list[tuple[Vectors, Value, Value, Value]]:
        """Of parts' vectors those that the thread looks up: (part, item, whether it exists, `_gathered`).

        All indices are on their way before the first is used.
        """
        found = []
        for part in parts:
            count = self.plan.samples * part.count
            for first in range(0, count, self.threads):
                item = self.thread + first
                found.append((part, item, item < count, self._gathered(part, minimum(item, count - 1))))
        return found

    def _gathered(self, part: Vectors, item: Value) -> Value:
        """Bytes from the start of a table to the row that is vector `item`, i64."""
        assert part.gather is not None
        at = [item // part.count, item % part.count, i32(0)]
        return self._bytes(self.plan.loads[part.extract.operands[0]], self._indices(part.gather, at, "i64"))

    def _indices(self, op: ir.Operation, at: Sequence[Value], dtype: str) -> list[Value]:
        """Where a generic's body reads a table by index, at a place of its loops."""
        arguments = [self._argument(op, number, at) for number in range(len(op.operands) - 1)]
        return indices_read(op, [*arguments, None], self.tile, at.__getitem__, dtype)

    def _argument(self, op: ir.Operation, number: int, at: Sequence[Value]) -> Value:
        """The element of an operand of a generic at a place of its loops."""
        record = self.plan.loads[op.operands[number]]
        walked = [at[loop] for loop in plain_loops(affine_maps(op)[number]) if loop is not None]
        constant_ = record.buffer.role == "input"
        pointer = self._element(record, len(walked), walked)
        return load_elements(pointer, str(record.buffer.element), 1, constant=constant_)[0]

    def _element(self, record: Load | Store, rank: int, at: Sequence[Value]) -> Value:
        """Pointer to an element of a window, by its place in the tensor."""
        dims = list(range(len(record.sizes)))
        if len(dims) != rank:  # the tensor lacks dimensions of extent 1
            dims = [dim for dim in dims if record.sizes[dim] != 1]
        places = [i64(self.tile.index(start)) for start in record.offsets]
        for dim, index in zip(dims, at, strict=True):
            places[dim] = places[dim] + i64(index)
        return offset(self.tile.pointer(record.buffer), self._bytes(record, places))

    def _bytes(self, record: Load | Store, places: Sequence[Value]) -> Value:
        """Bytes from a buffer's start to an element, by its place along each dimension (i64)."""
        size = element_bytes(record.buffer.element)
        total = i64(0)
        for place, stride in zip(places, record.buffer.strides, strict=True):
            total = total + place * (stride * size)
        return total

    # --- the table ------------------------------------------------------------------------------------------------------

    def write_table(self) -> None:
        """For each column of the result, where the first sample has it; and the samples' zeros."""
        first = 0
        for number, part in enumerate(self.pairs.columns):

            def entry(column: Value, number: int = number, first: int = first) -> None:
                store(self._column(number, column), self._entry(column + first))

            for_(self.thread, part.width, self.threads, entry)
            first += part.width
        rest = -(-first // PIECE) * PIECE - first
        if rest:
            if_(self.thread < rest, lambda: store(i32(self.pairs.zero_at), self._entry(self.thread + first)))

        def zero(sample: Value) -> None:
            store(i32(0), offset(self.task.shared, self._sample(sample) + self.pairs.zero_at))

        for_(self.thread, self.plan.samples, self.threads, zero)

    def _entry(self, column: Value) -> Value:
        return offset(self.task.shared, column * 4 + self.plan.table_at)

    def _column(self, number: int, column: Value) -> Value:
        part = self.pairs.columns[number]
        if part.kind == "zeros":
            return i32(self.pairs.zero_at)
        if part.kind == "rows":
            return column * 2 + self.pairs.column_at(number)
        assert part.op is not None
        _, left, right = self._indices(part.op, [i32(0), column], "i32")
        return (left * self.pairs.pitch + right) * 2 + self.plan.products_at

    def await_copies(self) -> None:
        """Until all copies so far are there, for every thread."""
        copy_async_commit()
        copy_async_wait(0)
        self.group.sync()

    # --- the result -----------------------------------------------------------------------------------------------------

    def write_result(self, late: bool | None) -> None:
        """Store the rows, eight columns a thread at a time: what is `late`, or what is not; None: all of it."""
        if late:
            self._write_late_picks()
        pieces = [piece for piece in range(-(-self.plan.columns // PIECE)) if late is None or late == self.plan.is_late(piece)]
        if not pieces:
            return
        # A thread has a piece, whose places it reads once, of every few samples; or several, where there are more than threads.
        together = max(1, self.threads // len(pieces))
        for first in range(0, len(pieces), self.threads):
            number = self.thread % len(pieces) if together > 1 else self.thread + first
            group = self.thread // len(pieces) if together > 1 else i32(0)
            active = (group < together) & (number < len(pieces))
            if_(active, functools.partial(self._store_pieces, self._column_of(pieces, number), group, together))

    def _column_of(self, pieces: Sequence[int], number: Value) -> Value:
        """First column of the `number`-th of some pieces."""
        piece = number + pieces[0]
        for before, after in zip(pieces, pieces[1:], strict=False):
            if after != before + 1:
                piece = select(piece <= before, piece, piece + (after - before - 1))
        return piece * PIECE

    def _store_pieces(self, first: Value, group: Value, together: int) -> None:
        """Store eight columns from `first` on of the samples `group`, `group + together`, ..."""
        columns, align = self.plan.columns, row_align(self.plan.store)
        places = [place for half in (0, 4) for place in unpack(load(self._entry(first + half), "vector<4xi32>", 16))]
        whole, product = i32(self.pairs.sample_bytes), self.pairs.product_bytes
        steps = [select(place < self.plan.products_at, whole, product) for place in places]
        rest = columns % PIECE

        def write(pointer: Value, values: Sequence[Value], count: int) -> None:
            if align == 16 and count == PIECE:
                store(bitcast(vector(values), "vector<4xi32>"), pointer, 16)
            else:
                store_elements(values[:count], pointer, "i16", align)

        def sample(number: Value) -> None:
            shared = self.task.shared
            values = [load(offset(shared, number * step + at), "i16", 2) for at, step in zip(places, steps, strict=True)]
            pointer = self._element(self.plan.store, 2, [number, first])
            if rest:
                whole, part = (functools.partial(write, pointer, values, count) for count in (PIECE, rest))
                if_(first + PIECE <= columns, whole, part)
            else:
                write(pointer, values, PIECE)

        for_(group, self.plan.samples, together, sample)

    def _write_late_picks(self) -> None:
        """Store the picked products of late vectors, one column of all samples a thread: there are few of them."""
        first = 0
        for part in self.pairs.columns:
            if part.kind == "picks":
                for_(self.thread + first, first + part.width, self.threads, self._write_if_late)
            first += part.width

    def _write_if_late(self, column: Value) -> None:
        place = load(self._entry(column), "i32", 4)
        number = (place - self.plan.products_at) // 2
        left, right = number // self.pairs.pitch, number % self.pairs.pitch
        late = self._any((one >= start) & (one < end) for one in (left, right) for start, end in self.plan.late_ranges)

        def write(sample: Value) -> None:
            value = load(offset(self.task.shared, sample * self.pairs.product_bytes + place), "i16", 2)
            store(value, self._element(self.plan.store, 2, [sample, column]), 2)

        def every() -> None:
            for sample in range(self.plan.samples):
                write(i32(sample))

        if_(late, every)

    def _any(self, conditions: Iterable[Value]) -> Value:
        return functools.reduce(operator.or_, conditions)

    def _sample(self, number: Value) -> Value:
        """Offset of a sample in shared memory."""
        return number * self.pairs.sample_bytes
