"""Tiles that several blocks share: each does a piece of the sum, and then the partial results are added up.

Either the last piece's block adds those of the others, or (`Split.spread`) every block adds up its own part of the tile. The
pieces of a tile are neighbours in the order in which blocks take work. In the first way only the last one waits, for earlier
ones: so the rule that lets every program make progress holds. In the second all pieces of a tile wait for each other; they are
no more than there are blocks, so each is on a block of its own, whose earlier pieces are of earlier tiles: by induction over
the tiles all end. The order of the additions is fixed, so results depend neither on timing nor on which block adds.

Partial results lie in memory that all tasks of a program share. Two regions take turns, each as large as its largest task's; a
task writes into its region only after the task that had it before has read everything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from kitsune_mlir.codegen.gpu.emit.value import Value

__all__ = ["Number", "PartialsSlot", "Split", "lay_out"]

REGIONS = 2

Number = int | Value


@dataclasses.dataclass(frozen=True)
class Split:
    """What a plan wants.

    Attributes:
        pieces: of each tile, at least 2.
        bytes: of the partial results of all tiles that are shared.
        arrivals: counters that pieces use to announce theirs.
        reads: posts that a task makes, one after each read of partial results, until all are read.
        whole: tiles at the beginning that one block does alone: only the last wave's are shared. They are "piece" `pieces`.
        spread: every piece's block adds up, stores and posts a part of the tile.
        by_piece: neighbouring blocks do the same piece of neighbouring tiles, which reads the same operands, and not the pieces
            of one tile, which share nothing; only where every piece of work has a block of its own.
        chained: every piece's block stores and posts a part of the tile, and waits for the pieces before its own alone. There
            may be more of them than blocks.
        own: the memory is zero at first and nobody else's: other numbers could be taken for flags that are there.
    """

    pieces: int
    bytes: int
    arrivals: int
    reads: int
    whole: int = 0
    spread: bool = False
    by_piece: bool = False
    chained: bool = False
    own: bool = False

    @property
    def posts(self) -> int:
        """Pieces of a tile that post a part of it each."""
        return self.pieces if self.spread or self.chained else 1

    @property
    def parts(self) -> int:
        """Partial results of a tile that go through memory."""
        return self.pieces if self.spread else self.pieces - 1

    def count(self, tiles: int) -> int:
        """Pieces of work of a task of `tiles` tiles."""
        return self.whole + (tiles - self.whole) * self.pieces


@dataclasses.dataclass(frozen=True)
class PartialsSlot:
    """What a task gets: numbers, or where tasks share their code what the running one has.

    Attributes:
        offset: of its partial results, in bytes from the start of the memory of all.
        arrivals: number of its first counter.
        read: number of the counter for `Split.reads`.
        before: (counter, posts) to wait for before the first write, or None.
    """

    offset: Number
    arrivals: Number
    read: Number
    before: tuple[Number, Number] | None


def lay_out(splits: Sequence[Split | None], counters: int) -> tuple[list[PartialsSlot | None], int, int]:
    """Places of all tasks' partial results; the bytes of them all; the number of counters, `counters` other ones included."""
    turns = [split for split in splits if split]  # which have one region and the other in turn
    sizes = [-(-max((split.bytes for split in turns[first::REGIONS]), default=0) // 256) * 256 for first in range(REGIONS)]
    places: list[PartialsSlot | None] = []
    last: list[tuple[int, int] | None] = [None] * REGIONS
    region = 0
    for split in splits:
        if split is None:
            places.append(None)
            continue
        read = counters + split.arrivals
        places.append(PartialsSlot(sum(sizes[:region]), counters, read, last[region]))
        last[region] = (read, split.reads)
        counters = read + 1
        region = (region + 1) % REGIONS
    return places, sum(sizes), counters
