"""How long a product takes by tile and pieces: a model of the chip in plain numbers. Pure Python, no IR.

A block multiplies one chunk (64 elements of the sum, 128 bytes a row) after the other, at the pace of the tensor cores or of
its loads, whichever is slower. Before the first chunk comes a latency, after the last one the epilogue; where blocks share a
tile, writing and reading the partial results. Blocks work in waves. The constants fit times measured on an H200
(`test/unit/test_mma_cost.py` has them).
"""

from __future__ import annotations

import dataclasses
import functools

__all__ = ["MOST_PIECES", "Work", "choose_pieces", "microseconds"]

CHUNK_BYTES = 128
TENSOR_RATE = 3.55e6
"""Multiplications and additions (16-bit) of a multiprocessor in a microsecond."""
LOAD_RATE = 1.0e5
"""Bytes that a multiprocessor takes from L2 in a microsecond."""
STORE_RATE = 6.0e4
"""Bytes of a result that a multiprocessor brings from accumulators to memory in a microsecond."""
PARTIAL_RATE = 8.0e4
"""Bytes of partial results that a multiprocessor writes or reads in a microsecond."""
START = 2.5
"""Microseconds from a kernel's, or a task's, start to the first product."""
MEET = 1.5
"""Microseconds from one block's announcement to another's reaction."""
DRAM_RATE = 4.0e6
"""Bytes of memory in a microsecond, for the whole chip."""
MOST_PIECES = 8
LEAST_CHUNKS = 4
"""Chunks that a piece has at least."""


@dataclasses.dataclass(frozen=True)
class Work:
    """A product cut into tiles.

    Attributes:
        tiles: number of tiles.
        chunks: of the sum.
        rows, cols: that a block multiplies a tile, padding included.
        element_bytes: of the operands.
        result_bytes: of a result's element.
    """

    tiles: int
    chunks: int
    rows: int
    cols: int
    element_bytes: int = 2
    result_bytes: int = 2

    @property
    def chunk(self) -> float:
        """Microseconds of one chunk."""
        terms = CHUNK_BYTES // self.element_bytes
        products = self.rows * self.cols * terms * (self.element_bytes / 2) / TENSOR_RATE
        return max(products, (self.rows + self.cols) * CHUNK_BYTES / LOAD_RATE)


@functools.cache
def microseconds(work: Work, pieces: int, workers: int) -> float:
    """Time of the whole product with `pieces` blocks a tile, on `workers` multiprocessors."""
    waves = -(-work.tiles * pieces // workers)
    length = -(-work.chunks // pieces)
    area = work.rows * work.cols
    store = area * work.result_bytes / STORE_RATE
    time = START + waves * length * work.chunk + store
    if waves > 1:
        # Loads go on while a tile is stored, products wait for about half of it.
        time += (waves - 1) * store / 2
    if pieces > 1:
        partial = area * 4 / PARTIAL_RATE
        time += MEET + waves * partial * pieces
    return time


def choose_pieces(tiles: int, chunks: int, rows: int, cols: int, workers: int) -> int:
    """How many blocks should share each tile."""
    most = max(1, min(MOST_PIECES, chunks // LEAST_CHUNKS))
    work = Work(tiles, chunks, rows, cols)
    return min(range(1, most + 1), key=lambda pieces: (microseconds(work, pieces, workers), pieces))
