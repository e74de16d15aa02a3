"""Rows of a chain added to rows of a buffer: four lanes that share a row exchange pairs, so that each adds wide pieces.

What is not added (rows before the first, numbers that name no row, padding) goes to the block's scratch: a branch around every
addition, which ptxas makes of a predicate, too, would keep it from interleaving the steps of neighbouring pieces.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from kitsune_mlir.codegen.gpu.chain_eval import Evaluator, Place
from kitsune_mlir.codegen.gpu.chain_match import QUAD, Chain, Scatter, addition_of
from kitsune_mlir.codegen.gpu.chain_memory import Memory
from kitsune_mlir.codegen.gpu.context import TileContext
from kitsune_mlir.codegen.gpu.elements import element_bytes
from kitsune_mlir.codegen.gpu.inline import pinned
from kitsune_mlir.codegen.gpu.memory import offset, reduce_add
from kitsune_mlir.codegen.gpu.mma_match import ROW
from kitsune_mlir.codegen.gpu.value import Value, bitcast, cast, i64, select, vector

__all__ = ["Scatterer", "numbers_of", "places_of", "scratch_bytes"]


def scratch_bytes(chain: Chain) -> int:
    """Bytes of scratch that a block needs for what is not added: the longest row."""
    return max((_row_bytes(scatter) for scatter in chain.scatters), default=0)


def _row_bytes(scatter: Scatter) -> int:
    return addition_of(scatter).columns * element_bytes(str(scatter.destination.element))


def places_of(memory: Memory) -> list[Place]:
    """A thread's rows, in tensor cores' order."""
    return [Place(unit, half, 0) for unit in range(memory.units) for half in range(2)]


def numbers_of(scatter: Scatter, tile: TileContext, memory: Memory, places: Sequence[Place]) -> dict[Place, Value]:
    """For each place the row of the buffer that its row is added to, i32; -1 for none. Fetched here, early."""
    first, rows = addition_of(scatter).first, scatter.destination.shape[0]
    numbers = []
    for place in places:
        number, exists = memory.load(scatter.indices, (ROW,), place, 1).at(0), memory.row_exists(place)
        wanted = number.below(rows) & (memory.row(place) >= tile.index(first))
        # Rows are far fewer than 2^31; a number outside of the buffer stays outside when it is cut.
        numbers.append(select(wanted if exists is None else wanted & exists, cast(number, "i32"), -1))
    return dict(zip(places, pinned(numbers), strict=True))


class Scatterer:
    """Adds rows of one warpgroup and tile.

    Args:
        scatter: what is added where.
        tile: the tile.
        evaluator: makes the rows.
        numbers: of the rows that are added to, by place (`numbers_of`).
    """

    def __init__(self, scatter: Scatter, tile: TileContext, evaluator: Evaluator, numbers: dict[Place, Value]):
        self.scatter, self.tile, self.evaluator, self.numbers = scatter, tile, evaluator, numbers
        self.addition = addition_of(scatter)
        self.rows: dict[Place, Value] = {}

    def add(self) -> None:
        """Add all rows."""
        blocks = self.addition.columns // 8
        for place in self.numbers:
            if self.addition.width == 8:
                for first in range(0, blocks, QUAD):
                    self.add_piece(dataclasses.replace(place, block=first))
            else:
                for block in range(-(-self.addition.columns // 8)):
                    self._pair(dataclasses.replace(place, block=block))

    def _pair(self, place: Place) -> None:
        memory, lanes = self.evaluator.memory, self.evaluator.tensor(self.scatter.updates, place)
        col, columns = memory.col(place), self.addition.columns
        pointer = self._at(place, select(col < columns, col, 0))
        if 8 * place.block + 8 > columns:
            pointer = select(col < columns, pointer, self.tile.task.scratch)
        reduce_add(pointer, [lanes.at(0), lanes.at(1)])

    def add_piece(self, place: Place) -> None:
        """Add the 16 bytes that the thread has of the 32 columns from block `place.block` on."""
        evaluator = self.evaluator
        words = evaluator.piece(self.scatter.updates, place)
        dtype = str(self.scatter.destination.element)
        pointer = self._at(place, evaluator.memory.piece_col(place))
        reduce_add(pointer, [bitcast(vector(words), f"vector<8x{dtype}>")])

    def _at(self, place: Place, col: Value) -> Value:
        """Where column `col` of the place's row is added."""
        row = dataclasses.replace(place, block=0)
        if row not in self.rows:
            number, task = self.numbers[row], self.tile.task
            start = offset(self.tile.pointer(self.scatter.destination), i64(number) * _row_bytes(self.scatter))
            self.rows[row] = select(number >= 0, start, task.scratch)
        return offset(self.rows[row], col * element_bytes(str(self.scatter.destination.element)))
