"""Where the element-wise steps of a chain read loaded tensors: shared memory where they lie there anyway, or global memory."""

from __future__ import annotations

import dataclasses

from torch_mlir.dialects import arith

from kitsune_mlir.codegen.gpu.contraction.axes import COL, ROW
from kitsune_mlir.codegen.gpu.contraction.packed_pair import Lanes
from kitsune_mlir.codegen.gpu.emit.control_flow import shuffle
from kitsune_mlir.codegen.gpu.emit.memory import load, offset
from kitsune_mlir.codegen.gpu.emit.value import Value, as_type, bitcast, i64, minimum, select, unpack, wrap
from kitsune_mlir.codegen.gpu.emit.vectors import load_elements
from kitsune_mlir.codegen.gpu.engines.chain.core.body import QUAD
from kitsune_mlir.codegen.gpu.engines.chain.core.fragment_index import FragmentIndex
from kitsune_mlir.codegen.gpu.engines.chain.core.panels import load_key, swizzled
from kitsune_mlir.codegen.gpu.engines.chain.core.records import RowsPlan, Slot, Vector
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.codegen.gpu.interface.window import Window
from kitsune_mlir.dialects.sizes import HALF_TYPES
from kitsune_mlir.dialects.tile_records import Load

__all__ = ["RUN", "Memory", "SliceMemory", "to_integer"]

RUN = 8
"""Columns side by side that a lane has in chains of wide layers: four blocks, 16 bytes of 16-bit numbers."""


class Memory:
    """Reads for one warpgroup and tile.

    Args:
        plan: the decisions.
        tile: the tile.
        shared: pointer to the task's shared memory.
        thread: index of the thread in its warpgroup.
        group: number of the warpgroup, 0 or 1.
        slots: pointer to each source's rows of this warpgroup and tile.

    Attributes:
        across: lanes that share a row.
    """

    across: int = QUAD

    def __init__(self, plan: RowsPlan, tile: TileContext, shared: Value, thread: Value, group: Value, slots: dict[Slot, Value]):
        self.plan, self.tile, self.shared, self.slots = plan, tile, shared, slots
        self.lane = thread & 31
        self.quad = self.lane & 3
        self.local_row = (thread // 32 << 4) + (self.lane >> 2)
        self.first_row = group * plan.group_rows + self.local_row
        self.held: dict[tuple, Value] = {}
        """Words of rows that were read a tile ahead, by `load_key`, unit, half and block."""
        self.known: dict[tuple, Lanes] = {}
        self.addresses: dict[tuple, Value] = {}
        self.runs: dict[tuple, list[Lanes]] = {}

    def forget(self) -> None:
        """Read again from now on."""
        self.known, self.addresses, self.runs = {}, {}, {}

    def row(self, place: FragmentIndex) -> Value:
        """The thread's row in the tile; the tile's last one for rows beyond it."""
        row = self.first_row + 8 * place.half
        return row if self.plan.covered else minimum(row, self.plan.chain.rows - 1)

    def row_exists(self, place: FragmentIndex) -> Value | None:
        """Whether the row belongs to the tile; None if all do."""
        return None if self.plan.covered else self.first_row + 8 * place.half < self.plan.chain.rows

    def col(self, place: FragmentIndex) -> Value:
        """The left one of the thread's two columns."""
        if self.plan.run == RUN:
            return self.piece_col(place) + 2 * (place.block % QUAD)
        return (self.quad << 1) + 8 * place.block

    def piece_col(self, place: FragmentIndex) -> Value:
        """The first of the thread's eight columns of the four blocks that the place's belongs to."""
        return (self.quad << 3) + 8 * (place.block // QUAD * QUAD)

    def first_of_row(self, value: Value) -> Value:
        """`value` of the lane that has column 0 of the same row."""
        return shuffle(value, self.lane & ~(self.across - 1))

    def load(self, record: Load, sides: tuple[str, ...], place: FragmentIndex, cols: int) -> Lanes:
        """The elements of a loaded tensor whose wide dimensions lie along `sides`; it has `cols` columns."""
        key = (
            load_key(record),
            sides,
            place.half if ROW in sides else None,
            place.block if COL in sides else None,
        )
        if key not in self.known:
            self.known[key] = self._load(record, sides, place, cols)
        return self.known[key]

    def _load(self, record: Load, sides: tuple[str, ...], place: FragmentIndex, cols: int) -> Lanes:
        vector = self.plan.vectors.get(load_key(record)) if sides == (COL,) else None
        if vector is not None and self.plan.run == RUN:
            return self._vector_run(vector, place)
        if vector is not None:
            at = offset(offset(self.shared, self.quad * (2 * vector.bytes)), vector.offset + 8 * vector.bytes * place.block)
            dtype = vector.window.dtype
            if vector.short:
                return Lanes(dtype, word=load(at, "i32"))
            pair = unpack(load(at, "vector<2xf32>", 8))
            return Lanes(dtype, scalars=pair) if dtype == "f32" else Lanes(dtype, wide=pair)
        if sides == (ROW, COL):
            held = self.held.get((load_key(record), place.half, place.block))
            if held is not None:
                return Lanes(str(record.buffer.element), word=held)
            for slot, pointer in self.slots.items():
                if slot.read and slot.source.gather is None and load_key(slot.source.load) == load_key(record):
                    return self._staged(slot, pointer, place)
        return self._global(record, sides, place, cols)

    def _vector_run(self, vector: Vector, place: FragmentIndex) -> Lanes:
        """Two elements of the thread's run of eight of a vector in shared memory."""
        known = (load_key(vector.load), None, place.block // 4)
        if known not in self.runs:
            dtype = vector.window.dtype
            first = dataclasses.replace(place, block=place.block // 4 * 4)
            at = offset(offset(self.shared, self.col(first) * vector.bytes), vector.offset)
            words = [
                word for piece in range(vector.bytes // 2) for word in unpack(load(offset(at, 16 * piece), "vector<4xi32>", 16))
            ]
            if vector.short:
                self.runs[known] = [Lanes(dtype, word=word) for word in words]
            else:
                wide = [bitcast(word, "f32") for word in words]
                pairs = [wide[i : i + 2] for i in range(0, RUN, 2)]
                self.runs[known] = [Lanes(dtype, scalars=p) if dtype == "f32" else Lanes(dtype, wide=p) for p in pairs]
        return self.runs[known][place.block % 4]

    def _staged(self, slot: Slot, pointer: Value, place: FragmentIndex) -> Lanes:
        source, rows, col = slot.source, self.plan.group_rows, 8 * place.block
        number, panel = next((n, p) for n, p in enumerate(source.panels) if p.start <= col < p.start + p.box)
        tile = swizzled(rows, panel.box)
        at = tile.offset(self.local_row + 8 * place.half, (self.quad << 1) + (col - panel.start))
        word = load(offset(offset(pointer, at), source.panel_offset(number, rows)), "i32")
        return Lanes(source.window.dtype, word=word)

    def _global(self, record: Load, sides: tuple[str, ...], place: FragmentIndex, cols: int) -> Lanes:
        window = Window.of(record, sides)
        start = self._start(load_key(record), window)
        if ROW in sides:
            start = self._row_start((load_key(record), sides), start, window, place)
        if COL not in sides:
            return _lanes(window.dtype, load_elements(start, window.dtype, 1, constant=window.constant))
        if self.plan.run == RUN and window.stride(COL) == 1 and window.align((COL,)) == 16:
            return self._run((load_key(record), sides), start, window, place, ROW in sides)
        together = window.stride(COL) == 1 and window.align((COL,)) >= min(16, 2 * window.bytes) and cols % 2 == 0
        return self._pair(start, window, window.stride(COL), place, cols, together)

    def _run(self, key: tuple, start: Value, window: Window, place: FragmentIndex, rows: bool) -> Lanes:
        """Two elements of the thread's run of eight, all of which are loaded at once. `start`: of the row, aligned to 16."""
        known = (key, place.half if rows else None, place.block // 4)
        if known not in self.runs:
            dtype, first = window.dtype, dataclasses.replace(place, block=place.block // 4 * 4)
            pointer = offset(start, i64(self.col(first)) * window.bytes)
            # Rows by no constant load: compilers would move it to its use.
            constant = window.constant and not rows
            if dtype in HALF_TYPES:
                words = unpack(load(pointer, "vector<4xi32>", 16, constant))
                self.runs[known] = [Lanes(dtype, word=word) for word in words]
            else:
                values = load_elements(pointer, dtype, RUN, align=16, constant=constant)
                self.runs[known] = [Lanes(dtype, scalars=values[i : i + 2]) for i in range(0, RUN, 2)]
        return self.runs[known][place.block % 4]

    def _start(self, key: tuple, window: Window) -> Value:
        if key not in self.addresses:
            self.addresses[key] = window.start(self.tile)
        return self.addresses[key]

    def _row_start(self, key: tuple, start: Value, window: Window, place: FragmentIndex) -> Value:
        known = (key, place.half)
        if known not in self.addresses:
            self.addresses[known] = offset(start, i64(self.row(place)) * (window.stride(ROW) * window.bytes))
        return self.addresses[known]

    def _pair(self, start: Value, window: Window, stride: int, place: FragmentIndex, cols: int, together: bool) -> Lanes:
        """Two elements `stride` apart, the first of them at the place's column after `start`."""
        size, dtype, col = window.bytes, window.dtype, self.col(place)
        if cols <= 1:
            return _lanes(dtype, load_elements(start, dtype, 1, constant=window.constant))
        partial = 8 * place.block + 8 > cols
        if together:
            at = select(col < cols, col, 0) if partial else col
            pointer = offset(start, i64(at) * size)
            if size == 2 and dtype in HALF_TYPES:
                return Lanes(dtype, word=load(pointer, "i32", 4, window.constant))
            return Lanes(dtype, scalars=load_elements(pointer, dtype, 2, align=min(16, 2 * size), constant=window.constant))
        values = []
        for lane in range(2):
            at = select(col + lane < cols, col + lane, 0) if partial else col + lane
            values += load_elements(offset(start, i64(at) * (stride * size)), dtype, 1, constant=window.constant)
        return Lanes(dtype, scalars=values)

    def extract(self, table: Load, indices: list[list[Value]], along: bool, place: FragmentIndex, cols: int) -> Lanes:
        """Elements of a table by index values: `indices` has one or two for each of its dimensions.

        Args:
            along: the last index is the column itself.
            cols: columns of the tensor that is made.
        """
        sides = [f"table{dim}" for dim, extent in enumerate(table.sizes) if extent != 1]
        window = Window.of(table, sides)
        base = self._start(load_key(table), window)
        strides = [window.stride(f"table{dim}") for dim in range(len(indices))]

        def moved(pointer: Value, dims: range, lane: int) -> Value:
            for dim in dims:
                index = to_integer(indices[dim][lane % len(indices[dim])])
                pointer = offset(pointer, index * (strides[dim] * window.bytes))
            return pointer

        if along:
            row = moved(base, range(len(indices) - 1), 0)
            if self.plan.run == RUN and strides[-1] == 1 and all(stride * window.bytes % 16 == 0 for stride in strides[:-1]):
                if window.align(sides) == 16:
                    key = (load_key(table), tuple(index[0].ir for index in indices[:-1]))
                    return self._run(key, row, window, place, True)
            aligned = all(stride * window.bytes % (2 * window.bytes) == 0 for stride in strides[:-1])
            together = aligned and strides[-1] == 1 and window.align(sides) >= min(16, 2 * window.bytes) and cols % 2 == 0
            return self._pair(row, window, strides[-1], place, cols, together)
        count = max(len(index) for index in indices)
        values = [
            load_elements(moved(base, range(len(indices)), lane), window.dtype, 1, constant=window.constant)[0]
            for lane in range(count)
        ]
        return _lanes(window.dtype, values)


class SliceMemory(Memory):
    """Reads at places whose columns are numbered from `first_col` on: those of the part that the caller has of a layer."""

    first_col: Value

    def col(self, place: FragmentIndex) -> Value:
        return super().col(place) + self.first_col


def _lanes(dtype: str, values: list[Value]) -> Lanes:
    return Lanes(dtype, scalars=values)


def to_integer(index: Value) -> Value:
    """An `index` value as i64."""
    if str(index.type) != "index":
        return i64(index)
    return wrap(arith.index_castui(as_type("i64"), index.ir))
