"""Loads that do not wait for answers (open loops), the same for every system: when each request comes is drawn beforehand.

Nobody sends requests: what has come by now follows from the clock, and a system that is ready for some asks for it. So no
generator has to keep up, or takes the interpreter's lock from what is measured; and a request that is asked for late has
waited since it was due.
"""

from __future__ import annotations

import bisect
import threading
import time
from collections.abc import Sequence

import numpy as np

__all__ = ["Arrivals"]

NAP = 50e-6
"""Seconds that one who shares the interpreter with what serves sleeps at least."""


class Arrivals:
    """Requests that come at given times, and when each was answered.

    Attributes:
        dues: as given.
        over: seconds after the start at which the load is over.
        gentle: sleep where nothing has come, rather than watch the clock: other threads need the interpreter.
        patient: answers count for long: nothing is to be refused.
        finished: seconds after the start at which each was answered; infinite for those that were not, or with an error.

    Args:
        dues: seconds after the start when each comes, in order.
        grace: seconds after the last one in which answers count; then the load is over.
        start: `time.perf_counter()` at the start, the same clock in all processes; None is as soon as one is asked for.
    """

    def __init__(self, dues: Sequence[float], grace: float = 0.25, start: float | None = None):
        self.dues, self._start, self.gentle = [*dues], start, False
        self.patient = grace > 1
        self.over = (self.dues[-1] if self.dues else 0.0) + grace
        self.finished = np.full(len(self.dues), np.inf)
        self._taken, self._left = 0, len(self.dues)
        self._lock, self._all = threading.Lock(), threading.Event()

    @property
    def now(self) -> float:
        """Seconds since the start."""
        if self._start is None:
            self._start = time.perf_counter()
        return time.perf_counter() - self._start

    @property
    def all_taken(self) -> bool:
        """Whether none is left, or the load is over."""
        return self._taken == len(self.dues) or self.now > self.over

    def take(self, most: int | None = None, wait: bool = True) -> range:
        """Numbers of those that have come and that nobody has taken; waits for one. None are left if it is empty.

        Args:
            most: how many.
            wait: where nothing has come, do not return before something has.
        """
        first, count, now = self._taken, len(self.dues), self.now
        if first < count and wait:
            while (left := self.dues[first] - now) > 0:
                if self.gentle or left > 1e-3:
                    time.sleep(max(NAP, left - NAP))
                now = self.now
        if first == count or now > self.over:
            return range(first, first)
        last = bisect.bisect_right(self.dues, now, first)
        self._taken = last if most is None else min(last, first + most)
        return range(first, self._taken)

    def ended(self, numbers: Sequence[int], right: bool = True) -> None:
        """These are answered now, or have ended with an error."""
        if right and numbers:
            self.finished[numbers] = self.now
        with self._lock:
            self._left -= len(numbers)
            if not self._left:
                self._all.set()

    def wait(self) -> None:
        """Until all have ended, or the load is over."""
        if self.dues:
            self._all.wait(max(0.0, self.over - self.now))

    def latencies(self, of: Sequence[int] | None = None) -> np.ndarray:
        """Seconds from when each came until it was answered, sorted, without those that were not.

        Args:
            of: which request each of them is a part of, -1 for none; a request is answered with its last part.
        """
        late = self.finished - np.asarray(self.dues)
        if of is not None:
            owners, parts = np.asarray(of), late
            late = np.full(max(of, default=-1) + 1, -np.inf)
            np.maximum.at(late, owners[owners >= 0], parts[owners >= 0])
        return np.sort(late[np.isfinite(late)])
