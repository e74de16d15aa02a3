"""What an engine's launches came to, by model."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kitsune_mlir.errors import DeadlineError, KitsuneError
from kitsune_mlir.serving.requests import Waiting
from kitsune_mlir.serving.statistics import Statistics

__all__ = ["Counts", "too_late"]


class Counts:
    """Statistics of some models.

    Attributes:
        of: by name.
        lock: of figures of answers.

    Args:
        clock: seconds, as of an engine.
    """

    def __init__(self, names: Iterable[str], clock: Callable[[], float]):
        self.of = {name: Statistics() for name in names}
        self.lock, self._clock = threading.Lock(), clock

    def handed_in(self, taken: Sequence[str], refused: Sequence[str]) -> None:
        """Count requests by their models. (Figures of submissions are whoever's who takes them in; the lock is not taken.)"""
        for model, count in Counter(taken).items():
            self.of[model].submitted += count
        for model in refused:
            self.of[model].refused += 1

    def launched(self, requests: Sequence[Waiting]) -> None:
        """Count a launch."""
        with self.lock:
            for name in {request.model for request in requests}:
                self.of[name].launches += 1

    def alone(self, request: Waiting, output: Any) -> list[Any]:
        """Count a launch of one request, and its output or error; what it is to be given."""
        self.launched((request,))
        return self.answered((request,), (output,), 1)

    def answered(self, requests: Sequence[Waiting], outputs: Sequence[Any], count: int) -> list[Any]:
        """Count the outputs, or errors, of a launch of so many requests; what each request is to be given."""
        now, given, of = self._clock(), [*outputs], self.of
        with self.lock:
            for place, (request, output) in enumerate(zip(requests, outputs, strict=True)):
                statistics = of[request.model]
                if count > 1:
                    statistics.joined += 1
                if isinstance(output, Exception):
                    statistics.failed += 1
                    statistics.expired += isinstance(output, DeadlineError)
                    given[place] = _own(output)
                else:
                    statistics.answered += 1
                    if request.strict and now > request.deadline:
                        statistics.missed += 1
                    statistics.latencies.append(now - request.arrived)
        return given


def _own(error: Exception) -> Exception:
    """A request's own error, without its number in a launch."""
    return error.__cause__ if isinstance(error, KitsuneError) and isinstance(error.__cause__, KitsuneError) else error


def too_late(requests: Iterable[Waiting], now: float) -> list[DeadlineError]:
    """What requests are told whose time is over."""
    late = [(request.model, 1e3 * (now - request.deadline)) for request in requests]
    return [DeadlineError(f"the deadline of model '{model}' was over {ms:.1f} ms ago") for model, ms in late]
