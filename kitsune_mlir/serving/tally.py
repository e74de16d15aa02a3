"""Counts of launches of many calls: a launch is noted, and many of them are counted together, in arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from kitsune_mlir.serving.statistics import KEPT, Statistics

__all__ = ["Tally"]

MOST = 1 << 16
"""Latencies that are held of all models together."""

NOTED = 128
"""Launches that are noted before they are counted."""


class Tally:
    """Of the models of a family, by number; whoever uses it holds a lock.

    Args:
        count: models.
    """

    def __init__(self, count: int):
        self._submitted, self._answered, self._launches, self._joined, self._missed = np.zeros((5, count), np.int64)
        room = min(MOST, KEPT * count)
        self._numbers, self._latencies = np.zeros(room, np.int32), np.zeros(room)
        self._next = self._held = 0
        self._noted, self._seconds = list[np.ndarray](), list[float]()
        self._new, self._late = list[np.ndarray](), list[np.ndarray]()
        self._each = list[int]()

    def add(
        self, numbers: np.ndarray, spans: Sequence[tuple[int, float]], late: Sequence[np.ndarray] = (), new: bool = False
    ) -> None:
        """Count a launch of several calls of these models.

        Args:
            spans: so many after the other were answered so many seconds after they were handed in.
            late: models of those that came after their deadline.
            new: they are to be counted as submitted, too.
        """
        self._noted.append(numbers)
        for count, seconds in spans:
            self._each.append(count)
            self._seconds.append(seconds)
        if new:
            self._new.append(numbers)
        self._late += late
        if len(self._noted) >= NOTED:
            self._count()

    def _count(self) -> None:
        """Count what was noted."""
        if not self._noted:
            return
        models, numbers = len(self._answered), np.concatenate(self._noted)
        for total, parts in ((self._submitted, self._new), (self._missed, self._late)):
            if parts:
                total += np.bincount(np.concatenate(parts), minlength=models)
        each = np.bincount(numbers, minlength=models)
        self._answered += each
        self._joined += each
        seen = np.zeros((len(self._noted), models), bool)
        seen[np.repeat(np.arange(len(seen)), [len(one) for one in self._noted]), numbers] = True
        self._launches += seen.sum(0)
        self._keep(numbers, np.repeat(self._seconds, self._each))
        for noted in (self._noted, self._seconds, self._each, self._new, self._late):
            noted.clear()

    def _keep(self, numbers: np.ndarray, seconds: np.ndarray) -> None:
        """Hold latencies in the place of the oldest."""
        room = len(self._numbers)
        numbers, seconds = numbers[-room:], seconds[-room:]
        for part in (slice(0, room - self._next), slice(room - self._next, None)):
            if size := len(numbers[part]):
                end = self._next + size
                self._numbers[self._next : end], self._latencies[self._next : end] = numbers[part], seconds[part]
                self._next, self._held = end % room, max(self._held, end)

    def added_to(self, statistics: Statistics, number: int) -> Statistics:
        """Figures of a model, with what is counted here of it."""
        self._count()
        first = self._next if self._held == len(self._numbers) else 0  # the oldest
        numbers, latencies = np.roll(self._numbers[: self._held], -first), np.roll(self._latencies[: self._held], -first)
        found = dataclasses.replace(statistics, latencies=statistics.latencies.copy())
        found.latencies.extend(latencies[numbers == number][-KEPT:].tolist())
        found.submitted += int(self._submitted[number])
        found.answered += int(self._answered[number])
        found.launches += int(self._launches[number])
        found.joined += int(self._joined[number])
        found.missed += int(self._missed[number])
        return found
