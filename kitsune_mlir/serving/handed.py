"""Calls that were handed in together, while no request is made of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import le

from kitsune_mlir.serving.family import Family
from kitsune_mlir.serving.groups import Call, Group, Member
from kitsune_mlir.serving.requests import numbers

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

    def members(self) -> list[Member]:
        """A request of each call that is neither launched nor refused."""
        return [self.member(call) for call in self.rest]


def handed_in(
    families: Sequence[Family],
    calls: Sequence[Call],
    ends: Sequence[float],
    group: Group,
    strict: bool,
    came: float,
    length: int,
    alike: bool,
) -> Iterator[Handed]:
    """The calls of each family among these; arguments as attributes of `Handed`.

    Args:
        alike: the deadlines are one.
    """
    rest = group, strict, came, length
    ordered = alike or all(map(le, ends, ends[1:]))
    for family in dict.fromkeys(families):
        if ordered and len(families) == families.count(family):
            yield Handed(family, calls, ends, *rest, None)
            return
        order = [place for place, one in enumerate(families) if one is family]
        if not ordered:
            order.sort(key=ends.__getitem__)
        yield Handed(family, [calls[n] for n in order], [ends[n] for n in order], *rest, order)


Part = tuple[Handed, range]
"""Some of the calls."""


def calls_of(parts: Sequence[Part]) -> list[Call]:
    """The calls themselves."""
    return [call for one, part in parts for call in one.calls[part.start : part.stop]]
