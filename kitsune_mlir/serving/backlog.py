"""How much work waits before a request would have its turn: by it an engine refuses at once what it could only answer too late.

To take a request in, order it, find out that its time is over and say so costs about as much as to answer it. So an engine
that did this with all that comes would answer the fewer the more came. A refusal costs a fraction of that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from kitsune_mlir.errors import ArgumentError, BusyError

__all__ = ["Backlog", "Lengths", "busy", "length_of", "of_each", "refusals", "unknown"]

STEPS = 8
"""Lengths of deadlines that are told apart between one and twice as long."""

SHORTEST = -1100
"""Logarithm of less than any number that is above 0."""


KEPT = 64
"""Deadlines whose lengths are kept."""


def length_of(deadline: float) -> int:
    """A number above 0 for deadlines of about this many seconds, greater for longer ones."""
    return round(STEPS * (math.log2(deadline) - SHORTEST))


class Lengths:
    """Lengths of deadlines; some are kept, for many requests have the same.

    Raises:
        ArgumentError: a deadline is no number above 0.
    """

    def __init__(self) -> None:
        self._known: dict[float, int] = {}

    def __call__(self, deadline: float) -> int:
        """As `length_of`."""
        found = self._known.get(deadline)
        if found is None:
            if not _right(deadline):
                raise ArgumentError(f"a deadline is a number of seconds above 0, not {deadline!r}")
            if len(self._known) >= KEPT:
                self._known.clear()
            found = self._known[deadline] = length_of(deadline)
        return found


def _right(deadline: Any) -> bool:
    return isinstance(deadline, int | float) and 0 < deadline < math.inf


def of_each(deadlines: Sequence[float], count: int) -> Sequence[float]:
    """Deadlines of so many calls.

    Raises:
        ArgumentError: they are not as many, or one is no number above 0.
    """
    if len(deadlines) != count:
        raise ArgumentError(f"{len(deadlines)} deadlines were given for {count} calls")
    if {*map(type, deadlines)} <= {float, int} and min(deadlines, default=1) > 0 and sum(deadlines) < math.inf:
        return deadlines
    for number, deadline in enumerate(deadlines):
        if not _right(deadline):
            raise ArgumentError(f"the deadline of call {number} is {deadline!r}; a number of seconds above 0 is wanted")
    return deadlines


def unknown(model: str, models: Iterable[str]) -> ArgumentError:
    """Why a request is for nobody."""
    return ArgumentError(f"there is no model '{model}'; models are {', '.join(sorted(models))}")


def busy(waiting: int, capacity: int) -> BusyError:
    """Why a request is not taken in."""
    if waiting >= capacity:
        return BusyError(f"{waiting} requests wait, and the engine's capacity is {capacity}: try again later")
    return BusyError(f"{waiting} requests wait, so that it would be answered after its deadline: try again later")


def refusals(queues: Sequence[Any], waiting: int, capacity: int, room: float, due: float) -> dict[int, None]:
    """Which of some calls that are handed in at once are not taken in, by place, in order; of one queue's they are
    the last ones.

    Args:
        queues: that each would wait in (`requests.Queue`).
        waiting: requests that wait before them.
        room: as of `Backlog.room`; infinite where there is no hurry.
        due: the longest of their deadlines.
    """
    kinds, count = {*queues}, waiting + len(queues)
    if count <= capacity and (
        all([count <= queue.least_waiting for queue in kinds])
        or room - sum([queue.pace for queue in queues]) >= max([queue.spare(due) for queue in kinds])
    ):
        return {}
    refused = dict[int, None]()
    for place, queue in enumerate(queues):
        if waiting >= capacity or (room < queue.spare(due) and waiting >= queue.least_waiting):
            refused[place] = None
        else:
            room, waiting = room - queue.pace, waiting + 1
    return refused


class Backlog:
    """Seconds of launches for what waits, by length of the deadlines.

    The earliest deadline comes first, so before a request come about those that have a deadline as long as its own or a shorter
    one. A request brings its `length` and the `seconds` that it is expected to take in a launch of many.

    Attributes:
        free: when the launch that is under way will be over.
    """

    def __init__(self) -> None:
        self.free = 0.0
        self._ahead: dict[int, float] = {}

    def room(self, now: float, deadline: float, length: int) -> float:
        """Seconds that are left of a deadline of this length when what comes before it is done."""
        left = deadline - self.free + now if self.free > now else deadline
        for other, seconds in self._ahead.items():
            if other <= length:
                left -= seconds
        return left

    def enter(self, length: int, seconds: float) -> None:
        """Requests wait that take so long."""
        self._ahead[length] = self._ahead.get(length, 0.0) + seconds

    def leave(self, requests: Iterable[Any]) -> None:
        """Requests wait no longer."""
        ahead = self._ahead
        for request in requests:
            ahead[request.length] -= request.seconds

    def clear(self) -> None:
        """Nothing waits: what is left are errors of rounding, and lengths that may not come again."""
        self._ahead.clear()
