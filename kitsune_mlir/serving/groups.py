"""Requests that are handed in together: no future is made of each, and who handed them in is told of a launch at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any

from kitsune_mlir.runtime.fleet import Outputs
from kitsune_mlir.serving.answer import Answer, answer, start

__all__ = ["Call", "Done", "Group", "Member", "begun", "give"]

Call = tuple[str, Sequence[Any]]
"""A model, and positional arguments."""

Done = Callable[[Sequence[int], Outputs], object]
"""Called with numbers of requests of a group, and the output or the error of each."""

_log = logging.getLogger(__name__)
_NONE: Mapping[str, Any] = {}


class Group:
    """Requests of one `Engine.submit_many`.

    Attributes:
        dropped: those that were not started are cancelled.

    Args:
        done: is told of each request once, from the thread that launches (or cancels, or refuses).
        drop: takes those that were not started out of what waits; gives their numbers.
    """

    __slots__ = ("_done", "_drop", "dropped")

    def __init__(self, done: Done, drop: Callable[[Group], Sequence[int]]):
        self._done, self._drop, self.dropped = done, drop, False

    def cancel(self) -> int:
        """Cancel those that were not started, of which `done` is told with a CancelledError; how many they were."""
        places = self._drop(self)
        self.tell(places, [CancelledError() for _ in places])
        return len(places)

    def tell(self, places: Sequence[int], outputs: Sequence[Any]) -> None:
        """Say what became of some requests; what `done` raises is logged, and nobody else's."""
        try:
            if places:
                self._done(places, Outputs.of(outputs))
        except Exception:
            _log.exception("exception calling %r", self._done)


class Member:
    """A request of a group that waits; attributes as of `requests.Request`, and its number in its group (`place`)."""

    __slots__ = ("args", "arrived", "deadline", "group", "length", "model", "number", "place", "seconds", "strict")
    kwargs = _NONE

    def __init__(
        self,
        deadline: float,
        model: str,
        args: Sequence[Any],
        strict: bool,
        arrived: float,
        number: int,
        place: int,
        group: Group,
        length: int,
        seconds: float,
    ):
        self.deadline, self.model, self.args, self.strict, self.arrived = deadline, model, args, strict, arrived
        self.number, self.place, self.group, self.length, self.seconds = number, place, group, length, seconds

    def cancelled(self) -> bool:
        """Whether its group was, before it was started."""
        return self.group.dropped

    def cancel(self) -> bool:
        """Cancel its group; whether that had requests that wait."""
        return self.group.cancel() > 0


def begun(requests: Sequence[Any]) -> Sequence[Any]:
    """Those that were not cancelled; they cannot be any more. Nobody cancels a group meanwhile."""
    if all([type(one) is Member and not one.group.dropped for one in requests]):
        return requests
    answers = [one for one in requests if type(one) is not Member]
    started = start(answers)
    if len(started) == len(answers) and not any(type(one) is Member and one.group.dropped for one in requests):
        return requests
    kept = {id(one) for one in started}
    return [one for one in requests if (not one.group.dropped if type(one) is Member else id(one) in kept)]


def give(requests: Iterable[Any], outputs: Iterable[Any]) -> None:
    """Give each of some that were started its output, or the error that is in its place."""
    futures, own, groups = list[Answer](), list[Any](), dict[Group, tuple[list[int], list[Any]]]()
    for request, output in zip(requests, outputs, strict=True):
        if type(request) is Member:
            its = groups.get(request.group)
            if its is None:
                its = groups[request.group] = [], []
            its[0].append(request.place)
            its[1].append(output)
        else:
            request.forget()
            futures.append(request)
            own.append(output)
    if futures:
        answer(futures, own)
    for group, told in groups.items():
        group.tell(*told)
