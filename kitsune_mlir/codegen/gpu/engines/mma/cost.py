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
from collections.abc import Iterable

from kitsune_mlir.machine import rates

__all__ = [
    "CHUNK_BYTES",
    "CLUSTERS",
    "HELD_BYTES",
    "LINE_BYTES",
    "MOST_PIECES",
    "Reading",
    "Work",
    "choose_pieces",
    "choose_way",
    "microseconds",
]

CHUNK_BYTES = 128
LINE_BYTES = 128
"""Of L2."""
CLUSTERS = (2,)
"""Blocks that may have an operand in common. (Of four, an H200 runs 30 clusters at a time: 12 multiprocessors have none.)"""
CLUSTER_LOSS = 1.05
"""How much longer clusters are said to take than the model has it: blocks wait for each other, which pays where much is won."""
HELD_BYTES = 24 << 20
"""Operands of together as many bytes stay in L2."""
MOST_PIECES = 12
LEAST_CHUNKS = 4
"""Chunks that a piece has at least."""
LEAST_AREA = 128 * 128
"""Of tiles of which the last ones may be shared while the others are one block's: with smaller ones that took half as long
again as two whole waves (128 x 64 of 1536 x 1024 x 4096 and of 768 x 2048 x 8192)."""


@dataclasses.dataclass(frozen=True)
class Reading:
    """What L2 gives of an operand for a chunk of a tile.

    Attributes:
        boxes: rows of a chunk that a stage holds, or, of operands that run across the sum, as many lines.
        straddling: they do not begin with a line of L2, so that each is in two of them.
    """

    boxes: int
    straddling: bool = False

    @property
    def lines(self) -> int:
        """Lines of L2."""
        return self.boxes * (2 if self.straddling else 1)


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
        lines: of L2 that a block asks for each chunk; 0: as many as it multiplies rows and columns.
        cluster: blocks of a cluster.
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
    lines: int = 0
    cluster: int = 1

    def usable(self, workers: int) -> int:
        """Of so many multiprocessors those that have a block."""
        return workers // self.cluster * self.cluster

    def chunk(self, busy: int) -> tuple[float, float]:
        """Microseconds of one chunk, at first and for long, while `busy` blocks work."""
        # tf32 has half the rate of 16-bit types, and half as many elements a chunk.
        products = self.rows * self.cols * (CHUNK_BYTES // 2) * self.steps
        bytes = (self.rows + self.cols) * CHUNK_BYTES
        asked = self.lines * LINE_BYTES or bytes
        least = bytes / rates.MMA_HALVING_RATE if self.steps > 1 else rates.MMA_CHUNK_LEAST

        first = max(least, _both(products / rates.MMA_TENSOR_RATE, bytes / rates.MMA_LOAD_RATE))
        return first, max(first, _both(products / rates.MMA_SUSTAINED_RATE, asked * busy / rates.MMA_SUSTAINED_LOADS))


def _both(one: float, other: float) -> float:
    """Time of two things side by side."""
    return max(one, other) + rates.MMA_OVERLAP_LOSS * min(one, other)


@functools.cache
def microseconds(work: Work, pieces: int, workers: int, whole: int = 0) -> float:
    """Time of the whole product on `workers` multiprocessors.

    Args:
        pieces: blocks that share a tile.
        whole: tiles that one block does alone before them, a multiple of the `workers` that are usable.
    """
    workers = work.usable(workers)
    count = (work.tiles - whole) * pieces
    alone, waves = whole // workers, -(-count // workers)
    chunks = alone * work.chunks + waves * -(-work.chunks // pieces)
    fast, slow = work.chunk(workers if whole else min(count, workers))
    if work.lines > work.rows + work.cols and chunks * slow > rates.MMA_SUSTAINED_AFTER:
        fast = slow  # L2 is slow from the beginning; short ones were not measured
    time = chunks * fast
    if time > rates.MMA_SUSTAINED_AFTER:
        time = rates.MMA_SUSTAINED_AFTER + (chunks - rates.MMA_SUSTAINED_AFTER / fast) * slow
    if work.operand_bytes > HELD_BYTES:
        asking = min(1.0, (workers if whole else count) / (rates.MMA_DRAM_ENOUGH * workers))
        time = _both(
            time, work.operand_bytes / (rates.MMA_DRAM_RATE * (1 - rates.MMA_DRAM_ASKING + rates.MMA_DRAM_ASKING * asking))
        )
    area = work.rows * work.cols
    store = area * work.result_bytes / rates.MMA_STORE_RATE / (pieces if not whole else 1)
    # All tiles but the last are stored while others are loaded.
    time += rates.MMA_START + store + (alone + waves - 1) * (rates.MMA_TURN + rates.MMA_STORE_SHARE * store)
    if pieces > 1:
        time = rates.MMA_SHARING * (time + waves * (rates.MMA_MEET + 2 * area * 4 / (1e-6 * rates.PARTIAL_RATE)))
    return time


@functools.cache
def choose_pieces(work: Work, workers: int) -> tuple[int, int]:
    """How many blocks should share each tile, and how many tiles before those one block does alone."""
    most = max(1, min(MOST_PIECES, workers, work.chunks // LEAST_CHUNKS))
    full = work.tiles // work.usable(workers) * work.usable(workers)
    choices = [(pieces, 0) for pieces in range(1, most + 1)]
    if 0 < full < work.tiles and work.rows * work.cols >= LEAST_AREA and not work.overlapping:
        choices += [(pieces, full) for pieces in range(2, most + 1)]
    return min(choices, key=lambda choice: (microseconds(work, choice[0], workers, choice[1]), choice))


def choose_way(works: Iterable[Work], workers: int) -> tuple[float, Work, int, int]:
    """The fastest of some ways to do the same: its time in microseconds, itself, and what `choose_pieces` says of it."""

    def timed(work: Work) -> tuple[float, Work, int, int]:
        pieces, whole = choose_pieces(work, workers)
        time = microseconds(work, pieces, workers, whole)
        return time * (CLUSTER_LOSS if work.cluster > 1 else 1), work, pieces, whole

    return min(map(timed, works), key=lambda way: way[0])
