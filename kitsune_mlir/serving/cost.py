"""How long a launch of n requests takes: T(n), measured when a model is loaded and corrected by what launches took."""

from __future__ import annotations

import bisect
from collections.abc import Callable

__all__ = ["CostModel", "counts_to"]

WEIGHT = 0.1
"""Of a new measurement, in the moving average."""

LONG = 0.1
"""Seconds of a launch from which on larger ones are not measured at load, but extrapolated."""


def counts_to(limit: int) -> list[int]:
    """Numbers of requests that launches are looked at for: powers of two, and the limit."""
    return sorted({*(1 << k for k in range(limit.bit_length())), limit})


class CostModel:
    """Seconds of launches of 1, 2, 4, ... requests; between them a line, beyond them the last line; 0 where nothing is known.

    Attributes:
        counts: numbers of requests that have a measurement.
        seconds: theirs.
    """

    def __init__(self, counts: list[int], seconds: list[float]):
        self.counts, self.seconds = counts, seconds

    @staticmethod
    def measured(launch: Callable[[int], float], limit: int) -> CostModel:
        """Measure by `launch(n)`, which runs n requests and gives the seconds that it took: the fastest of three."""
        counts, seconds = [], []
        for count in counts_to(limit):
            launch(count)
            counts.append(count)
            seconds.append(min(launch(count) for _ in range(3)))
            if seconds[-1] > LONG:
                break
        return CostModel(counts, seconds)

    def __call__(self, count: int) -> float:
        """Seconds of a launch of so many requests."""
        if len(self.counts) < 2:
            return 0.0 if not self.counts else self.seconds[0] * count / self.counts[0]
        upper = min(max(1, bisect.bisect_left(self.counts, count)), len(self.counts) - 1)
        (low, high), (first, last) = self.counts[upper - 1 : upper + 1], self.seconds[upper - 1 : upper + 1]
        return max(0.0, first + (last - first) * (count - low) / (high - low))

    def knows(self, count: int) -> bool:
        """Whether a launch of as many requests or more was measured."""
        return bool(self.counts) and self.counts[-1] >= count

    def gain(self, count: int) -> float:
        """Seconds saved by a launch of one request more, against one of its own."""
        return self(count) + self(1) - self(count + 1)

    def observe(self, count: int, seconds: float) -> float:
        """Learn from a launch; how many times as long as predicted it took (1 where nothing was known)."""
        predicted = self(count)
        place = bisect.bisect_left(self.counts, count)
        ratio = seconds / predicted if predicted > 0 else 1.0
        if self.counts[place : place + 1] != [count]:
            # Between counts that are known one launch says little: the processor may have been somebody else's meanwhile.
            between = 0 < place < len(self.counts) and predicted > 0
            self.counts.insert(place, count)
            self.seconds.insert(place, predicted if between else seconds)
            if not between:
                return ratio
        self.seconds[place] += WEIGHT * (min(seconds, 4 * self.seconds[place]) - self.seconds[place])
        return ratio
