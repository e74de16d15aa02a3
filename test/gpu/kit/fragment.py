"""Fragments: a tile of values in the registers of a group of threads, with the layout that says what is where.

Element-wise code is written once, on values, and `map` applies it to every register, whatever the layout. Values per
row (a mean, a gathered index) are `RowValues`, values per column (a bias) `ColumnValues`; `map` takes them beside
fragments, broadcast.

`thread` is always the thread's index within the layout's group (0 to `layout.threads` - 1), an i32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import nvvm

from kitsune_mlir.codegen.gpu.emit.control_flow import if_
from kitsune_mlir.codegen.gpu.emit.convert import pack_values
from kitsune_mlir.codegen.gpu.emit.memory import offset
from kitsune_mlir.codegen.gpu.emit.reduce import combine, identity, over_lanes, over_registers
from kitsune_mlir.codegen.gpu.emit.value import Scalar, TypeLike, Value, as_value, cast, select, wrap
from kitsune_mlir.codegen.gpu.emit.vectors import dtype_bytes, load_elements, store_elements
from kitsune_mlir.codegen.gpu.sm90.ldmatrix import stage_accumulator
from kitsune_mlir.machine.shared_tile import SharedTile
from test.gpu.kit.exchange import Exchange, over_warps
from test.gpu.kit.layouts import Layout, WgmmaAccumulator

__all__ = ["ColumnValues", "Fragment", "RowValues", "in_tile", "vector_limit"]


def _at(operand: Any, register: int) -> Any:
    """What `operand` is for one register: fragments and broadcasts are looked up, plain values are the same everywhere."""
    return operand.at(register) if isinstance(operand, (Fragment, _Broadcast)) else operand


def in_tile(layout: Layout, row: Value, col: Value) -> Value | None:
    """Whether element (`row`, `col`) is part of the tile, rather than the layout's padding; None: there is no padding.

    Whoever writes a fragment's registers anywhere asks this: padding lies where the next row, or the next tile, is.
    """
    tests = []
    if layout.padded_rows != layout.rows:
        tests.append(row < layout.rows)
    if layout.padded_cols != layout.cols:
        tests.append(col < layout.cols)
    return functools.reduce(lambda a, b: a & b, tests) if tests else None


def vector_limit(layout: Layout, limit: int) -> int:
    """The widest vectors, up to `limit` elements, that lie in the tile or in the padding as a whole."""
    return limit if layout.padded_cols == layout.cols else min(limit, layout.cols & -layout.cols)


class _Broadcast:
    """Values that several registers share: one for each register part of the row, or of the column."""

    def __init__(self, layout: Layout, values: Mapping[int, Value]):
        self.layout = layout
        self.values = dict(values)

    def _key(self, register: int) -> int:
        raise NotImplementedError

    def at(self, register: int) -> Value:
        """The value that belongs to a register of the layout."""
        return self.values[self._key(register)]

    def map(self, function: Callable[..., Value], *others: Any):
        """`function` on every value; `others` are of the same kind and layout, or the same for all."""
        mapped = {}
        for key, value in self.values.items():
            arguments = [other.values[key] if isinstance(other, _Broadcast) else other for other in others]
            mapped[key] = function(value, *arguments)
        return type(self)(self.layout, mapped)


class RowValues(_Broadcast):
    """One value per row of a layout, equal on all threads that share the row."""

    def _key(self, register: int) -> int:
        return self.layout.register_row(register)

    @staticmethod
    def load(layout: Layout, thread: Value, read: Callable[[Value], Value]) -> RowValues:
        """`read(row)` for each row that the thread holds a part of. Padding, from `layout.rows` on, is asked for too."""
        rows = {layout.register_row(register) for register in range(layout.registers)}
        start = layout.thread_row(thread)
        return RowValues(layout, {row: read(start + row) for row in sorted(rows)})


class ColumnValues(_Broadcast):
    """One value per column of a layout."""

    def _key(self, register: int) -> int:
        return self.layout.register_col(register)

    @staticmethod
    def load(layout: Layout, thread: Value, read: Callable[[Value, int], Sequence[Value]], limit: int = 16) -> ColumnValues:
        """`read(col, length)` gives `length` neighbouring columns from `col` on, a multiple of `length` (at most `limit`).

        Padding, from `layout.cols` on, is asked for too.
        """
        start = layout.thread_col(thread)
        values: dict[int, Value] = {}
        for run in layout.runs(limit):
            if run.col not in values:
                for step, value in enumerate(read(start + run.col, run.length)):
                    values[run.col + step] = value
        return ColumnValues(layout, values)


class Fragment:
    """A tile in registers: `registers[r]` is element (layout.row(thread, r), layout.col(thread, r))."""

    def __init__(self, layout: Layout, registers: Sequence[Value]):
        if len(registers) != layout.registers:
            raise ValueError(f"{layout} has {layout.registers} registers, not {len(registers)}")
        self.layout = layout
        self.registers = list(registers)

    @property
    def dtype(self) -> str:
        return str(self.registers[0].type)

    def at(self, register: int) -> Value:
        return self.registers[register]

    @staticmethod
    def filled(layout: Layout, value: Value | Scalar, dtype: TypeLike = "f32") -> Fragment:
        """The same value everywhere."""
        return Fragment(layout, [as_value(value, dtype)] * layout.registers)

    @staticmethod
    def broadcast(layout: Layout, values: RowValues | ColumnValues) -> Fragment:
        """Row or column values at every element."""
        return Fragment(layout, [values.at(register) for register in range(layout.registers)])

    @staticmethod
    def load(layout: Layout, thread: Value, read: Callable[[Value, Value, int], Sequence[Value]], limit: int = 16) -> Fragment:
        """`read(row, col, length)` gives `length` neighbouring elements; `col` is a multiple of `length` <= `limit`.

        Padding is asked for too (`in_tile` tells it).
        """
        registers: list[Any] = [None] * layout.registers
        row, col = layout.thread_row(thread), layout.thread_col(thread)
        for run in layout.runs(limit):
            for register, value in zip(run.registers, read(row + run.row, col + run.col, run.length), strict=True):
                registers[register] = value
        return Fragment(layout, registers)

    def store(self, thread: Value, write: Callable[[Value, Value, list[Value]], None], limit: int = 16) -> None:
        """`write(row, col, values)` for every run of neighbouring elements; padding is passed too (`in_tile` tells it)."""
        row, col = self.layout.thread_row(thread), self.layout.thread_col(thread)
        for run in self.layout.runs(limit):
            write(row + run.row, col + run.col, [self.registers[register] for register in run.registers])

    # --- element by element ----------------------------------------------------------------------------------------------

    def map(self, function: Callable[..., Value], *others: Any) -> Fragment:
        """`function(element, *other elements)`; `others` are fragments of this layout, row or column values, or plain values.

        Raises:
            ValueError: another fragment has another layout.
        """
        for other in others:
            if isinstance(other, (Fragment, _Broadcast)) and other.layout != self.layout:
                raise ValueError(f"cannot combine {self.layout} with {other.layout}")
        return Fragment(
            self.layout,
            [function(value, *[_at(other, register) for other in others]) for register, value in enumerate(self.registers)],
        )

    def convert(self, dtype: TypeLike, signed: bool = True) -> Fragment:
        """Every element as another type."""
        return self.map(lambda value: cast(value, dtype, signed))

    def masked(self, thread: Value, fill: Value | Scalar) -> Fragment:
        """`fill` in the padding: beyond `layout.rows` and `layout.cols`."""
        layout = self.layout
        if layout.padded_rows == layout.rows and layout.padded_cols == layout.cols:
            return self
        row, col = layout.thread_row(thread), layout.thread_col(thread)
        last_row, last_col = layout.padded_rows - layout.rows, layout.padded_cols - layout.cols
        row_span = layout.padded_rows - max(layout.register_row(r) for r in range(layout.registers))
        col_span = layout.padded_cols - max(layout.register_col(r) for r in range(layout.registers))
        registers = []
        for register, value in enumerate(self.registers):
            at_row, at_col = layout.register_row(register), layout.register_col(register)
            # Only registers whose reach over all threads crosses the edge need a test.
            if last_row and at_row + row_span > layout.rows:
                value = select(row + at_row < layout.rows, value, as_value(fill, value.type))
            if last_col and at_col + col_span > layout.cols:
                value = select(col + at_col < layout.cols, value, as_value(fill, value.type))
            registers.append(value)
        return Fragment(layout, registers)

    # --- reductions ------------------------------------------------------------------------------------------------------

    def row_reduce(self, kind: str, thread: Value, exchange: Exchange | None = None) -> RowValues:
        """Reduce every row ("add", "mul", "max", "min", ...); all threads of the row get its result.

        Args:
            exchange: needed if `layout.row_warps` > 1; its scratch holds one value per warp and row step.

        Raises:
            ValueError: `exchange` is needed and is not there.
        """
        layout = self.layout
        if layout.row_warps > 1 and exchange is None:
            raise ValueError(f"{layout} spreads a row over {layout.row_warps} warps: reducing it needs an Exchange")
        padded = self.masked(thread, identity(kind, self.dtype))
        rows: dict[int, list[Value]] = {}
        for register, value in enumerate(padded.registers):
            rows.setdefault(layout.register_row(register), []).append(value)
        values = {row: over_lanes(kind, over_registers(kind, items), layout.row_masks) for row, items in rows.items()}
        if exchange is not None and layout.row_warps > 1:
            combined = over_warps(kind, list(values.values()), thread, layout.row_warps, exchange)
            values = dict(zip(values, combined, strict=True))
        return RowValues(layout, values)

    def column_reduce(self, kind: str, thread: Value, exchange: Exchange) -> ColumnValues:
        """Reduce every column over all rows; all threads that hold the column get its result.

        Args:
            exchange: scratch of (warps / layout.row_warps) * layout.padded_cols values; unused if that is one warp.
        """
        layout = self.layout
        padded = self.masked(thread, identity(kind, self.dtype))
        cols: dict[int, list[Value]] = {}
        for register, value in enumerate(padded.registers):
            cols.setdefault(layout.register_col(register), []).append(value)
        values = {col: over_lanes(kind, over_registers(kind, items), layout.col_masks) for col, items in cols.items()}
        parts = max(1, layout.threads // 32 // layout.row_warps)
        if parts == 1:
            return ColumnValues(layout, values)
        size = dtype_bytes(self.dtype)
        own = thread // (32 * layout.row_warps) * (layout.padded_cols * size)
        start = layout.thread_col(thread)
        for run in layout.runs():
            if run.row == 0:
                piece = [values[run.col + step] for step in range(run.length)]
                place = offset(exchange.pointer, own + (start + run.col) * size)
                store_elements(piece, place, align=run.length * size)
        exchange.sync()

        def gather(col: Value, length: int) -> list[Value]:
            columns: list[list[Value]] = []
            for part in range(parts):
                place = offset(exchange.pointer, col * size + part * layout.padded_cols * size)
                columns.append(load_elements(place, self.dtype, length, align=length * size))
            return [over_registers(kind, [column[step] for column in columns]) for step in range(length)]

        result = ColumnValues.load(layout, thread, gather)
        exchange.sync()
        return result

    def reduce(self, kind: str, thread: Value, exchange: Exchange) -> Value:
        """Reduce the whole tile; all threads get the result. Scratch: one value per warp."""
        padded = self.masked(thread, identity(kind, self.dtype))
        value = over_lanes(kind, over_registers(kind, padded.registers), (1, 2, 4, 8, 16))
        warps = self.layout.threads // 32
        return over_warps(kind, [value], thread, warps, exchange)[0] if warps > 1 else value

    def combine(self, kind: str, other: Fragment) -> Fragment:
        """Element-wise reduction of two fragments."""
        return self.map(lambda a, b: combine(kind, a, b), other)

    # --- as wgmma's operands ---------------------------------------------------------------------------------------------

    def packed(self, dtype: str, relu: bool = False) -> list[Value]:
        """Registers 2i and 2i+1 as one i32 of two bf16 or f16."""
        return pack_values(self.registers, dtype, relu)

    def as_a_operand(self, dtype: str = "bf16", relu: bool = False) -> list[Value]:
        """The registers of A for `wgmma.multiply`, k = the accumulator's columns.

        The accumulator's layout is A's: no data moves between threads. For "tf32" position p of every 8 along k holds column
        `TF32_K_ORDER[p]`, so B's k must be permuted alike.

        Raises:
            ValueError: another layout, columns that are no multiple of 16, or `relu` for tf32.
        """
        if not isinstance(self.layout, WgmmaAccumulator):
            raise ValueError(f"wgmma reads A from an accumulator's layout, not from {self.layout}")
        if dtype != "tf32":
            if self.layout.n % 16:
                raise ValueError(f"A's k is a multiple of 16, not {self.layout.n}")
            return self.packed(dtype, relu)
        if relu:
            raise ValueError("relu is part of the conversion to bf16 or f16, not to tf32")
        order = (0, 2, 1, 3)
        return [_round_to_tf32(self.registers[4 * step + i]) for step in range(self.layout.n // 8) for i in order]

    def store_swizzled(
        self, thread: Value, tile: SharedTile, pointer: Value, dtype: str, row: int = 0, col: int = 0, relu: bool = False
    ) -> None:
        """Write the tile into shared memory as `dtype`, where wgmma (as K-major A) and TMA read it.

        Args:
            pointer: start of `tile`.
            row, col: where the fragment's element (0, 0) goes; `row` a multiple of 8, `col` of 16.

        Accumulators of 16-bit types go by `stmatrix`, 16 columns at a time; others by vectors. Padding is dropped.

        Raises:
            ValueError: `dtype` has another size than the tile's elements.
        """
        size = dtype_bytes(dtype)
        if tile.element_bytes != size:
            raise ValueError(f"{dtype} has {size} bytes, the tile's elements {tile.element_bytes}")
        layout = self.layout
        if isinstance(layout, WgmmaAccumulator) and layout.vector == 2 and size == 2 and layout.n % 16 == 0:
            for step in range(layout.n // 16):
                values = self.registers[8 * step : 8 * step + 8]
                stage_accumulator(values, thread, tile, pointer, 16 * step + col, dtype, row, relu)
            return

        def write(at_row: Value, at_col: Value, values: list[Value]) -> None:
            def emit() -> None:
                place = offset(pointer, tile.offset(at_row + row, at_col + col))
                store_elements(values, place, dtype, align=len(values) * size, relu=relu)

            inside = in_tile(layout, at_row, at_col)
            emit() if inside is None else if_(inside, emit)

        self.store(thread, write, vector_limit(layout, 16 // size))

    @staticmethod
    def load_swizzled(
        layout: Layout, thread: Value, tile: SharedTile, pointer: Value, dtype: str, register_dtype: str = "f32",
        row: int = 0, col: int = 0,
    ) -> Fragment:  # fmt: skip
        """Read a tile that TMA or `store_swizzled` wrote; arguments as there. Padding gets any value."""
        size = dtype_bytes(dtype)

        def read(at_row: Value, at_col: Value, length: int) -> list[Value]:
            place = offset(pointer, tile.offset(at_row + row, at_col + col))
            inside = in_tile(layout, at_row, at_col)
            if inside is not None:
                place = select(inside, place, pointer)
            return load_elements(place, dtype, length, register_dtype, align=length * size)

        return Fragment.load(layout, thread, read, vector_limit(layout, 16 // size))


def _round_to_tf32(value: Value) -> Value:
    """f32 rounded to tf32 (to nearest), as i32. wgmma alone would cut the lower 13 bits off, which is biased."""
    return wrap(nvvm.convert_float_to_tf32(value.ir, rnd=ir.Attribute.parse("#nvvm.fp_rnd_mode<rna>")))
