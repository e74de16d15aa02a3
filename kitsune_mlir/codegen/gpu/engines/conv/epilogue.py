"""From a convolution's accumulators to memory: element-wise steps on blocks of two features by two columns.

A thread has, of each eight columns, two neighbouring ones of two rows of the product (`sm90.wgmma`). With paired
features (`conv.plan`) the two rows are neighbours in memory too. Columns are pixels, or the space between rows of pixels.
A block (`conv.epilogue_eval`) is feature f and column p, f and p + 1, f + 1 and p, f + 1 and p + 1 (f + 8 if features are not
paired).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from kitsune_mlir.codegen.gpu.emit.inline_ptx import fresh
from kitsune_mlir.codegen.gpu.emit.memory import offset
from kitsune_mlir.codegen.gpu.emit.value import Value, i64, select
from kitsune_mlir.codegen.gpu.emit.vectors import load_elements, store_elements
from kitsune_mlir.codegen.gpu.engines.conv.epilogue_eval import Block, Sides, Steps, guarded, neighbours_align
from kitsune_mlir.codegen.gpu.engines.conv.match import CHANNEL
from kitsune_mlir.codegen.gpu.engines.conv.plan import ConvPlan
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.dialects.sizes import element_bytes
from kitsune_mlir.dialects.tile_records import Load, Store

__all__ = ["Epilogue"]


@dataclasses.dataclass(frozen=True)
class _Column:
    """A column as a pixel: its place along each dimension of the image, and whether it is one at all."""

    places: tuple[Value, ...]
    inside: Value | None


class Epilogue(Steps):
    """Emits the stores of one warpgroup's part of a tile.

    Args:
        plan: what was decided.
        tile: the tile.
        group: number of the warpgroup among those that multiply.
        accumulators: its product.
    """

    def __init__(self, plan: ConvPlan, tile: TileContext, group: Value, accumulators: Sequence[Value]):
        super().__init__(plan.conv, tile, count=4)
        self.plan, self.accumulators, self.number = plan, accumulators, 0
        geometry = plan.geometry
        thread = tile.task.thread % 128
        row = thread // 32 * 16 + (thread % 32 // 4) * (2 if plan.paired else 1)
        self.feature = row + group * 64 if geometry.by_features else row
        self.apart = 1 if plan.paired else 8
        self.column = thread % 4 * 2
        if not geometry.by_features:
            self.column = self.column + group * geometry.columns
        self.features_inside = self._features_inside()
        self.columns: dict[int, _Column] = {}

    def store(self) -> None:
        """Write every result of the task."""
        for number in range(self.plan.geometry.columns // 8):
            self.number, first = number, 8 * number
            self.columns = {0: self._column(first), 1: self._column(first + 1)}
            self.next_pixels()
            for store in self.conv.task.stores:
                sides = self.conv.body.value_sides(store.tensor)
                self._write(store, sides, self.evaluate(store.tensor, sides))

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

    def sums(self) -> Block:
        return list(self.accumulators[4 * self.number : 4 * self.number + 4])

    # --- memory ----------------------------------------------------------------------------------------------------------

    def _place(self, record: Load | Store, strides: dict[int, int], half: int, column: int, clamped: bool) -> Value:
        """Pointer to an element; to the tile's first where there is none and `clamped`."""
        size = element_bytes(record.buffer.element)
        pixel = self.columns[column]
        total: Value | None = None
        for dim, place in enumerate(pixel.places):
            if dim in strides:
                moved = place * strides[dim]
                total = moved if total is None else total + moved
        if total is not None and clamped and pixel.inside is not None:
            total = select(pixel.inside, total, 0)
        feature = self.feature + self.apart * half
        if CHANNEL in strides:
            inside = self.features_inside[half]
            moved = feature if not clamped or inside is None else select(inside, feature, 0)
            moved = moved * strides[CHANNEL]
            total = moved if total is None else total + moved
        pointer = self.start(record)
        return pointer if total is None else offset(pointer, i64(total) * size)

    def _pairs(self, record: Load | Store, strides: dict[int, int]) -> bool:
        """Whether a thread's two features are one aligned access."""
        if not self.plan.paired or strides.get(CHANNEL) != 1 or self.plan.problem.features % 2:
            return False
        return neighbours_align(record, 2)

    def read(self, load: Load, sides: Sides) -> Block:
        strides = self.strides(load, sides)
        dtype, constant = str(load.buffer.element), load.buffer.role == "input"
        size = element_bytes(load.buffer.element)
        moves = any(side != CHANNEL for side in strides)
        found: dict[tuple[int, int], Value] = {}
        for column in range(2 if moves else 1):
            if self._pairs(load, strides):
                place = self._place(load, strides, 0, column, clamped=True)
                pair = load_elements(place, dtype, 2, align=min(16, 2 * size), constant=constant)
                found[0, column], found[1, column] = pair
                continue
            for half in range(2 if CHANNEL in strides else 1):
                place = self._place(load, strides, half, column, clamped=True)
                found[half, column] = load_elements(place, dtype, 1, constant=constant)[0]
        return [
            found[half if (half, 0) in found else 0, column if (0, column) in found else 0]
            for half in (0, 1)
            for column in (0, 1)
        ]

    def _write(self, store: Store, sides: Sides, block: Block) -> None:
        strides = self.strides(store, sides)
        dtype, size = str(store.buffer.element), element_bytes(store.buffer.element)
        for column in range(2):
            inside = self.columns[column].inside
            if self._pairs(store, strides):
                pair = [block[column], block[2 + column]]
                place = self._place(store, strides, 0, column, clamped=False)
                write = functools.partial(store_elements, pair, place, dtype, 2 * size)
                guarded(write, inside, self.features_inside[0])
                continue
            for half in range(2):
                place = self._place(store, strides, half, column, clamped=False)
                write = functools.partial(store_elements, [block[2 * half + column]], place, dtype, size)
                guarded(write, inside, self.features_inside[half])
