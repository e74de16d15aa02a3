"""What an engine's launches came to, by model."""

from __future__ import annotations

import bisect
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from kitsune_mlir.errors import DeadlineError, KitsuneError
from kitsune_mlir.runtime.fleet import Outputs
from kitsune_mlir.serving.family import Family
from kitsune_mlir.serving.handed import Part
from kitsune_mlir.serving.requests import Waiting
from kitsune_mlir.serving.statistics import Statistics

__all__ = ["Counts", "too_late"]


class Counts:
    """Statistics of some models.

    Attributes:
        of: by name; beside them families have `tally`.
        lock: of figures of answers.

    Args:
        families: by name of the model.
        clock: seconds, as of an engine.
    """

    def __init__(self, families: Mapping[str, Family], clock: Callable[[], float]):
        self.of, self._families = {name: Statistics() for name in families}, families
        self.lock, self._clock = threading.Lock(), clock

    def to_dict(self) -> dict[str, dict[str, float]]:
        """As of `Statistics`, by name."""
        with self.lock:
            whole = {name: self._families[name].tallied(name, statistics) for name, statistics in self.of.items()}
        return {name: statistics.to_dict() for name, statistics in whole.items()}

    def handed_in(self, taken: Sequence[str], refused: Sequence[str]) -> None:
        """Count requests by their models. (Figures of submissions are whoever's who takes them in; the lock is not taken.)"""
        for model, count in Counter(taken).items():
            self.of[model].submitted += count
        for model in refused:
            self.of[model].refused += 1

    def expired(self, models: Sequence[str]) -> str:
        """Count calls of these models whose time is over; the first one's name, if there is any."""
        with self.lock:
            for model, count in Counter(models).items():
                self.of[model].failed += count
                self.of[model].expired += count
        return models[0] if models else ""

    def launched(self, models: Iterable[str]) -> None:
        """Count a launch of requests of these models."""
        with self.lock:
            for name in {*models}:
                self.of[name].launches += 1

    def bulk(
        self, family: Family, parts: Sequence[Part], numbers: np.ndarray | None, outputs: Outputs, admitted: bool
    ) -> Outputs:
        """Count a launch of calls that were handed in together, and their outputs or errors; what they are to be given.

        Args:
            numbers: of their models; None of a few.
            admitted: they are counted among those handed in.
        """
        now = self._clock()
        if numbers is None or outputs.errors:
            return self._each(parts, outputs, now, admitted)
        late, first = list[np.ndarray](), 0
        for one, part in parts:
            if one.strict and one.ends[part.start] < now:
                missed = bisect.bisect_left(one.ends, now, part.start, part.stop) - part.start
                late.append(numbers[first : first + missed])
            first += len(part)
        with self.lock:
            family.tally.add(numbers, [(len(part), now - one.came) for one, part in parts], late, not admitted)
        return outputs

    def _each(self, parts: Sequence[Part], outputs: Outputs, now: float, admitted: bool) -> Outputs:
        given, place, joined, seen = [*outputs], 0, len(outputs) > 1, set[str]()
        with self.lock:
            for one, part in parts:
                for call in part:
                    model = one.calls[call][0]
                    statistics, output = self.of[model], given[place]
                    statistics.submitted += not admitted
                    statistics.launches += model not in seen
                    statistics.joined += joined
                    seen.add(model)
                    if isinstance(output, Exception):
                        statistics.failed += 1
                        given[place] = _own(output)
                    else:
                        statistics.answered += 1
                        statistics.latencies.append(now - one.came)
                        statistics.missed += one.strict and one.ends[call] < now
                    place += 1
        return Outputs.of(given) if outputs.errors else outputs

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
