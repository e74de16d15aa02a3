"""Calls that were handed in together, while no request is made of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import le

from kitsune_mlir.serving.backlog import of_each, unknown
from kitsune_mlir.serving.family import Family
from kitsune_mlir.serving.groups import Call, Group, Member
from kitsune_mlir.serving.requests import UNHURRIED, numbers

__all__ = ["Handed", "Part", "calls_of", "handed_in"]


class Handed:
    """Calls of one family, in the order of their deadlines, that wait from `start` to `stop`.

    Attributes:
        family, group, strict, came: as of `groups.Member`, `came` its `arrived`.
        calls, ends: of each the model and arguments, and the deadline.
        start, stop: those before are launched, or taken out by `late`; those from `stop` on were not taken in.
        late: ranges of those that a launch leaves out, because it would answer them too late.
        length, seconds: what an engine's backlog knows each by.
    """

    __slots__ = (
        "_order", "calls", "came", "ends", "family", "group", "late", "length", "seconds", "start", "stop", "strict",
    )  # fmt: skip

    def __init__(
        self,
        family: Family,
        calls: Sequence[Call],
        ends: Sequence[float],
        group: Group,
        strict: bool,
        came: float,
        length: int,
        order: Sequence[int] | None,
    ):
        """`order`: places of the calls in what was handed in; None is as they are."""
        self._order = order
        self.family, self.calls, self.ends, self.group, self.strict = family, calls, ends, group, strict
        self.came, self.length, self.seconds = came, length, family.pace
        self.start, self.stop, self.late = 0, len(calls), list[range]()

    def __len__(self) -> int:
        return self.stop - self.start

    def places(self, calls: Sequence[int]) -> Sequence[int]:
        """The places in what was handed in of some of the calls here."""
        return calls if self._order is None else [self._order[call] for call in calls]

    @property
    def rest(self) -> list[int]:
        """Which calls are neither launched nor refused."""
        return [*(n for part in self.late for n in part), *range(self.start, self.stop)]

    def member(self, call: int) -> Member:
        """A request of a call."""
        model, args = self.calls[call]
        (place,) = self.places((call,))
        timed = self.ends[call], model, args, self.strict, self.came
        return Member(*timed, next(numbers), place, self.group, self.length, self.seconds)

    def leave(self) -> list[Member]:
        """A request of each call that is neither launched nor refused; none of them waits here any more."""
        members = [self.member(call) for call in self.rest]
        self.late.clear()
        self.start = self.stop
        return members


def handed_in(
    known: Mapping[str, Family],
    calls: Sequence[Call],
    deadline: float | Sequence[float] | None,
    length_of: Callable[[float], int],
    group: Group,
    now: float,
) -> tuple[list[Handed], float]:
    """The calls of each family among these, which come now, and the longest of their deadlines, as of `Engine.submit_many`.

    Args:
        known: families by name of the model.
        length_of: as of `backlog`.

    Raises:
        ArgumentError: there is no such model, or a deadline is no number above 0, or not one a call.
    """
    try:
        families = [known[model] for model, _ in calls]
    except KeyError as error:
        raise unknown(error.args[0], known) from None
    strict, alike = deadline is not None, not isinstance(deadline, Sequence)
    dues = of_each(deadline, len(calls)) if isinstance(deadline, Sequence) else ()
    due = UNHURRIED if deadline is None else deadline if not isinstance(deadline, Sequence) else max(dues, default=UNHURRIED)
    rest = group, strict, now, length_of(due)
    ends = [now + due] * len(calls) if alike else [now + one for one in dues]
    ordered = alike or all(map(le, ends, ends[1:]))
    found = list[Handed]()
    for family in dict.fromkeys(families):
        if ordered and len(families) == families.count(family):
            return [Handed(family, calls, ends, *rest, None)], due
        order = [place for place, one in enumerate(families) if one is family]
        if not ordered:
            order.sort(key=ends.__getitem__)
        found.append(Handed(family, [calls[n] for n in order], [ends[n] for n in order], *rest, order))
    return found, due


Part = tuple[Handed, range]
"""Some of the calls."""


def calls_of(parts: Sequence[Part]) -> list[Call]:
    """The calls themselves."""
    return [call for one, part in parts for call in one.calls[part.start : part.stop]]
