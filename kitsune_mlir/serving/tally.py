"""Counts of launches of many calls, in arrays: a launch costs them a few steps, however many calls it has."""

from __future__ import annotations

import dataclasses

import numpy as np

from kitsune_mlir.serving.statistics import KEPT, Statistics

__all__ = ["Tally"]

MOST = 1 << 16
"""Latencies that are held of all models together."""


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

    def add(self, numbers: np.ndarray, seconds: np.ndarray, late: np.ndarray | None = None, new: bool = False) -> None:
        """Count a launch of calls of these models, which were answered so many seconds after they were handed in.

        Args:
            late: models of those that came after their deadline.
            new: they are to be counted as submitted, too.
        """
        count, each = len(numbers), np.bincount(numbers, minlength=len(self._answered))
        self._answered += each
        if new:
            self._submitted += each
        self._launches[numbers] += 1  # once for each model
        if count > 1:
            self._joined += each
        if late is not None:
            self._missed += np.bincount(late, minlength=len(self._answered))
        room = len(self._numbers)
        numbers, seconds = numbers[-room:], seconds[-room:]
        for part in (slice(0, room - self._next), slice(room - self._next, None)):
            if size := len(numbers[part]):
                end = self._next + size
                self._numbers[self._next : end], self._latencies[self._next : end] = numbers[part], seconds[part]
                self._next, self._held = end % room, max(self._held, end)

    def added_to(self, statistics: Statistics, number: int) -> Statistics:
        """Figures of a model, with what is counted here of it."""
        first = self._next if self._held == len(self._numbers) else 0  # the oldest
        numbers, latencies = np.roll(self._numbers[: self._held], -first), np.roll(self._latencies[: self._held], -first)
        own = latencies[numbers == number][-KEPT:]
        found = dataclasses.replace(statistics, latencies=statistics.latencies.copy())
        found.latencies.extend(own.tolist())
        found.submitted += int(self._submitted[number])
        found.answered += int(self._answered[number])
        found.launches += int(self._launches[number])
        found.joined += int(self._joined[number])
        found.missed += int(self._missed[number])
        return found
