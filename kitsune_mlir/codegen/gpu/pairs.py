"""The `pairs` engine: dot products of all pairs of a sample's vectors, some picked by index and joined with other columns.

A tile is some samples, and a block holds all their vectors in shared memory at once: gathered rows come by `cp.async`, before
the task's waits. Warps multiply: 16 vectors of a sample with all of its
vectors (`mma_sync`), and rounded products go to shared memory. A table has, for every column of the result, where in a sample's
shared memory it is; so stores are the same for columns from memory, picked products and zeros.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from torch_mlir import ir
from torch_mlir.dialects import arith

from kitsune_mlir.codegen.gpu.builder import for_, if_, lane_id, warp_id
from kitsune_mlir.codegen.gpu.context import TileContext
from kitsune_mlir.codegen.gpu.convert import pack_pair
from kitsune_mlir.codegen.gpu.elements import load_elements, store_elements
from kitsune_mlir.codegen.gpu.engine import Decline, Engine, Limits, Plan
from kitsune_mlir.codegen.gpu.memory import copy_async, copy_async_commit, copy_async_wait, load, offset, store
from kitsune_mlir.codegen.gpu.mma_scalar import emit_body
from kitsune_mlir.codegen.gpu.mma_sync import multiply_add
from kitsune_mlir.codegen.gpu.pairs_plan import PIECE, PairsPlan, picks_wait, read_plan, row_align
from kitsune_mlir.codegen.gpu.tasks import Load, Store, TaskView, element_bytes
from kitsune_mlir.codegen.gpu.value import Value, as_type, bitcast, cast, constant, i32, i64, minimum, unpack, vector, wrap
from kitsune_mlir.dialects.access import affine_maps
from kitsune_mlir.dialects.pairs import NoPairs, Vectors

__all__ = ["PairsEngine"]

THREADS = 384
REGISTERS = 128
SUMS = 64
"""Registers for sums up to which a warp has all products of a sample, and reads every vector once."""
BATCH = 4
"""Copies that a thread starts one after the other."""


class PairsEngine(Engine):
    """See the module's docstring."""

    name: ClassVar[str] = "pairs"

    def plan(self, task: TaskView, limits: Limits) -> Plan | Decline:
        try:
            plan = read_plan(task)
        except NoPairs as reason:
            return Decline(self.name, str(reason))
        if plan.bytes > limits.shared_bytes:
            samples = f"{plan.samples} samples need {plan.bytes} bytes of shared memory"
            return Decline(self.name, f"{samples}; there are {limits.shared_bytes}")
        threads = min(THREADS, limits.threads // 32 * 32)
        parameters = {"samples": plan.samples, "vectors": plan.pairs.count}
        return Plan(
            self.name,
            task,
            shared_bytes=plan.bytes,
            threads=threads,
            registers=REGISTERS,
            parameters=parameters,
            apart=bool(plan.early),
            private=plan,
        )

    def emit_tile(self, plan: Plan, tile: TileContext) -> None:
        pairs: PairsPlan = plan.private
        tile.resolve()
        emitter = _Emitter(pairs, tile)
        emitter.copy_vectors(pairs.early)
        if not picks_wait(pairs):
            emitter.write_table()
        if pairs.ahead:
            emitter.await_copies()
            emitter.multiply(False)
        if tile.task.view.waits:
            tile.wait()
        else:
            tile.task.sync()
        emitter.copy_vectors(pairs.late)
        emitter.copy_columns()
        if picks_wait(pairs):
            emitter.write_table()
        emitter.await_copies()
        emitter.multiply(pairs.ahead)
        tile.task.sync()
        emitter.write_result()
        tile.finish()


class _Emitter:
    """Emits the parts of a tile."""

    def __init__(self, plan: PairsPlan, tile: TileContext):
        self.plan, self.pairs, self.tile, self.task = plan, plan.pairs, tile, tile.task
        self.thread, self.threads = tile.task.thread, tile.task.threads

    # --- what comes from memory -----------------------------------------------------------------------------------------

    def copy_vectors(self, parts: Sequence[Vectors]) -> None:
        """Start the copies of some of the vectors of all samples. All threads call it.

        Where gathered rows are is found out first, by as many threads as there are rows, so that indices are read at once.
        """
        gathers = [part for part in parts if part.gather is not None]
        found = []
        for part in gathers:
            count = self.plan.samples * part.count
            for first in range(0, count, self.threads):
                item = self.thread + first
                found.append((part, item, item < count, self._gathered(part, minimum(item, count - 1))))
        for part, item, exists, place in found:  # all indices are on their way before the first is written
            if_(exists, functools.partial(store, place, self._found(part, item), 8))
        if gathers:
            self.task.sync()
        for part in parts:
            before = sum(other.count for other in self.pairs.vectors[: self.pairs.vectors.index(part)])

            def target(item: Value, part: Vectors = part, before: int = before) -> Value:
                return self._sample(item // part.count) + (item % part.count + before) * self.pairs.vector_bytes

            self._copy_rows(
                self.plan.samples * part.count, self.pairs.width // PIECE, functools.partial(self._vector, part), target
            )

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
            if part.kind != "rows":
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

    def _gathered(self, part: Vectors, item: Value) -> Value:
        """Bytes from the start of a table to the row that is vector `item`, i64."""
        assert part.gather is not None
        found: list[Value] = []

        def extract(op: ir.Operation, indices: Sequence[ir.Value]) -> Value:
            found.extend(self._integer(index, "i64") for index in indices)
            return constant(0.0, str(ir.ShapedType(op.operands[0].type).element_type))

        at = [item // part.count, item % part.count]
        arguments = [self._argument(part.gather, number, at) for number in range(len(part.gather.operands) - 1)]
        emit_body(part.gather, [*arguments, None], self.tile, lambda loop: at[loop] if loop < 2 else i32(0), extract)
        return self._bytes(self.plan.loads[part.extract.operands[0]], found)

    def _argument(self, op: ir.Operation, number: int, at: Sequence[Value]) -> Value:
        """The element of an operand of a generic at a place of its loops."""
        record = self.plan.loads[op.operands[number]]
        walked = [at[int(str(expression)[1:])] for expression in affine_maps(op)[number].results]
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

    def _integer(self, index: ir.Value, type_: str) -> Value:
        return wrap(arith.index_castui(as_type(type_), index))

    # --- the table ------------------------------------------------------------------------------------------------------

    def write_table(self) -> None:
        """For each column of the result, its offset in a sample's shared memory; and the samples' zeros."""
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
        found: list[Value] = []

        def extract(op: ir.Operation, indices: Sequence[ir.Value]) -> Value:
            found.extend(self._integer(index, "i32") for index in indices[1:])
            return constant(0.0, str(ir.ShapedType(op.operands[0].type).element_type))

        at = [i32(0), column]
        arguments = [self._argument(part.op, operand, at) for operand in range(len(part.op.operands) - 1)]
        emit_body(part.op, [*arguments, None], self.tile, lambda loop: at[loop], extract)
        left, right = found
        return (left * self.pairs.pitch + right) * 2 + self.pairs.products_at

    def await_copies(self) -> None:
        """Until all copies so far are there, for every thread."""
        copy_async_commit()
        copy_async_wait(0)
        self.task.sync()

    # --- products -------------------------------------------------------------------------------------------------------

    def multiply(self, late: bool) -> None:
        """All products of all samples: a warp has a sample at a time, or 16 of its vectors with all of the sample's.

        The order of a sum is free, and so is that of the vectors: a lane reads 16 bytes of a vector and uses them in two
        instructions, and eight lanes read vectors that are four apart, which lie in different banks (as in `gemv_multiply`).

        Args:
            late: only the products of vectors that came late, whose products were undefined until now.
        """
        groups = self.plan.late_groups if late else list(range(self.pairs.padded // 16))
        whole = len(groups) * -(-self.pairs.count // 8) * 4 <= SUMS
        units = 1 if whole else len(groups)
        warp, lane = warp_id(self.thread), lane_id(self.thread)
        index = lane // 4
        line, quad = index // 2 + index % 2 * 4, lane % 4

        def unit(number: Value) -> None:
            base = offset(self.task.shared, self._sample(number // units))
            firsts = [16 * group for group in groups] if whole else [(number % units + groups[0]) * 16]
            for first, sums in zip(firsts, self._sums(base, firsts, line, quad), strict=True):
                for row, half in ((line + first, 0), (line + first + 8, 2)):
                    pairs = [(block[half], block[half + 1]) for block in sums]
                    if_(self._is_stored(row, late), functools.partial(self._store_row, base, row, quad, pairs, late))

        for_(warp, self.plan.samples * units, self.threads // 32, unit)

    def _is_stored(self, row: Value, late: bool) -> Value:
        if not late:
            return row < self.pairs.count
        return self._any((row >= start) & (row < end) for start, end in self.plan.late_ranges)

    def _any(self, conditions: Iterable[Value]) -> Value:
        return functools.reduce(operator.or_, conditions)

    def _store_row(self, base: Value, row: Value, quad: Value, pairs: Sequence[tuple[Value, Value]], late: bool) -> None:
        """Rounded products of a vector, of each eight those at `quad` and four more; late ones also as the others' products."""

        def place(left: Value, right: Value) -> Value:
            return offset(base, (left * self.pairs.pitch + right) * 2 + self.pairs.products_at)

        for block, pair in enumerate(pairs):
            word = pack_pair(*pair, self.pairs.dtype)
            for more, value in ((0, cast(word, "i16")), (4, cast(word >> 16, "i16"))):
                other = quad + (8 * block + more)
                store(value, place(row, other), 2)
                if late:
                    mirror = functools.partial(store, value, place(other, row), 2)
                    if_((other < self.pairs.count) & (other != row), mirror)

    def _sums(self, base: Value, firsts: Sequence[Value | int], line: Value, quad: Value) -> list[list[list[Value]]]:
        """For each 16 vectors from one of `firsts` on, their accumulators with each eight of the sample's.

        Beyond the last vector the last is read again. A lane needs the same words of a vector whichever factor it is in, so who
        has read all vectors has the 16 too, where they are known.
        """
        blocks = -(-self.pairs.count // 8)
        sums = [[[constant(0.0, "f32")] * 4 for _ in range(blocks)] for _ in firsts]
        last = self.pairs.count - 1
        others = [line + 8 * block for block in range(blocks)]
        others[-1] = minimum(others[-1], last)

        def words(vector_: Value, step: int) -> list[Value]:
            place = vector_ * self.pairs.vector_bytes + quad * 16 + 64 * step
            return unpack(load(offset(base, place), "vector<4xi32>", 16))

        def factor(first: Value | int, step: int, right: Sequence[list[Value]]) -> list[list[Value]]:
            if isinstance(first, int):
                return [right[min(first // 8 + half, blocks - 1)] for half in range(2)]
            return [words(minimum(line + first + 8 * half, last), step) for half in range(2)]

        for step in range(self.pairs.width // 32):
            right = [words(vector_, step) for vector_ in others]
            for first, mine in zip(firsts, sums, strict=True):
                low, high = factor(first, step, right)
                for half in (0, 2):
                    fragment = [low[half], high[half], low[half + 1], high[half + 1]]
                    for block in range(blocks):
                        mine[block] = multiply_add(mine[block], fragment, right[block][half : half + 2], self.pairs.dtype)
        return sums

    # --- the result -----------------------------------------------------------------------------------------------------

    def write_result(self) -> None:
        """Store the rows, eight columns a thread at a time."""
        columns, record = self.plan.columns, self.plan.store
        across, align = -(-columns // PIECE), row_align(record)

        def piece(number: Value) -> None:
            sample, first = number // across, number % across * PIECE
            base = offset(self.task.shared, self._sample(sample))
            places = [place for half in (0, 4) for place in unpack(load(self._entry(first + half), "vector<4xi32>", 16))]
            values = [load(offset(base, place), "i16", 2) for place in places]
            pointer = self._element(record, 2, [sample, first])
            rest = columns % PIECE

            def write(count: int) -> None:
                if align == 16 and count == PIECE:
                    store(bitcast(vector(values), "vector<4xi32>"), pointer, 16)
                else:
                    store_elements(values[:count], pointer, "i16", align)

            if rest:
                if_(first + PIECE <= columns, lambda: write(PIECE), lambda: write(rest))
            else:
                write(PIECE)

        for_(self.thread, self.plan.samples * across, self.threads, piece)

    def _sample(self, number: Value) -> Value:
        """Offset of a sample in shared memory."""
        return number * self.pairs.sample_bytes
