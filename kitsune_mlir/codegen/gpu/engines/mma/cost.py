"""How long a product takes by tile and pieces: a model of the chip in plain numbers. Pure Python, no IR.

A block multiplies one chunk (128 bytes a row along the sum) after the other, at the pace of the tensor cores or of its loads,
whichever is slower, and a little slower for the other. For long, all blocks together are slower, because they share L2 and the
power supply, and none is faster than DRAM brings the operands. Before a block's first chunk comes a latency, after its last
one the store; where blocks share a tile, writing and reading the partial results. The constants fit times measured on an H200
(`test/unit/test_mma_cost.py` has them).
"""

from __future__ import annotations

import dataclasses
import functools

__all__ = ["CHUNK_BYTES", "HELD_BYTES", "MOST_PIECES", "Work", "choose_pieces", "microseconds"]

CHUNK_BYTES = 128
TENSOR_RATE = 3.15e6
"""16-bit multiplications (each with an addition) of a multiprocessor in a microsecond, all of them busy."""
SUSTAINED_RATE = 3.05e6
"""The same for long."""
SUSTAINED_AFTER = 40.0
"""Microseconds of products after which the limits of power and L2 show."""
CHUNK_LEAST = 0.16
"""Microseconds of the smallest chunk: barriers, and starting loads and products."""
LOAD_RATE = 1.08e5
"""Bytes that a multiprocessor takes from L2 in a microsecond, about the same with 96 busy ones as with 132: 64 a cycle. (What
comes in is the same with a multicast to the blocks of a cluster, which was not tried.)"""
SUSTAINED_LOADS = 1.15e7
"""Bytes that all multiprocessors together take from L2 in a microsecond, for long."""
TOGETHER = 0.1
"""Part of products, loads or DRAM, whichever take less time, that is not hidden behind the others."""
DRAM_RATE = 3.9e6
"""Bytes of operands that come from memory in a microsecond, where L2 does not hold them from call to call."""
ASKING, ENOUGH = 0.25, 0.9
"""The part of `DRAM_RATE` that grows with the multiprocessors that ask for operands, up to this part of all."""
HELD_BYTES = 24 << 20
"""Operands of together as many bytes stay in L2."""
START = 1.8
"""Microseconds from a task's start to the first product, and from the last store to the end."""
STORE_RATE = 2.24e4
"""Bytes of a result that a multiprocessor brings from accumulators to memory in a microsecond."""
TURN = 0.13
"""Microseconds from a block's one tile to its next, beside what of the store stands in the way of its products."""
STORE_SHARE = 0.64
"""That part of it."""
MEET = 0.7
"""Microseconds from one block's announcement of its partial results to others' sums."""
PARTIAL_RATE = 5.3e4
"""Bytes of partial results that a multiprocessor writes or reads in a microsecond: all that it has, and as many of others."""
HALVING_RATE = 2.7e4
"""Bytes of f32 operands that a multiprocessor halves in a microsecond (`contraction.tf32x3`)."""
SHARING = 1.015
"""What blocks that share tiles lose of all their time, as they meet and differ."""
MOST_PIECES = 12
LEAST_CHUNKS = 4
"""Chunks that a piece has at least."""
LEAST_AREA = 128 * 128
"""Of tiles of which the last ones may be shared while the others are one block's: with smaller ones that took half as long
again as two whole waves (128 x 64 of 1536 x 1024 x 4096 and of 768 x 2048 x 8192)."""


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
        operand_bytes: of both operands as a whole.
        overlapping: some tiles overlap, as sizes do not divide; both write the same bits only if both are summed in one way.
    """

    tiles: int
    chunks: int
    rows: int
    cols: int
    steps: int = 1
    element_bytes: int = 2
    result_bytes: int = 2
    operand_bytes: int = 0
    overlapping: bool = False

    def chunk(self, busy: int) -> tuple[float, float]:
        """Microseconds of one chunk, at first and for long, while `busy` blocks work."""
        # tf32 has half the rate of 16-bit types, and half as many elements a chunk.
        products = self.rows * self.cols * (CHUNK_BYTES // 2) * self.steps
        bytes = (self.rows + self.cols) * CHUNK_BYTES
        least = bytes / HALVING_RATE if self.steps > 1 else CHUNK_LEAST

        first = max(least, _both(products / TENSOR_RATE, bytes / LOAD_RATE))
        return first, max(first, _both(products / SUSTAINED_RATE, bytes * busy / SUSTAINED_LOADS))


def _both(one: float, other: float) -> float:
    """Time of two things side by side."""
    return max(one, other) + TOGETHER * min(one, other)


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
    if work.operand_bytes > HELD_BYTES:
        asking = min(1.0, (workers if whole else count) / (ENOUGH * workers))
        time = _both(time, work.operand_bytes / (DRAM_RATE * (1 - ASKING + ASKING * asking)))
    area = work.rows * work.cols
    store = area * work.result_bytes / STORE_RATE / (pieces if not whole else 1)
    # All tiles but the last are stored while others are loaded.
    time += START + store + (alone + waves - 1) * (TURN + STORE_SHARE * store)
    if pieces > 1:
        time = SHARING * (time + waves * (MEET + 2 * area * 4 / PARTIAL_RATE))
    return time


def choose_pieces(work: Work, workers: int) -> tuple[int, int]:
    """How many blocks should share each tile, and how many tiles before those one block does alone."""
    most = max(1, min(MOST_PIECES, workers, work.chunks // LEAST_CHUNKS))
    full = work.tiles // workers * workers
    choices = [(pieces, 0) for pieces in range(1, most + 1)]
    if 0 < full < work.tiles and work.rows * work.cols >= LEAST_AREA and not work.overlapping:
        choices += [(pieces, full) for pieces in range(2, most + 1)]
    return min(choices, key=lambda choice: (microseconds(work, choice[0], workers, choice[1]), choice))
