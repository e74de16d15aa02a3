"""Many launches of one program: back to back, and interleaved on several streams. Every result is compared with the first."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

__all__ = ["soak"]

TRIALS = 3
"""Runs that tell whether results are the same bit by bit; additions by atomics are not."""


class Watch:
    """Counts, on the device, results that differ from the expected ones.

    Args:
        expected: the first results.
        exact: bit by bit; else by the norm of the difference, relative to the result's.
        limit: of that.
    """

    def __init__(self, expected: list[Tensor], exact: bool, limit: float):
        self.expected, self.exact, self.limit = expected, exact, limit
        self.wrong = torch.zeros((), dtype=torch.int64, device="cuda")

    def see(self, results: list[Tensor]) -> None:
        """Look at one call's results, on the current stream."""
        for got, want in zip(results, self.expected, strict=True):
            if self.exact:
                different = (_bits(got) != _bits(want)).any()
            else:
                apart = (got.double() - want.double()).norm()
                different = ~(apart <= self.limit * want.double().norm())  # true for NaN
            self.wrong += different


def _bits(value: Tensor) -> Tensor:
    """A tensor as integers, so that NaN equals NaN."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return value.contiguous().view(kinds[value.element_size()]) if value.dtype != torch.bool else value


def soak(call: Callable[[], object], limit: float, launches: int, interleaved: int, streams: int) -> dict:
    """Call a program `launches` times in a row, then `interleaved` times in turns on `streams` streams.

    Args:
        limit: relative difference that is tolerated where results are not the same bit by bit.
    """

    def results() -> list[Tensor]:
        return [leaf for leaf in pytree.tree_leaves(call()) if isinstance(leaf, Tensor)]

    with torch.no_grad():
        first = [leaf.clone() for leaf in results()]
        trials = [results() for _ in range(TRIALS)]
        exact = all(torch.equal(_bits(a), _bits(b)) for trial in trials for a, b in zip(trial, first, strict=True))
        torch.cuda.synchronize()
        start = time.perf_counter()
        alone = Watch(first, exact, limit)
        for _ in range(launches):
            alone.see(results())
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        queues = [torch.cuda.Stream() for _ in range(streams)]
        watches = [Watch(first, exact, limit) for _ in queues]
        torch.cuda.synchronize()
        for number in range(interleaved):
            with torch.cuda.stream(queues[number % streams]):
                watches[number % streams].see(results())
        torch.cuda.synchronize()
    wrong = int(alone.wrong), sum(int(watch.wrong) for watch in watches)
    return {
        "deterministic": exact,
        "launches": launches,
        "interleaved": interleaved,
        "streams": streams,
        "wrong": wrong[0],
        "wrong_interleaved": wrong[1],
        "seconds": round(seconds, 2),
        "ok": not any(wrong),
    }
