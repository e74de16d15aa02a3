"""What an engine has done: counts, and percentiles of the latest latencies."""

from __future__ import annotations

import collections
import dataclasses
import math

__all__ = ["Statistics", "percentile"]

KEPT = 4096
"""Latencies that percentiles are of."""


@dataclasses.dataclass
class Statistics:
    """Counts of one model's requests.

    Attributes:
        submitted: taken in.
        answered: that got an output.
        failed: that got an error of their own.
        expired: of these, whose time was over before they could be started.
        cancelled: by who had submitted them.
        refused: that were not taken in, because too many waited.
        missed: answered after their deadline.
        launches: that had a request of the model.
        joined: requests that shared a launch with others.
        latencies: seconds from submission to answer, of the latest.
    """

    submitted: int = 0
    answered: int = 0
    failed: int = 0
    expired: int = 0
    cancelled: int = 0
    refused: int = 0
    missed: int = 0
    launches: int = 0
    joined: int = 0
    latencies: collections.deque[float] = dataclasses.field(default_factory=lambda: collections.deque(maxlen=KEPT))

    def to_dict(self) -> dict[str, float]:
        """The counts by name, and "p50" and "p99" of the latencies in seconds (0 before the first)."""
        counts = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "latencies"}
        ordered = sorted(self.latencies)
        return {**counts, "p50": percentile(ordered, 50), "p99": percentile(ordered, 99)}


def percentile(ordered: list[float], percent: float) -> float:
    """The smallest of ordered values that so many percent of them do not exceed; 0 of none."""
    if not ordered:
        return 0.0
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
