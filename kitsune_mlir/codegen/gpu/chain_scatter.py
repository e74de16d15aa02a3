"""Rows of a chain added to rows of a buffer: four lanes that share a row exchange pairs, so that each adds wide pieces."""

from __future__ import annotations

import dataclasses

from kitsune_mlir.codegen.gpu.chain_eval import Evaluator, Place
from kitsune_mlir.codegen.gpu.chain_match import QUAD, Scatter, addition_of
from kitsune_mlir.codegen.gpu.context import TileContext
from kitsune_mlir.codegen.gpu.inline import pinned
from kitsune_mlir.codegen.gpu.mma_match import ROW
from kitsune_mlir.codegen.gpu.scatter import add_row
from kitsune_mlir.codegen.gpu.value import Value, bitcast, cast, select, vector

__all__ = ["Scatterer"]


class Scatterer:
    """Adds the rows of one warpgroup and tile; made early, because it fetches the rows' numbers.

    Args:
        scatter: what is added where.
        tile: the tile.
        evaluator: makes the rows.
    """

    def __init__(self, scatter: Scatter, tile: TileContext, evaluator: Evaluator):
        self.scatter, self.tile, self.evaluator = scatter, tile, evaluator
        self.addition = addition_of(scatter)
        memory = evaluator.memory
        places = [Place(unit, half, 0) for unit in range(memory.units) for half in range(2)]
        numbers = [memory.load(scatter.indices, (ROW,), place, 1).at(0) for place in places]
        # Rows are far fewer than 2^31; a number outside of the buffer stays outside when it is cut.
        narrow = [select(number.below(scatter.destination.shape[0]), cast(number, "i32"), -1) for number in numbers]
        self.numbers = dict(zip(places, pinned(narrow), strict=True))

    def add(self) -> None:
        """Add all rows."""
        blocks = self.addition.columns // 8
        for place, number in self.numbers.items():
            if self.addition.width == 8:
                for first in range(0, blocks, QUAD):
                    self.add_piece(dataclasses.replace(place, block=first))
            else:
                for block in range(-(-self.addition.columns // 8)):
                    self._pair(Place(place.unit, place.half, block), number)

    def _pair(self, place: Place, number: Value) -> None:
        memory, lanes = self.evaluator.memory, self.evaluator.tensor(self.scatter.updates, place)
        col = memory.col(place)
        if 8 * place.block + 8 > self.addition.columns:
            number = select(col < self.addition.columns, number, -1)
        self._add(place, number, col, [lanes.at(0), lanes.at(1)])

    def add_piece(self, place: Place) -> None:
        """Add the 16 bytes that the thread has of the 32 columns from block `place.block` on."""
        evaluator = self.evaluator
        words = evaluator.piece(self.scatter.updates, place)
        number = self.numbers[dataclasses.replace(place, block=0)]
        quad = evaluator.memory.quad
        dtype = str(self.scatter.destination.element)
        self._add(place, number, (quad << 3) + 8 * place.block, [bitcast(vector(words), f"vector<8x{dtype}>")])

    def _add(self, place: Place, number: Value, col: Value, values: list[Value]) -> None:
        row = self.evaluator.memory.row(place)
        exists = self.evaluator.memory.row_exists(place)
        if exists is not None:
            number = select(exists, number, -1)
        add_row(self.addition, self.tile, row, number, col, values)
