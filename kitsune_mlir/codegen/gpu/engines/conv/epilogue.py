"""From a convolution's accumulators to memory: element-wise steps on two features by two columns at a time.

A thread has, of each eight columns, two neighbouring ones of two rows of the product (`sm90.wgmma`). With paired
features (`conv.plan`) the two rows are neighbours in memory too. Columns are pixels, or the space between rows of pixels.
Of eight columns a thread evaluates feature f and column p, f and p + 1, f + 1 and p, f + 1 and p + 1 (f + 8 if features are not
paired) together.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.contraction.evaluate import Evaluator, Sides
from kitsune_mlir.codegen.gpu.emit.control_flow import if_all
from kitsune_mlir.codegen.gpu.emit.inline_ptx import fresh
from kitsune_mlir.codegen.gpu.emit.memory import offset
from kitsune_mlir.codegen.gpu.emit.value import Value, i64, select
from kitsune_mlir.codegen.gpu.emit.vectors import load_elements, store_elements
from kitsune_mlir.codegen.gpu.engines.conv.match import CHANNEL
from kitsune_mlir.codegen.gpu.engines.conv.plan import ConvPlan
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.codegen.gpu.interface.window import Window
from kitsune_mlir.dialects.tile_records import Load

__all__ = ["Epilogue"]

AHEAD = 48
"""Registers for what is read of images beside the product before the first of it is used: its ways overlap then."""


@dataclasses.dataclass(frozen=True)
class _Column:
    """A column as a pixel: its place along each dimension of the image, and whether it is one at all."""

    places: tuple[Value, ...]
    inside: Value | None


class Epilogue(Evaluator[int]):
    """Emits the stores of one warpgroup's part of a tile; places are numbers of eight columns.

    Args:
        plan: what was decided.
        tile: the tile.
        group: number of the warpgroup among those that multiply.
        accumulators: its product.
    """

    def __init__(self, plan: ConvPlan, tile: TileContext, group: Value, accumulators: Sequence[Value]):
        super().__init__(plan.conv.body, tile, [plan.conv.op])
        self.plan, self.accumulators = plan, accumulators
        geometry = plan.geometry
        thread = tile.task.thread % 128
        row = thread // 32 * 16 + (thread % 32 // 4) * (2 if plan.paired else 1)
        self.feature = row + group * 64 if geometry.by_features else row
        self.apart = 1 if plan.paired else 8
        self.column = thread % 4 * 2
        if not geometry.by_features:
            self.column = self.column + group * geometry.columns
        self.features_inside = self._features_inside()
        self.columns: list[_Column] = []
        self.is_ahead = False

    def store(self) -> None:
        """Write every result of the task."""
        numbers, together = range(self.plan.geometry.columns // 8), self._together()
        for first in numbers[::together]:
            some = numbers[first : first + together]
            if together > 1:
                self._read_ahead(some)
            for number in some:
                self._go_to(number)
                for store in self.body.task.stores:
                    window = Window.of(store, self.body.value_sides(store.tensor))
                    self._write(window, self.evaluate(store.tensor, number))

    def _go_to(self, number: int) -> None:
        self.columns = [self._column(8 * number), self._column(8 * number + 1)]

    def _read_ahead(self, numbers: Sequence[int]) -> None:
        self.is_ahead = True
        for number in numbers:
            self._go_to(number)
            self.read_ahead(number, lambda load, sides: _walks_pixels(sides))
        self.is_ahead = False

    def _together(self) -> int:
        """Of how many times eight columns what is beside the product is read at once; 1 where nothing is."""
        registers, seen = 0, set[tuple[ir.Value, Sides]]()
        uses = [(step.op, step.operands) for step in self.body.steps.values()]
        for op, operands in [*((op, (2,)) for op in self.products.values()), *uses]:
            for number in operands:
                load = self.body.task.load_of(op.operands[number])
                if load is None:
                    continue
                sides = self.body.operand_sides(op, number)
                if _walks_pixels(sides) and (load.tensor, sides) not in seen:
                    seen.add((load.tensor, sides))
                    window = Window.of(load, sides)
                    registers += 2 * max(1, window.bytes // 2) if self._pairs(window) else 4 * max(1, window.bytes // 4)
        return max(1, AHEAD // registers) if registers else 1

    # --- where elements are ----------------------------------------------------------------------------------------------

    def _features_inside(self) -> list[Value | None]:
        features, covered = self.plan.problem.features, self.plan.geometry.weight_rows
        if features == covered:
            return [None, None]
        return [self.feature + self.apart * half < features for half in range(2)]

    def _column(self, number: int) -> _Column:
        """The pixel of the thread's column `number`."""
        sizes, geometry = self.plan.problem.pixels, self.plan.geometry
        # Fresh: addresses of all columns are not computed ahead, where they would take the accumulators' registers.
        rest = fresh(self.column) + number
        places: list[Value] = []
        inside: Value | None = None
        wide = [dim for dim, size in enumerate(sizes) if size != 1]
        for dim, size in enumerate(sizes):
            if dim not in wide:
                places.append(rest * 0)
                continue
            pitch = geometry.pitches[dim]
            place = rest // pitch if pitch > 1 else rest
            rest = rest % pitch if pitch > 1 else rest * 0
            places.append(place)
            # The last column may lie behind the tile; between rows of pixels only where those are apart.
            first = dim == wide[0]
            gap = not first and geometry.pitches[wide[wide.index(dim) - 1]] != pitch * size
            if gap or (first and pitch * size < self._covered()):
                here = place < size
                inside = here if inside is None else inside & here
        if not wide:
            inside = self.column + number < 1
        return _Column(tuple(places), inside)

    def _covered(self) -> int:
        geometry = self.plan.geometry
        return geometry.columns * (1 if geometry.by_features else 2)

    # --- values ----------------------------------------------------------------------------------------------------------

    def where(self, sides: Sides, place: int) -> int | None:
        return place if _walks_pixels(sides) else None

    def distinct(self, sides: Sides) -> list[int]:
        features, columns = CHANNEL in sides, _walks_pixels(sides)
        return [2 * half * features + column * columns for half in range(2) for column in range(2)]

    def sums(self, product: ir.Operation, place: int) -> list[Value]:
        return list(self.accumulators[4 * place : 4 * place + 4])

    def read(self, load: Load, sides: Sides, place: int) -> list[Value]:
        window, distinct = Window.of(load, sides), self.distinct(sides)
        # Ahead no constant load: LLVM would move it to its use.
        dtype, constant = window.dtype, window.constant and not self.is_ahead
        found: dict[int, Value] = {}
        for column in range(2):
            if column not in distinct:
                continue
            if self._pairs(window):
                pointer = self._pointer(window, 0, column, clamped=True)
                pair = load_elements(pointer, dtype, 2, align=min(16, 2 * window.bytes), constant=constant)
                found[column], found[2 + column] = pair
                continue
            for half in range(2 if CHANNEL in sides else 1):
                pointer = self._pointer(window, half, column, clamped=True)
                found[2 * half + column] = load_elements(pointer, dtype, 1, constant=constant)[0]
        return [found[element] for element in distinct]

    # --- memory ----------------------------------------------------------------------------------------------------------

    def _pointer(self, window: Window, half: int, column: int, clamped: bool) -> Value:
        """Pointer to an element; to the tile's first where there is none and `clamped`."""
        pixel = self.columns[column]
        total: Value | None = None
        for dim, at in enumerate(pixel.places):
            if window.along(dim):
                moved = at * window.stride(dim)
                total = moved if total is None else total + moved
        if total is not None and clamped and pixel.inside is not None:
            total = select(pixel.inside, total, 0)
        feature = self.feature + self.apart * half
        if window.along(CHANNEL):
            inside = self.features_inside[half]
            moved = feature if not clamped or inside is None else select(inside, feature, 0)
            moved = moved * window.stride(CHANNEL)
            total = moved if total is None else total + moved
        pointer = window.start(self.tile)
        return pointer if total is None else offset(pointer, i64(total) * window.bytes)

    def _pairs(self, window: Window) -> bool:
        """Whether a thread's two features are one aligned access."""
        if not self.plan.paired or window.stride(CHANNEL) != 1 or self.plan.problem.features % 2:
            return False
        return window.align((CHANNEL,)) >= min(16, 2 * window.bytes)

    def _write(self, window: Window, values: Sequence[Value]) -> None:
        dtype, size = window.dtype, window.bytes
        for column in range(2):
            inside = self.columns[column].inside
            if self._pairs(window):
                pointer = self._pointer(window, 0, column, clamped=False)
                write = functools.partial(store_elements, [values[column], values[2 + column]], pointer, dtype, 2 * size)
                if_all([inside, self.features_inside[0]], write)
                continue
            for half in range(2):
                pointer = self._pointer(window, half, column, clamped=False)
                write = functools.partial(store_elements, [values[2 * half + column]], pointer, dtype, size)
                if_all([inside, self.features_inside[half]], write)


def _walks_pixels(sides: Sides) -> bool:
    """Whether a tensor lies along some dimension of the image."""
    return any(side != CHANNEL for side in sides)
