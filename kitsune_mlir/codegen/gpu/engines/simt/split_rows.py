"""Long reductions that several blocks share: each goes over a piece of the columns, and the last one adds the others' results.

A row's result is a few numbers, so a piece hands over eight bytes a number through global memory (`interface/split.py`). The
threads that share a row read the pieces side by side, each every so many of them and several at a time, and combine what they
have as they did the columns: one after the other, 255 pieces took as long as 60 MB of memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_
from kitsune_mlir.codegen.gpu.emit.memory import store
from kitsune_mlir.codegen.gpu.emit.value import Value, i64, select
from kitsune_mlir.codegen.gpu.engines.simt.exchange import ITEM_BYTES, Combiner, Partial, loaded, stored
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.codegen.gpu.interface.split import Split
from kitsune_mlir.codegen.gpu.interface.split_exchange import SplitExchange

__all__ = ["Piece", "split_of"]

MOST_PIECES = 512
LEAST_STEPS = 4
"""Groups of steps over the columns that a piece has at least: below, handing over costs more than it saves."""


AHEAD, MOST_AHEAD = 4, 16
"""Pieces whose results a thread reads before it adds them, and numbers of these at most."""


def split_of(tiles: int, groups: int, numbers: int, blocks: int) -> Split | None:
    """How tiles are shared, None if they are not.

    Args:
        groups: groups of steps over the columns of a tile.
        numbers: that are a tile's results.
        blocks: that should have work.
    """
    pieces = min(MOST_PIECES, groups // LEAST_STEPS, -(-blocks // tiles))
    if pieces < 2:
        return None
    return Split(pieces, tiles * (pieces - 1) * numbers * ITEM_BYTES, tiles, tiles)


@dataclasses.dataclass(frozen=True)
class Piece:
    """One piece of one tile, while its code is emitted.

    Attributes:
        split: how many there are.
        number: which it is (i32).
        tile: of which tile.
        rows: of the tile.
        sync: a barrier over the threads that work on the tile.
    """

    split: Split
    number: Value
    tile: TileContext
    rows: int
    sync: Callable[[], None]

    def groups(self, count: int) -> tuple[Value, Value]:
        """The piece's first group of steps, and the first after it, of `count`."""
        return self.number * count // self.split.pieces, (self.number + 1) * count // self.split.pieces

    @property
    def last(self) -> Value:
        """Whether this piece's block adds up the tile."""
        return self.number == self.split.pieces - 1

    def hand_over(self, writer: Value, indices: Sequence[Value], partials: Sequence[Partial]) -> None:
        """Write this piece's results and announce them; all threads that work.

        Args:
            writer: whether the thread writes its partial results (others have the same).
            indices: row of each partial result.
        """
        self._exchange.claim()

        def write() -> None:
            for kind, index, value in self._numbers(indices, partials):
                store(stored(value), self._at(self.number, kind, index))

        if_(writer, write)
        self.sync()
        self._exchange.announce(self.tile.number)

    def collect(
        self,
        combiners: Sequence[Combiner],
        indices: Sequence[Value],
        partials: Sequence[Partial],
        place: Value,
        places: int,
        each: bool = False,
    ) -> list[Partial]:
        """The calling thread's part of the results of all pieces, of which this is the last; all threads that work.

        Args:
            place: of the thread among the `places` that share its rows.
            each: `partials` are of the calling thread alone; else all threads have the same.
        """
        others = self.split.pieces - 1
        self._exchange.wait(self.tile.number, others)

        neutral = [c.neutral([str(v.type) for v in partial]) for c, partial in zip(combiners, partials, strict=True)]
        own = [value for partial in partials for value in partial]
        nothing = [value for partial in neutral for value in partial]
        ahead = max(1, min(AHEAD, MOST_AHEAD // len(own), -(-others // places)))

        def read(piece: Value) -> list[Value]:
            """What a piece handed over; of those after the last one, nothing."""
            there = piece < others
            near = select(there, piece, 0) if ahead > 1 else piece
            found = [loaded(self._at(near, kind, index), value) for kind, index, value in self._numbers(indices, partials)]
            return [select(there, a, b) for a, b in zip(found, nothing, strict=True)] if ahead > 1 else found

        def step(piece: Value, *flat: Value) -> list[Value]:
            every = [_nested(read(piece + number * places), partials) for number in range(ahead)]
            sums = _nested(flat, partials)
            for found in every:
                sums = [combiner(other, own) for combiner, other, own in zip(combiners, found, sums, strict=True)]
            return [value for partial in sums for value in partial]

        start = own if each else [select(place == 0, a, b) for a, b in zip(own, nothing, strict=True)]
        flat = for_(place, others, ahead * places, step, start)
        self._exchange.release()
        return _nested(flat, partials)

    @staticmethod
    def _numbers(indices: Sequence[Value], partials: Sequence[Partial]) -> list[tuple[int, Value, Value]]:
        """(kind, row, value) of every number, in order; each reduction has partial results for all of the thread's rows."""
        found, kind = [], 0
        for start in range(0, len(partials), len(indices)):
            group = partials[start : start + len(indices)]
            found += [
                (kind + part, index, value)
                for index, partial in zip(indices, group, strict=True)
                for part, value in enumerate(partial)
            ]
            kind += len(group[0])
        return found

    def _at(self, piece: Value, kind: int, index: Value) -> Value:
        """Where a piece's number of one kind for a row is."""
        kinds = self.split.bytes // (self.tile.task.view.tiles * (self.split.pieces - 1) * self.rows * ITEM_BYTES)
        number = (i64(self.tile.number) * (self.split.pieces - 1) + i64(piece)) * kinds + kind
        return self._exchange.partials(number * self.rows + i64(index), ITEM_BYTES)

    @property
    def _exchange(self) -> SplitExchange:
        return SplitExchange(self.tile.task, lambda: self.tile.task.thread == 0, self.sync)


def _nested(flat: Sequence[Value], like: Sequence[Partial]) -> list[Partial]:
    rest = list(flat)
    return [tuple(rest.pop(0) for _ in partial) for partial in like]
