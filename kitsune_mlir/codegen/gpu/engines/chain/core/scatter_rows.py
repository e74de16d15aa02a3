"""Rows of a chain added to rows of a buffer: four lanes that share a row exchange pairs, so that each adds wide pieces.

What is not added: rows before the first, numbers that name no row, padding. Of wide rows it goes to the block's scratch: a
branch around every addition, which ptxas makes of a predicate, too, would keep it from interleaving neighbouring pieces.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from kitsune_mlir.codegen.gpu.contraction.axes import ROW
from kitsune_mlir.codegen.gpu.emit.control_flow import if_
from kitsune_mlir.codegen.gpu.emit.inline_ptx import pinned
from kitsune_mlir.codegen.gpu.emit.memory import offset, reduce_add
from kitsune_mlir.codegen.gpu.emit.value import Value, bitcast, cast, i32, i64, select, vector
from kitsune_mlir.codegen.gpu.emit.vectors import dtype_bytes
from kitsune_mlir.codegen.gpu.engines.chain.core.body import QUAD, Chain, Scatter, addition_of
from kitsune_mlir.codegen.gpu.engines.chain.core.evaluate import Evaluator
from kitsune_mlir.codegen.gpu.engines.chain.core.fragment_index import FragmentIndex
from kitsune_mlir.codegen.gpu.engines.chain.core.operand_reads import Memory
from kitsune_mlir.codegen.gpu.interface.context import TileContext

__all__ = ["Scatterer", "ROWS", "numbers_of", "scratch_bytes"]


ROWS = FragmentIndex(0, 0), FragmentIndex(1, 0)
"""A thread's rows, in tensor cores' order."""


def scratch_bytes(chain: Chain) -> int:
    """Bytes of scratch that a block needs for what is not added: the longest row."""
    return max((_row_bytes(scatter) for scatter in chain.scatters), default=0)


def _row_bytes(scatter: Scatter) -> int:
    return addition_of(scatter).columns * dtype_bytes(str(scatter.destination.element))


def numbers_of(
    scatter: Scatter, tile: TileContext, memory: Memory, places: Sequence[FragmentIndex]
) -> dict[FragmentIndex, Value]:
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

    def __init__(self, scatter: Scatter, tile: TileContext, evaluator: Evaluator, numbers: dict[FragmentIndex, Value]):
        self.scatter, self.tile, self.evaluator, self.numbers = scatter, tile, evaluator, numbers
        self.addition = addition_of(scatter)
        self.rows: dict[FragmentIndex, Value] = {}

    def add(self) -> None:
        """Add all rows."""
        blocks = self.addition.columns // 8
        for place in self.numbers:
            if self.addition.width == 8:
                for first in range(0, blocks, QUAD):
                    self._add_piece(dataclasses.replace(place, block=first), branch=True)
            else:
                for block in range(-(-self.addition.columns // 8)):
                    self._pair(dataclasses.replace(place, block=block))

    def _pair(self, place: FragmentIndex) -> None:
        memory, lanes = self.evaluator.memory, self.evaluator.tensor(self.scatter.updates, place)
        col, wanted = memory.col(place), self.numbers[dataclasses.replace(place, block=0)] >= 0
        if 8 * place.block + 8 > self.addition.columns:
            wanted = wanted & (col < self.addition.columns)
        if_(wanted, lambda: reduce_add(self._at(place, col), [lanes.at(0), lanes.at(1)]))

    def add_piece(self, place: FragmentIndex) -> None:
        """Add the 16 bytes that the thread has of the 32 columns from block `place.block` on; to scratch if to no row."""
        self._add_piece(place, branch=False)

    def _add_piece(self, place: FragmentIndex, branch: bool) -> None:
        evaluator, row = self.evaluator, dataclasses.replace(place, block=0)
        words = evaluator.piece(self.scatter.updates, place)
        values = [bitcast(vector(words), f"vector<8x{self.scatter.destination.element}>")]
        col, wanted = evaluator.memory.piece_col(place), self.numbers[row] >= 0
        if branch:
            if_(wanted, lambda: reduce_add(self._at(place, col), values))
            return
        if row not in self.rows:
            self.rows[row] = select(wanted, self._at(place, i32(0)), self.tile.task.scratch)
        reduce_add(offset(self.rows[row], col * self._size), values)

    @property
    def _size(self) -> int:
        return dtype_bytes(str(self.scatter.destination.element))

    def _at(self, place: FragmentIndex, col: Value) -> Value:
        """Where column `col` of the place's row is added."""
        number = self.numbers[dataclasses.replace(place, block=0)]
        return offset(
            self.tile.pointer(self.scatter.destination), (i64(number) * self.addition.columns + i64(col)) * self._size
        )
