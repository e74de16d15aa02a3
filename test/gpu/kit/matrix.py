"""Row-major matrices and vectors in global memory, read into fragments and written from them, with bounds."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from kitsune_mlir.codegen.gpu.emit.control_flow import if_
from kitsune_mlir.codegen.gpu.emit.memory import Cache, offset, reduce_add
from kitsune_mlir.codegen.gpu.emit.value import Scalar, Value, as_value, cast, i64, select
from kitsune_mlir.codegen.gpu.emit.vectors import dtype_bytes, load_elements, store_elements
from kitsune_mlir.dialects.sizes import HALF_TYPES
from test.gpu.kit.fragment import ColumnValues, Fragment, RowValues, in_tile, vector_limit
from test.gpu.kit.layouts import Layout

__all__ = ["GlobalMatrix", "GlobalVector"]


@dataclasses.dataclass(frozen=True)
class GlobalMatrix:
    """A row-major matrix in global memory.

    Attributes:
        pointer: to element (0, 0).
        dtype: elements in memory ("bf16", "f32", "i1" as bytes, ...).
        stride_bytes: from one row to the next; an `int` or an i64 value; 0 repeats one row.
        rows: number of rows, an `int`, or an i32 value; None: every row asked for exists.
        cols: number of columns; None: every column asked for exists.
        align: what divides the address of every row's start, in bytes (a power of two); it bounds the vectors.
        constant: nobody writes it while the kernel runs.
        cache: policy.
    """

    pointer: Value
    dtype: str
    stride_bytes: Value | int
    rows: Value | int | None = None
    cols: int | None = None
    align: int = 16
    constant: bool = False
    cache: Cache = Cache.DEFAULT

    def _limit(self, layout: Layout, col: Value | int) -> int:
        """Elements of the widest vector: aligned, and inside or outside of the matrix and of the tile as a whole."""
        limit = vector_limit(layout, max(1, min(16, self.align) // dtype_bytes(self.dtype)))
        for number in (self.cols, col):
            if isinstance(number, int) and number:
                limit = min(limit, number & -number)
        return limit

    def address(self, row: Value, col: Value | int) -> Value:
        """Pointer to an element."""
        start = offset(self.pointer, i64(row) * self.stride_bytes)
        return offset(start, col * dtype_bytes(self.dtype))

    def load(
        self,
        layout: Layout,
        thread: Value,
        row: Value | int = 0,
        col: Value | int = 0,
        fill: Scalar | None = 0,
        register_dtype: str | None = None,
    ) -> Fragment:
        """The tile whose element (0, 0) is (`row`, `col`).

        Args:
            col: a run-time value must be a multiple of 16 bytes of elements.
            fill: what elements outside of the matrix get; None: anything (element (0, 0) is read instead).
            register_dtype: default f32 for bf16 and f16, else the type in memory.
        """
        wanted = self._register_dtype(register_dtype)

        def read(at_row: Value, at_col: Value, length: int) -> list[Value]:
            inside = self.inside(layout, at_row, at_col, at_row + row, at_col + col)
            return self._read(self.address(at_row + row, at_col + col), length, wanted, inside, fill)

        return Fragment.load(layout, thread, read, self._limit(layout, col))

    def _register_dtype(self, wanted: str | None) -> str:
        return wanted or ("f32" if self.dtype in HALF_TYPES else self.dtype)

    def _read(self, place: Value, length: int, dtype: str, inside: Value | None, fill: Scalar | None) -> list[Value]:
        """`length` elements; where not `inside`, element (0, 0) is read instead, and `fill` returned."""
        if inside is not None:
            place = select(inside, place, self.pointer)
        align = length * dtype_bytes(self.dtype)
        values = load_elements(place, self.dtype, length, dtype, align, self.constant, self.cache)
        if inside is None or fill is None:
            return values
        return [select(inside, value, as_value(fill, value.type)) for value in values]

    def load_rows(
        self,
        layout: Layout,
        thread: Value,
        rows: RowValues,
        col: Value | int = 0,
        fill: Scalar | None = 0,
        register_dtype: str | None = None,
    ) -> Fragment:
        """Gather: row r of the tile is the matrix' row `rows[r]` (i32 or i64, in bounds), from column `col` on.

        Args:
            rows: what it holds for rows of padding is not used.
            col, fill, register_dtype: as in `load`.
        """
        wanted = self._register_dtype(register_dtype)
        start_row, start_col = layout.thread_row(thread), layout.thread_col(thread)
        registers: list[Any] = [None] * layout.registers
        for run in layout.runs(self._limit(layout, col)):
            at_col = start_col + run.col
            inside = self._in_columns(layout, start_row + run.row, at_col, at_col + col)
            place = self.address(rows.at(run.registers[0]), at_col + col)
            values = self._read(place, run.length, wanted, inside, fill)
            for register, value in zip(run.registers, values, strict=True):
                registers[register] = value
        return Fragment(layout, registers)

    def store(self, fragment: Fragment, thread: Value, row: Value | int = 0, col: Value | int = 0, relu: bool = False) -> None:
        """Write a tile to (`row`, `col`); elements outside of the matrix, and the layout's padding, are dropped."""

        def write(at_row: Value, at_col: Value, values: list[Value]) -> None:
            align = len(values) * dtype_bytes(self.dtype)

            def emit() -> None:
                place = self.address(at_row + row, at_col + col)
                store_elements(values, place, self.dtype, align, self.cache, relu)

            inside = self.inside(fragment.layout, at_row, at_col, at_row + row, at_col + col)
            emit() if inside is None else if_(inside, emit)

        fragment.store(thread, write, self._limit(fragment.layout, col))

    def add_rows(self, fragment: Fragment, thread: Value, rows: RowValues, col: Value | int = 0) -> None:
        """Scatter-add: atomically add row r of the tile to the matrix' row `rows[r]` (in bounds; negative ones are dropped).

        Columns outside of the matrix, and the layout's padding, are dropped. Vectors of up to 16 bytes by one reduction each;
        bf16 and f16 rows need even columns.
        """
        layout, size = fragment.layout, dtype_bytes(self.dtype)
        start_row, start_col = layout.thread_row(thread), layout.thread_col(thread)
        width = 4 if self.dtype == "f32" else 8 if size == 2 else 1
        for run in layout.runs(self._limit(layout, col)):
            target, at_col = rows.at(run.registers[0]), start_col + run.col
            values = [cast(fragment.registers[register], self.dtype) for register in run.registers]

            def emit(target: Value = target, values: list[Value] = values, at_col: Value = at_col) -> None:
                place = self.address(target, at_col + col)
                for first in range(0, len(values), width):
                    reduce_add(offset(place, first * size), values[first : first + width])

            inside = self._in_columns(layout, start_row + run.row, at_col, at_col + col)
            if_(target >= 0 if inside is None else (target >= 0) & inside, emit)

    def inside(self, layout: Layout, tile_row: Value, tile_col: Value, row: Value, col: Value) -> Value | None:
        """Whether an element of a tile exists in the matrix and is no padding of the layout; None: always.

        A matrix whose columns are a multiple of the tile's is not tested for columns: tiles start at multiples.
        """
        in_columns = self._in_columns(layout, tile_row, tile_col, col)
        if self.rows is None:
            return in_columns
        in_rows = row < self.rows
        return in_rows if in_columns is None else in_rows & in_columns

    def _in_columns(self, layout: Layout, tile_row: Value, tile_col: Value, col: Value) -> Value | None:
        """`inside`, but for the matrix' rows."""
        inside = in_tile(layout, tile_row, tile_col)
        if self.cols is None or self.cols % layout.padded_cols == 0:
            return inside
        return col < self.cols if inside is None else (col < self.cols) & inside


@dataclasses.dataclass(frozen=True)
class GlobalVector:
    """A dense vector in global memory: one element per column (a bias) or per row (indices, scales) of a tile."""

    pointer: Value
    dtype: str
    length: Value | int | None = None
    align: int = 16
    constant: bool = False

    def columns(self, layout: Layout, thread: Value, col: Value | int = 0, register_dtype: str | None = None) -> ColumnValues:
        """Element `col` + c for column c; beyond `length`, and in the layout's padding, any value.

        Args:
            col: a run-time value must be a multiple of 16 bytes of elements.
        """
        # A vector must not cross the end, which a run-time length may have anywhere.
        align = self.align if self.length is None or isinstance(self.length, int) else 1
        matrix = GlobalMatrix(self.pointer, self.dtype, 0, None, None, align, self.constant)
        limit = matrix._limit(layout, col)
        if isinstance(self.length, int):
            limit = min(limit, self.length & -self.length)
        wanted = matrix._register_dtype(register_dtype)
        last = layout.padded_cols != layout.cols

        def read(at_col: Value, count: int) -> list[Value]:
            tests = [at_col < layout.cols] if last else []
            if self.length is not None and not (isinstance(self.length, int) and self.length % layout.padded_cols == 0):
                tests.append(at_col + col < self.length)
            inside = functools.reduce(lambda a, b: a & b, tests) if tests else None
            place = offset(self.pointer, (at_col + col) * dtype_bytes(self.dtype))
            return matrix._read(place, count, wanted, inside, None)

        return ColumnValues.load(layout, thread, read, limit)

    def rows(self, layout: Layout, thread: Value, row: Value | int = 0, fill: Scalar | None = None) -> RowValues:
        """Element `row` + r for row r; beyond `length`, and in the layout's padding: `fill`, or any value."""

        def read(at_row: Value) -> Value:
            place = at_row + row
            tests = [at_row < layout.rows] if layout.padded_rows != layout.rows else []
            if self.length is not None:
                tests.append(place < self.length)
            inside = functools.reduce(lambda a, b: a & b, tests) if tests else None
            if inside is not None:
                place = select(inside, place, 0)
            pointer = offset(self.pointer, i64(place) * dtype_bytes(self.dtype))
            value = load_elements(pointer, self.dtype, 1, None, None, self.constant)[0]
            return value if inside is None or fill is None else select(inside, value, as_value(fill, value.type))

        return RowValues.load(layout, thread, read)
