"""Which appended work has to wait for which: hazards between ranges of bytes.

ACS (arXiv 2401.12377, section 4) keeps a window of kernels that have not ended, and compares what a new one reads and writes
with what these do. Its Algorithm 1 compares the new one's writes with both, which finds WAR and WAW and leaves
RAW out. Here all three are found, and only where ranges truly overlap.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from kitsune_mlir.errors import ArgumentError

__all__ = ["BOTH", "MOST", "READ", "WRITE", "Hazards", "Range", "Upstream", "span"]

READ, BOTH, WRITE = 0, 1, 2
MOST = 4096
"""Entries that a window may have."""

MOST_PIECES = 4096
"""Pieces that are kept before those are dropped that nobody touches any more."""

Range = tuple[int, int, int]
"""Address of the first byte, of the one behind the last, and READ, BOTH or WRITE."""


def span(base: int, offset: int, count: int, mode: str) -> Range:
    """The range of `count` bytes that begin `offset` bytes behind an address; the mode as in `runtime.signature.MODES`."""
    low = base + offset
    return low, low + count, ("read", "both", "write").index(mode)


class Upstream(NamedTuple):
    """What has to end before new work may begin, by number.

    Attributes:
        data: whose values it reads (RAW), or everything where its accesses are unknown.
        order: who reads or writes what it overwrites (WAR, WAW).
    """

    data: AbstractSet[int]
    order: AbstractSet[int]


class Entries:
    """Work in a window that has not ended.

    Raises:
        ArgumentError: the size is not between 1 and `MOST`.
    """

    def __init__(self, size: int):
        if not 1 <= size <= MOST:
            raise ArgumentError(f"a window has between 1 and {MOST} entries, not {size}")
        self.size = size
        self._entries: dict[int, Any] = {}
        self._barrier, self._next = -1, 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def oldest(self) -> int:
        """The number of the entry that has been here for longest."""
        return next(iter(self._entries))

    def _full(self) -> ArgumentError:
        return ArgumentError(f"the window has {self.size} entries already: one has to be retired first")

    def _take(self, number: int) -> Any:
        """What is known of an entry that ends now.

        Raises:
            ArgumentError: there is no such entry.
        """
        if number not in self._entries:
            raise ArgumentError(f"the window has no entry {number}")
        if self._barrier == number:
            self._barrier = -1
        return self._entries.pop(number)


class Hazards(Entries):
    """The accesses of work that was appended and has not ended.

    Memory is cut into disjoint pieces, each with its last writer and those who have read it since. A range that is exactly a
    piece, as whole tensors are, is found by its address in one look; any other by bisection, and pieces are split where it
    begins and ends. An entry that overwrites names the readers since the last write, which have waited for the writer
    themselves; it names the writer where there are none. So every entry that is named truly conflicts, and everything that
    conflicts is named or ended before something that is. Who has ended stays in its pieces for a while, and is not named.

    Args:
        size: how many entries there may be at a time.

    Raises:
        ArgumentError: the size is not between 1 and `MOST`.
    """

    _entries: dict[int, Sequence[Range] | None]

    def __init__(self, size: int = 128):
        super().__init__(size)
        self._starts: list[int] = []
        self._pieces: dict[int, _Piece] = {}
        self._most_readers = 2 * size
        self._most_pieces = MOST_PIECES

    @property
    def pieces(self) -> int:
        """How many pieces memory is cut into that entries touch; none where no entry is left."""
        self._purge()
        return len(self._starts)

    def append(self, ranges: Sequence[Range] | None) -> tuple[int, Upstream]:
        """Add an entry; its number, and which entries it has to wait for.

        Args:
            ranges: what it reads and writes, in ascending order of their modes (what it reads is what was there before). They
                may overlap; empty ones count for nothing. None where they are not known: it waits for everything, and
                everything later waits for it.

        Raises:
            ArgumentError: the window is full.
        """
        entries = self._entries
        if len(entries) >= self.size:
            raise self._full()
        number = self._next
        self._next = number + 1
        if ranges is None:
            data, order = set(entries), set[int]()
            self._barrier = number
        else:
            data, order = set[int](), set[int]()
            known = self._pieces
            for low, high, mode in ranges:
                piece = known.get(low)
                if piece is None or piece.end != high:
                    if low >= high:
                        continue
                    found = self._cut(low, high)
                else:
                    found = (piece,)
                for piece in found:
                    writer, readers = piece.writer, piece.readers
                    if mode != WRITE and writer in entries:
                        data.add(writer)
                    if mode == READ:
                        readers.add(number)
                        if len(readers) > self._most_readers:
                            readers.intersection_update(entries)
                            readers.add(number)
                        continue
                    if readers and (left := readers & entries.keys()):
                        order |= left
                    elif writer in entries:
                        order.add(writer)
                    if readers:
                        piece.readers = set()
                    piece.writer = number
            data.discard(number)
            order.discard(number)
            if self._barrier >= 0:
                data.add(self._barrier)
        entries[number] = ranges
        if len(self._starts) > self._most_pieces:
            self._purge()
        return number, Upstream(data, order)

    def touching(self, ranges: Iterable[Range]) -> set[int]:
        """The entries that someone has to wait for who makes these accesses now, without being an entry."""
        entries = self._entries
        found = {self._barrier} if self._barrier >= 0 else set[int]()
        for low, high, mode in ranges:
            for piece in self._overlapped(low, high):
                if piece.writer in entries:
                    found.add(piece.writer)
                if mode != READ:
                    found |= piece.readers & entries.keys()
        return found

    def last_written(self, number: int) -> list[tuple[int, int]]:
        """The bytes that an entry was the last to write, of all entries up to now: pairs of the first and the one behind."""
        ranges = self._entries[number] or ()
        found = (piece for low, high, mode in ranges if mode != READ for piece in self._overlapped(low, high))
        return [(piece.start, piece.end) for piece in found if piece.writer == number]

    def retire(self, number: int) -> None:
        """Forget an entry that has ended, and before it everything that it had to wait for.

        Raises:
            ArgumentError: there is no such entry.
        """
        self._take(number)

    def _purge(self) -> None:
        """Drop pieces that no entry touches any more."""
        entries = self._entries
        kept = [p for p in self._pieces.values() if p.writer in entries or not p.readers.isdisjoint(entries)]
        self._pieces = {piece.start: piece for piece in kept}
        self._starts = sorted(self._pieces)
        self._most_pieces = max(self._most_pieces, 2 * len(kept))

    def _overlapped(self, low: int, high: int) -> list[_Piece]:
        """The pieces that share a byte with a range."""
        if low >= high:
            return []
        starts, known = self._starts, self._pieces
        first = bisect_right(starts, low) - 1
        if first < 0 or known[starts[first]].end <= low:
            first += 1
        return [known[start] for start in starts[first : bisect_left(starts, high, first)]]

    def _cut(self, low: int, high: int) -> list[_Piece]:
        """Pieces that together are the range; those that it shares with neighbours are split, and gaps are filled."""
        whole, at = [], low
        for piece in self._overlapped(low, high):
            if piece.start < low:
                piece = self._split(piece, low)
            elif piece.start > at:
                whole.append(self._new(at, piece.start))
            if piece.end > high:
                self._split(piece, high)
            whole.append(piece)
            at = piece.end
        if at < high:
            whole.append(self._new(at, high))
        return whole

    def _split(self, piece: _Piece, at: int) -> _Piece:
        """Cut a piece in two; the second."""
        second = self._new(at, piece.end)
        second.writer, second.readers = piece.writer, set(piece.readers)
        piece.end = at
        return second

    def _new(self, start: int, end: int) -> _Piece:
        piece = self._pieces[start] = _Piece(start, end)
        starts = self._starts
        starts.insert(bisect_left(starts, start), start)
        return piece


class _Piece:
    """Bytes with one history."""

    __slots__ = ("end", "readers", "start", "writer")

    def __init__(self, start: int, end: int):
        self.start, self.end = start, end
        self.writer = -1
        self.readers: set[int] = set()
