"""How long two functions take on the same arguments."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["Budget", "milliseconds_beside"]

ROUNDS = 9
SAMPLE_SECONDS = 2e-3
"""Calls that are quicker are timed several at a time."""
MOST_CALLS = 50
FIRST_CALLS = 3
"""Before any is timed: they compile, fill caches, and record a CUDA graph."""
CLEAR = 1.5
"""After three rounds one that took so many times as long as the other is not timed again."""


class Budget:
    """Seconds that measuring may take, all that share it together.

    Args:
        seconds: of wall time.
    """

    def __init__(self, seconds: float):
        self.left = seconds

    def clock(self) -> Callable[[], float]:
        """A function that says how much is left; the time from now on counts."""
        start, given = time.perf_counter(), self.left

        def left() -> float:
            self.left = given - (time.perf_counter() - start)
            return self.left

        return left


def milliseconds_beside(
    calls: Sequence[Callable[[], Any]], restore: Callable[[], Any] | None, device: torch.device, left: Callable[[], float]
) -> list[float] | None:
    """Median wall time of a call of each, on a GPU until the device is done, as they are submitted.

    On the host they take turns, as other processes come and go. On a GPU the last is timed first, and its memory given back to
    the driver: a program keeps its arena from its first call on, which would lie beside all that PyTorch's way needs.

    Args:
        restore: makes arguments that a call writes to what they were before it; its time does not count. None where none is.
        left: seconds that there are.

    Returns:
        Milliseconds for each; None where there is too little time to say.
    """
    groups = [[n] for n in reversed(range(len(calls)))] if device.type == "cuda" else [list(range(len(calls)))]
    found: dict[int, float] = {}
    for done, group in enumerate(groups):
        kept = left() * (1 - 1 / (len(groups) - done))  # for the others
        times = _in_turns([calls[n] for n in group], restore, device, lambda kept=kept: left() - kept)
        if device.type == "cuda":
            torch.cuda.empty_cache()
        if times is None:
            return None
        found.update(zip(group, times, strict=True))
    return [found[n] for n in range(len(calls))]


def _in_turns(
    calls: Sequence[Callable[[], Any]], restore: Callable[[], Any] | None, device: torch.device, left: Callable[[], float]
) -> list[float] | None:
    """As `milliseconds_beside`; calls take turns."""
    once = []
    for call in calls:
        for n in range(FIRST_CALLS):
            if left() <= 0:
                return None
            took = _sample(call, 1, restore, device)
            if n > 0 and took > left() / (2 * len(calls)):  # long enough to say more of itself than of what comes before it
                break
        once.append(took)
    if left() < sum(once):
        return None
    many = [max(1, min(MOST_CALLS, int(SAMPLE_SECONDS / max(took, 1e-7)))) if restore is None else 1 for took in once]
    samples: list[list[float]] = [[] for _ in calls]
    for n in range(ROUNDS):
        for call, count, found in zip(calls, many, samples, strict=True):
            found.append(_sample(call, count, restore, device))
        low, high = min(map(max, samples)), max(map(min, samples))
        if left() <= 0 or (n >= 2 and high > CLEAR * low):
            break
    return [1e3 * statistics.median(found) for found in samples]


def _sample(call: Callable[[], Any], count: int, restore: Callable[[], Any] | None, device: torch.device) -> float:
    """Seconds of a call, of so many one after the other."""
    if restore is not None:
        restore()
    wait = torch.cuda.synchronize if device.type == "cuda" else _nothing
    wait(device)
    start = time.perf_counter()
    for _ in range(count):
        call()
    wait(device)
    return (time.perf_counter() - start) / count


def _nothing(device: torch.device) -> None:
    pass
