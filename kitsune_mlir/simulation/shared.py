"""A rate that many share, in event time: memory's, and L2's."""

from __future__ import annotations

import collections

__all__ = ["SharedRate"]


class SharedRate:
    """`rate` amounts a second, which go to transfers in the order in which they began.

    Equal tiles whose blocks start together would stay together if all got equal shares: all would ask, then none, and half of
    the rate would be lost, which a chip does not do. Served in order they spread out, and the first waits least.
    """

    def __init__(self, rate: float):
        self.rate = rate
        self.now = 0.0
        self.moved = 0.0
        self._free = 0.0
        self._ends: collections.deque[tuple[float, int]] = collections.deque()

    def advance(self, now: float) -> None:
        """Let time go on."""
        self.now = now

    def add(self, amount: float, transfer: int) -> None:
        """Begin a transfer now."""
        self.moved += amount
        self._free = max(self._free, self.now) + amount / self.rate
        self._ends.append((self._free, transfer))

    def next_end(self) -> float:
        """When the next transfer ends; infinity without transfers."""
        return self._ends[0][0] if self._ends else float("inf")

    def pop(self) -> int:
        """Remove and return the transfer that ends next; its time has come."""
        return self._ends.popleft()[1]
