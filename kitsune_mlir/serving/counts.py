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

    def to_dict(self) -> dict[str, dict[str, float]]:
        """As of `Statistics`, by name."""
        with self.lock:
            return {name: statistics.to_dict() for name, statistics in self.of.items()}

    def handed_in(self, taken: Sequence[str], refused: Sequence[str]) -> None:
        """Count requests by their models. (Figures of submissions are whoever's who takes them in; the lock is not taken.)"""
        for model, count in Counter(taken).items():
            self.of[model].submitted += count
        for model in refused:
            self.of[model].refused += 1

    def launched(self, models: Iterable[str]) -> None:
        """Count a launch of requests of these models."""
        with self.lock:
            for name in {*models}:
                self.of[name].launches += 1

    def at_once(self, models: Sequence[str], outputs: Sequence[Any], came: float, ends: Sequence[float]) -> Sequence[Any]:
        """Count a launch of calls that waited for nothing, and their outputs or errors; what they are to be given.

        Args:
            came: when they came.
            ends: their deadlines, if they have any.
        """
        now, joined = self._clock(), len(models) > 1
        wrong = {n for n, output in enumerate(outputs) if isinstance(output, Exception)}
        right = [model for n, model in enumerate(models) if n not in wrong] if wrong else models
        with self.lock:
            for name, count in Counter(models).items():
                self.of[name].launches += 1
                self.of[name].joined += count * joined
            for name, count in Counter(right).items():
                self.of[name].answered += count
                self.of[name].latencies.extend([now - came] * count)
            for n in wrong:
                self.of[models[n]].failed += 1
            for n in [n for n, end in enumerate(ends) if end < now and n not in wrong]:
                self.of[models[n]].missed += 1
        return [_own(output) if isinstance(output, Exception) else output for output in outputs] if wrong else outputs

    def alone(self, request: Waiting, output: Any) -> list[Any]:
        """Count a launch of one request, and its output or error; what it is to be given."""
        self.launched((request.model,))
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
