"""A rate that many share evenly, in event time: memory's, and L2's."""

from __future__ import annotations

import heapq

__all__ = ["SharedRate"]


class SharedRate:
    """`rate` amounts a second, divided evenly among the transfers that are under way.

    All transfers advance alike, so each ends when the amount that everybody has had since some start reaches a fixed value: the
    transfers are kept in a heap by that value, and a change of their number moves no one in it.
    """

    def __init__(self, rate: float):
        self.rate = rate
        self.now = 0.0
        self.had = 0.0
        self.moved = 0.0
        self._ends: list[tuple[float, int]] = []

    def advance(self, now: float) -> None:
        """Let time go on."""
        if self._ends:
            self.had += (now - self.now) * self.rate / len(self._ends)
        self.now = now

    def add(self, amount: float, transfer: int) -> None:
        """Begin a transfer now."""
        self.moved += amount
        heapq.heappush(self._ends, (self.had + amount, transfer))

    def next_end(self) -> float:
        """When the next transfer ends, if none is added before; infinity without transfers."""
        if not self._ends:
            return float("inf")
        return self.now + max(0.0, self._ends[0][0] - self.had) * len(self._ends) / self.rate

    def pop(self) -> int:
        """Remove and return the transfer that ends next; its time has come."""
        end, transfer = heapq.heappop(self._ends)
        self.had = max(self.had, end)
        return transfer
