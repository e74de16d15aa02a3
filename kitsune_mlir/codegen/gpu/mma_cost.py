"""How long a product takes by tile and pieces: a model of the chip in plain numbers. Pure Python, no IR.

A block multiplies one chunk (128 bytes a row along the sum) after the other, at the pace of the tensor cores or of its loads,
whichever is slower; all blocks together are slower than one, because they share L2 and the power supply. Before a block's first
chunk comes a latency, after its last one the store; where blocks share a tile, writing and reading the partial results. The
constants fit times measured on an H200 (`test/unit/test_mma_cost.py` has them).
"""

from __future__ import annotations

import dataclasses
import functools

__all__ = ["CHUNK_BYTES", "MOST_PIECES", "Work", "choose_pieces", "microseconds"]

CHUNK_BYTES = 128
TENSOR_RATE = 3.75e6
"""16-bit multiplications (each with an addition) of a multiprocessor in a microsecond, at full clock."""
SUSTAINED_RATE = 2.8e6
"""The same when all multiprocessors work for long."""
SUSTAINED_AFTER = 40.0
"""Microseconds of products after which the limits of power and L2 show."""
LOAD_RATE = 1.75e5
"""Bytes that a multiprocessor takes from L2 in a microsecond."""
SUSTAINED_LOADS = 1.05e7
"""Bytes that all multiprocessors together take from L2 in a microsecond, for long."""
START = 2.9
"""Microseconds from a task's start to the first product, and from the last store to the end."""
STORE_RATE = 3.6e4
"""Bytes of a result that a multiprocessor brings from accumulators to memory in a microsecond."""
TURN = 0.6
"""Microseconds from a block's one tile to its next."""
MEET = 1.5
"""Microseconds from one block's announcement of its partial results to others' sums."""
PARTIAL_RATE = 5.2e4
"""Bytes of partial results that a multiprocessor writes or reads in a microsecond: all that it has, and as many of others."""
HALVING_RATE = 2.7e4
"""Bytes of f32 operands that a multiprocessor halves in a microsecond (`mma_halves`)."""
FEW_ROWS = 1.3
"""How much slower tiles of 64 rows are, whose warpgroups have different columns."""
MOST_PIECES = 12
LEAST_CHUNKS = 4
"""Chunks that a piece has at least."""


@dataclasses.dataclass(frozen=True)
class Work:
    """A product cut into tiles.

    Attributes:
        tiles: number of tiles.
        chunks: of the sum.
        rows, cols: that a block multiplies a tile, padding included.
        steps: products of tensor cores for one of the result: 1, or more where an element is a sum of several.
        element_bytes: of the operands.
        result_bytes: of a result's element.
    """

    tiles: int
    chunks: int
    rows: int
    cols: int
    steps: int = 1
    element_bytes: int = 2
    result_bytes: int = 2

    def chunk(self, busy: int) -> tuple[float, float]:
        """Microseconds of one chunk, at first and for long, while `busy` blocks work."""
        # tf32 has half the rate of 16-bit types, and half as many elements a chunk.
        products = self.rows * self.cols * (CHUNK_BYTES // 2) * self.steps * (FEW_ROWS if self.rows <= 64 else 1)
        bytes = (self.rows + self.cols) * CHUNK_BYTES
        first = max(products / TENSOR_RATE, bytes / (HALVING_RATE if self.steps > 1 else LOAD_RATE))
        return first, max(first, products / SUSTAINED_RATE, bytes * busy / SUSTAINED_LOADS)


@functools.cache
def microseconds(work: Work, pieces: int, workers: int, whole: int = 0) -> float:
    """Time of the whole product on `workers` multiprocessors.

    Args:
        pieces: blocks that share a tile.
        whole: tiles that one block does alone before them, a multiple of `workers`.
    """
    count = (work.tiles - whole) * pieces
    alone, waves = whole // workers, -(-count // workers)
    chunks = alone * work.chunks + waves * -(-work.chunks // pieces)
    fast, slow = work.chunk(workers if whole else min(count, workers))
    time = chunks * fast
    if time > SUSTAINED_AFTER:
        time = SUSTAINED_AFTER + (chunks - SUSTAINED_AFTER / fast) * slow
    area = work.rows * work.cols
    store = area * work.result_bytes / STORE_RATE / (pieces if not whole else 1)
    # All tiles but the last are stored while others are loaded.
    time += START + store + (alone + waves - 1) * (TURN + 0.3 * store)
    if pieces > 1:
        time += waves * (MEET + 2 * area * 4 / PARTIAL_RATE)
    return time


def choose_pieces(work: Work, workers: int) -> tuple[int, int]:
    """How many blocks should share each tile, and how many tiles before those one block does alone."""
    most = max(1, min(MOST_PIECES, workers, work.chunks // LEAST_CHUNKS))
    full = work.tiles // workers * workers
    choices = [(pieces, 0) for pieces in range(1, most + 1)]
    if 0 < full < work.tiles:
        choices += [(pieces, full) for pieces in range(2, most + 1)]
    return min(choices, key=lambda choice: (microseconds(work, choice[0], workers, choice[1]), choice))
