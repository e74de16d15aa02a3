"""Launches of calls that were handed in together, a launch at a time: nothing is made of a call, or looked up for it, alone.

A request by itself costs an engine about as much as ten small ones cost a GPU. So calls of one family that come together stay
together where that changes little: where no other request waits, and all are in time in the order in which they came.
Otherwise each becomes a request as others are (`Handed.leave`).
"""

from __future__ import annotations

import bisect
import dataclasses
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from kitsune_mlir.errors import DeadlineError, KitsuneError
from kitsune_mlir.runtime.fleet import Outputs
from kitsune_mlir.runtime.launch import Mark
from kitsune_mlir.serving.backlog import Backlog
from kitsune_mlir.serving.counts import Counts
from kitsune_mlir.serving.family import UNDER_WAY, Family, Launched
from kitsune_mlir.serving.groups import Group, Member
from kitsune_mlir.serving.handed import Handed, Part, calls_of

__all__ = ["Bulk"]


@dataclasses.dataclass(frozen=True, slots=True)
class _Flight:
    """A launch of calls that may be under way, begun at this time; `admitted`: they are counted among those handed in."""

    parts: Sequence[Part]
    launched: Launched
    begin: float
    admitted: bool


class Bulk:
    """What was handed in together to an engine and waits, and its launches. Whoever launches holds the engine's lead.

    Args:
        lock, queues: the engine's, of what came and of what waits in families.
        blocked: whether other requests wait, which are not to wait for these.
        leave: is told that so many wait no longer, of this length and of these seconds in the backlog; `lock` is held.
    """

    def __init__(
        self,
        lock: threading.Lock,
        queues: threading.Lock,
        counts: Counts,
        backlog: Backlog,
        clock: Callable[[], float],
        blocked: Callable[[], bool],
        leave: Callable[[int, int, float], None],
    ):
        self._lock, self._queues, self._counts, self._backlog = lock, queues, counts, backlog
        self._clock, self._blocked, self._leave = clock, blocked, leave
        self._line, self._ordered = deque[Handed](), True
        self._flying = deque[_Flight]()
        self._awaited: Mark | None = None
        self._landed = self._told = 0.0  # when the last launch was over, and all of it told

    def __bool__(self) -> bool:
        return bool(self._line)

    def add(self, handed: Handed) -> None:
        """Let calls wait; `lock` is held. They may come before their turn by a launch: deadlines of calls that are handed in by
        others, one after the other, are not quite in order."""
        if not self._line:
            self._ordered = True
        first, later = handed.ends[handed.start], 0
        for one in reversed(self._line):
            if not (after := one.stop - bisect.bisect_right(one.ends, first, one.start, one.stop)) and len(one):
                break
            later += after
        self._ordered = self._ordered and later <= handed.family.limit
        self._line.append(handed)

    def members(self, of: Group | None = None) -> list[Member]:
        """Requests of the calls that wait (of a group), which wait here no longer; `lock` is held."""
        found = [one for one in self._line if of is None or one.group is of]
        if found:
            kept = [one for one in self._line if one not in found]
            self._line.clear()
            self._line.extend(kept)
        return [request for one in found for request in one.leave()]

    @property
    def last(self) -> object | None:
        """The last launch, if it is under way."""
        return self._flying[-1] if self._flying else None

    @property
    def waits(self) -> bool:
        """Whether the thread that launches waits for the device."""
        return (mark := self._awaited) is not None and not mark.passed

    def launch(self) -> bool:
        """Launch what waits, as long as no other request does, and answer all launches; whether what is left has to become
        requests."""
        left = bool(self._line)
        if left:
            with self._lock:
                ready = self._ordered and not self._apart()
            if ready:
                left = self._launch(self._line, True)
        self.land()
        return left

    def at_once(self, handed: Handed) -> None:
        """Launch calls that nobody has taken in, as long as nothing else waits and they are in time. The last launches may
        be under way then."""
        if not self._line:
            self._launch(deque([handed]), False)

    def land(self, left: int = 0) -> None:
        """Wait for launches that are under way but so many, and tell their groups."""
        while len(self._flying) > left:
            self._answer(self._flying.popleft())

    def fail(self, error: BaseException) -> None:
        """Tell calls whose launches are under way that nobody will answer them."""
        while self._flying:
            _tell_all(self._flying.popleft().parts, error)

    def _apart(self) -> bool:
        """Whether the next launch's family has one request a launch, or one of a model."""
        parts = _first(self._line)
        return bool(parts) and (parts[0][0].family.late or parts[0][0].family.exclusive)

    def _launch(self, line: deque[Handed], admitted: bool) -> bool:
        while True:
            if self._blocked():
                return True
            begin = self._clock()
            with self._lock:
                parts = self._taken(line, begin, admitted)
                late = [one for one in line if one.late]
            if not parts and not late:
                return bool(line)
            if parts:
                self._run(parts, begin, admitted)
            for one in late:
                self._expire(one, admitted)

    def _taken(self, line: deque[Handed], now: float, admitted: bool) -> list[Part]:
        """The calls of the next launch, which wait no longer; none where what is left has to become requests, or nothing is."""
        while line and not len(line[0]) and not line[0].late:
            line.popleft()
        parts = _first(line)
        if not parts:
            return []
        family, count = parts[0][0].family, sum([len(part) for _, part in parts])
        seconds = family.expected(count)
        over = (max(now, self._backlog.free) if self._flying else now) + seconds
        more = len(parts[-1][0]) > len(parts[-1][1]) or line[-1] is not parts[-1][0]
        if any([one.strict and one.ends[part.start] < over + more * seconds for one, part in parts]):
            if not more and not self._flying:
                return []  # a smaller launch may do
            _leave_late(line, family, over, seconds)
            parts = _first(line)
        for one, part in parts:
            one.start = part.stop
            if admitted:
                self._leave(len(part), one.length, len(part) * one.seconds)
        if parts:
            self._backlog.free = over
        return parts

    def _expire(self, handed: Handed, admitted: bool) -> None:
        """Tell calls that were left out, and that nobody can answer in time any more."""
        with self._lock:
            calls = [call for part in handed.late for call in part]
            handed.late.clear()
            models = [handed.calls[call][0] for call in calls]
            if admitted:
                self._leave(len(calls), handed.length, len(calls) * handed.seconds)
            else:
                self._counts.handed_in(models, ())
        model = self._counts.expired(models)
        error = DeadlineError(
            f"calls of model '{model}' and others would be answered after their deadline: more wait than launches do"
        )
        handed.group.tell(handed.places(calls), [error] * len(calls))

    def _run(self, parts: Sequence[Part], begin: float, admitted: bool) -> None:
        """Launch calls that were taken, and answer the launches before, and this one if it is over."""
        try:
            launched = parts[0][0].family.together(calls_of(parts), bool(self._flying))
        except BaseException as error:
            _tell_all(parts, error)
            raise
        self._flying.append(_Flight(parts, launched, begin, admitted))
        self.land(UNDER_WAY if launched.mark is not None else 0)

    def _answer(self, flight: _Flight) -> None:
        """Wait for a launch, and tell the groups of its calls."""
        parts, launched, family = flight.parts, flight.launched, flight.parts[0][0].family
        outputs, right, several = launched.outputs, launched.right, len(parts) > 1
        judged = launched.mark is None or not launched.mark.passed
        try:
            if launched.mark is not None:
                self._awaited = launched.mark
                try:
                    launched.mark.wait()
                except KitsuneError as error:
                    outputs, right = [error] * len(outputs), False
                finally:
                    self._awaited = None
            landed = self._clock()
            seconds = landed - max(flight.begin, self._landed)  # the time before was the launch's that was over then
            outputs = self._counts.bulk(family, parts, launched.numbers, Outputs.of(outputs), flight.admitted)
        except BaseException as error:
            _tell_all(parts, error)
            raise
        told, first, self._landed = self._told, 0, landed
        for one, part in parts:
            one.group.tell(one.places(part), outputs.part(first, first + len(part)) if several else outputs)
            first += len(part)
        self._told = self._clock()
        with self._queues:
            for one, part in parts:
                if not part.start:
                    family.came(one.came, len(one.calls))
            if right:
                family.observe(first, seconds, self._told - max(flight.begin, told), judged)


def _tell_all(parts: Sequence[Part], error: BaseException) -> None:
    for one, part in parts:
        one.group.tell(one.places(part), [error] * len(part))


def _leave_late(line: Iterable[Handed], family: Family, over: float, seconds: float) -> None:
    """Leave out calls of a family that a launch which is over then would answer too late: they have no seat where others wait.
    So it is with those at the edge, within a launch's `seconds` of their deadline, where a launch has enough others."""
    own = [one for one in line if one.family is family]
    for end in (over + seconds, over):
        met = [bisect.bisect_left(one.ends, end, one.start, one.stop) if one.strict else one.start for one in own]
        if sum([one.stop - first for one, first in zip(own, met, strict=True)]) >= family.limit:
            break
    for one, first in zip(own, met, strict=True):
        if first > one.start:
            one.late.append(range(one.start, first))
            one.start = first


def _first(line: Iterable[Handed]) -> list[Part]:
    """The calls of a launch of the first ones' family."""
    parts, left = list[Part](), 0
    family: Family | None = None
    for one in line:
        if not len(one):
            continue
        if family is None:
            family, left = one.family, one.family.limit
        if one.family is not family:
            break
        parts.append((one, range(one.start, min(one.stop, one.start + left))))
        left -= len(parts[-1][1])
        if not left:
            break
    return parts
