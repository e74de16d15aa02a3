"""Where a sequence repeats itself: the layers of a deep model, forward and backward, in the order in which they run."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence

import numpy as np

__all__ = ["Repeat", "repeats"]

SEEN = 8
"""Elements that are looked for again: where they are next is a distance at which a sequence may repeat itself."""


@dataclasses.dataclass(frozen=True)
class Repeat:
    """Elements from `start` to `stop` of which each is like the one that is `period` before it, as far as that is in there."""

    start: int
    stop: int
    period: int

    @property
    def saved(self) -> int:
        """Elements that are there again."""
        return self.stop - self.start - self.period


def repeats(sequence: Sequence[Hashable], least: int) -> list[Repeat]:
    """Stretches that do not overlap in which a sequence repeats itself at once, in order; the longest are found first.

    Args:
        least: of what each saves.
    """
    number: dict[Hashable, int] = {}
    codes = np.array([number.setdefault(element, len(number)) for element in sequence], dtype=np.int64)
    found: list[Repeat] = []
    waiting = [(0, len(codes))]
    while waiting:
        low, high = waiting.pop()
        best = _best(codes[low:high])
        if best is None or best.saved < least:
            continue
        start, stop = low + best.start, low + best.stop
        found.append(Repeat(start, stop, best.period))
        waiting += [(low, start), (stop, high)]
    return sorted(found, key=lambda one: one.start)


def _best(codes: np.ndarray) -> Repeat | None:
    """The repeat that saves most, of those the one of the shortest period."""
    best: Repeat | None = None
    for period in _distances(codes):
        same = np.concatenate([[False], codes[period:] == codes[:-period], [False]])
        begins, ends = np.flatnonzero(~same[:-1] & same[1:]), np.flatnonzero(same[:-1] & ~same[1:])
        if not len(begins):
            continue
        longest = int(np.argmax(ends - begins))
        saved = int(ends[longest] - begins[longest]) // period * period
        if saved and (best is None or saved > best.saved):
            best = Repeat(int(begins[longest]), int(begins[longest]) + saved + period, period)
    return best


def _distances(codes: np.ndarray) -> list[int]:
    """From where a few elements stand to where the same ones stand next, in ascending order."""
    last: dict[bytes, int] = {}
    found: set[int] = set()
    for n in range(len(codes) - SEEN + 1):
        key = codes[n : n + SEEN].tobytes()
        if key in last:
            found.add(n - last[key])
        last[key] = n
    return sorted(found)
