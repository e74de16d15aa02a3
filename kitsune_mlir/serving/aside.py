"""Families whose launches take far longer than others': each on a stream of its own, beside the others' launches.

One launch of such a family is under way at a time. Nobody waits for it: the engine's thread looks now and then whether it is
over. So the others' requests are held up by what the device has to share, and not by the order of launches in one stream.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any

from kitsune_mlir.errors import KitsuneError
from kitsune_mlir.serving.backlog import Backlog
from kitsune_mlir.serving.counts import Counts, too_late
from kitsune_mlir.serving.family import Family, Launched
from kitsune_mlir.serving.groups import give
from kitsune_mlir.serving.requests import Waiting, turn

__all__ = ["LOOK", "Aside", "slow"]

TIMES = 2.0
"""Times as long as the quickest family's takes a launch of one request of those that run beside the others."""

LOOK = 50e-6
"""Seconds from one look at launches that are under way to the next, where nothing else is to be done."""


def slow(families: Sequence[Family]) -> list[Family]:
    """Those of some families that are to run beside the others. None is, where nothing is known of what launches take."""
    least = min([family.expected(1) for family in families])
    return [one for one in families if one.separable and least and one.expected(1) > TIMES * least]


@dataclasses.dataclass(frozen=True, slots=True)
class _Flight:
    """A launch that may be under way: its requests, when it was begun, and when the thread had turned to them."""

    requests: Sequence[Waiting]
    launched: Launched
    begin: float
    turned: float


class Aside:
    """What runs beside the other launches of an engine, whose thread calls it.

    Attributes:
        families: those that it is of.
        arrived: requests for them that are in no queue yet; the engine's lock is held.

    Args:
        queues, counts, clock: the engine's; the lock is of what waits in families.
        fetched: takes what has arrived.
        started: those of requests that were not cancelled, which wait no longer.
    """

    def __init__(
        self,
        families: Sequence[Family],
        queues: threading.Lock,
        counts: Counts,
        clock: Callable[[], float],
        fetched: Callable[[], Sequence[Waiting]],
        started: Callable[[Sequence[Waiting]], Sequence[Waiting]],
    ):
        self.families, self.arrived = families, list[Waiting]()
        self._queues, self._counts, self._clock, self._fetched, self._started = queues, counts, clock, fetched, started
        self._of = {name: family for family in families for name in family.programs}
        self._flying = dict[Family, _Flight]()
        for family in families:
            family.aside, family.alone, family.backlog = True, True, Backlog()  # it holds nobody up, however late it is

    def __bool__(self) -> bool:
        """Whether a launch is under way, or may be begun."""
        return bool(self._flying) or self.waiting > 0

    @property
    def busy(self) -> bool:
        """Whether a launch is under way."""
        return bool(self._flying)

    @property
    def waiting(self) -> int:
        """How many requests wait, those among them that were cancelled a moment ago."""
        return len(self.arrived) + sum([len(family.pending()) for family in self.families]) if self.families else 0

    def turn(self, closing: bool = False) -> float | None:
        """Answer what is over, and begin what may be begun.

        Returns:
            Seconds after which to come again; None: not before another request comes.
        """
        if self.families:
            self._fetch()
        again = list[float]()
        for family in self.families:
            if (flight := self._flying.get(family)) is not None and not self._over(family, flight):
                again.append(LOOK)
                continue
            with self._queues:
                now = self._clock()
                over, (which, pause) = self._started(family.expired(now)), turn([family], now, closing)
                requests = self._started(family.take(now)) if which is not None else ()
            if over:
                give(over, self._counts.answered(over, too_late(over, self._clock()), 1))
            if requests:
                self._begin(family, requests, now)
            if which is not None or pause is not None:
                again.append(LOOK if pause is None else pause)
        return min(again, default=None)

    def fail(self, error: BaseException) -> None:
        """Tell requests whose launches are under way that nobody will answer them."""
        while self._flying:
            requests = self._flying.popitem()[1].requests
            give(requests, [error] * len(requests))

    def _fetch(self) -> None:
        with self._queues:
            for request in self._fetched():
                self._of[request.model].add(request)

    def _begin(self, family: Family, requests: Sequence[Waiting], turned: float) -> None:
        begin, models = self._clock(), [request.model for request in requests]
        family.backlog.free = begin + family.expected(len(requests))
        try:
            launched = family.beside(models, [one.args for one in requests], [one.kwargs for one in requests])
            self._counts.launched(models)
        except BaseException as error:
            give(requests, [error] * len(requests))
            raise
        flight = _Flight(requests, launched, begin, turned)
        self._flying[family] = flight
        if launched.mark is None:
            self._over(family, flight)

    def _over(self, family: Family, flight: _Flight) -> bool:
        """Answer a launch if it is over; whether it is."""
        launched, mark = flight.launched, flight.launched.mark
        if mark is not None and not mark.passed:
            return False
        del self._flying[family]
        outputs: Sequence[Any] = launched.outputs
        seconds, count = self._clock() - flight.begin, len(flight.requests)
        try:
            if mark is not None:
                mark.wait()
                family.handed_over(outputs)
        except KitsuneError as error:
            outputs = [error] * count
        right = not any(isinstance(one, BaseException) for one in outputs)
        give(flight.requests, self._counts.answered(flight.requests, outputs, count))
        if right:
            with self._queues:
                family.observe(count, seconds, self._clock() - flight.turned)
        return True
