"""An optimizer's numbers while its update is traced: what is computed from them is an input of the graph, not a constant."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

__all__ = ["SLOTS", "Number", "Numbers", "Place", "Read", "is_number", "numbers_in", "value_of"]

SLOTS = 16
"""Inputs for each group's numbers, and for what is computed from them before a tensor is (`1 - beta`): Adam reads seven."""

_INTEGERS = ("lr", "momentum", "weight_decay", "dampening", "lr_decay", "eps")
"""Numbers although they may be written as integers; other integers are counts, which decide what an optimizer does."""


@dataclass(frozen=True)
class Place:
    """Where an optimizer keeps a number: `param_groups[group][key]`, or an element of the tuple that is there."""

    group: int
    key: str
    index: int | None = None

    def of(self, groups: Sequence[Mapping[str, Any]]) -> float:
        """The number that is there."""
        found = groups[self.group][self.key]
        return found if self.index is None else found[self.index]


@dataclass(frozen=True)
class Read:
    """What Python asked of a number: a graph is made for the answer. `whole`: its value, else only its sign."""

    place: Place
    whole: bool

    def answer(self, groups: Sequence[Mapping[str, Any]]) -> float | bool | None:
        """What it is for the numbers of these groups; None where there is none any more."""
        try:
            value = self.place.of(groups)
        except (KeyError, IndexError, TypeError):
            return None
        return value if self.whole else (value > 0) - (value < 0)


def is_number(key: str, value: Any) -> bool:
    """Whether an entry of an optimizer's group is a number that may change from step to step."""
    return isinstance(value, float) or (key in _INTEGERS and isinstance(value, int) and not isinstance(value, bool))


def numbers_in(group: Mapping[str, Any]) -> Iterator[tuple[str, int | None]]:
    """Key, and index for an element of a tuple, of the numbers of a group."""
    for key, value in group.items():
        if is_number(key, value):
            yield key, None
        elif isinstance(value, tuple | list) and key != "params" and any(isinstance(v, float) for v in value):
            yield from ((key, n) for n, v in enumerate(value) if isinstance(v, float))


@dataclass(frozen=True)
class _Made:
    """What Python computed from numbers: an operation's name in `operator`, and what it was computed of."""

    name: str
    of: tuple[Expression, ...]


Expression = Place | _Made | float


def value_of(made: Expression, groups: Sequence[Mapping[str, Any]]) -> float:
    """What an expression of numbers is for those of these groups."""
    if isinstance(made, Place):
        return made.of(groups)
    if isinstance(made, _Made):
        return getattr(operator, made.name)(*(value_of(each, groups) for each in made.of))
    return made


def _places(made: Expression) -> Iterator[Place]:
    if isinstance(made, Place):
        yield made
    elif isinstance(made, _Made):
        for each in made.of:
            yield from _places(each)


class Numbers:
    """The numbers of an optimizer's groups during one trace.

    Args:
        groups: of the optimizer, with the values of now.
        slots: for each group tensors of one element that are inputs of the graph; none where its numbers are constants.

    Attributes:
        reads: what Python was told about numbers; other answers would have given another graph.
        taken: for each slot that the graph reads, its group, its number there, and what its value is computed from.
    """

    def __init__(self, groups: Sequence[Mapping[str, Any]], slots: Sequence[Sequence[Tensor]]):
        self._groups = [dict(group) for group in groups]
        self._slots = slots
        self.reads: set[Read] = set()
        self.taken: dict[tuple[int, Expression], int] = {}

    def slots(self, group: int) -> Sequence[Tensor]:
        """Of a group."""
        return self._slots[group]

    def of_group(self, group: int, groups: Sequence[Mapping[str, Any]], slots: Sequence[Tensor]) -> Numbers:
        """Those of one group, for a trace of its own, by tensors that stand for this one's slots there; what is noted is noted
        here."""
        own = Numbers(groups, [slots if n == group else () for n in range(len(groups))])
        own.reads, own.taken = self.reads, self.taken
        return own

    def put(self, groups: Sequence[dict[str, Any]]) -> None:
        """Put what stands for numbers into the groups of an optimizer, which are changed."""
        for n, group in enumerate(groups):
            for key, index in list(numbers_in(group)) if group["params"] else ():
                if not self._slots[n]:
                    self.reads.add(Read(Place(n, key, index), True))
                    continue
                number = Number(self, Place(n, key, index), n)
                if index is None:
                    group[key] = number
                else:
                    group[key] = type(group[key])(number if i == index else v for i, v in enumerate(group[key]))

    def changed_in(self, groups: Sequence[Mapping[str, Any]]) -> str | None:
        """The key of an entry that no longer holds what `put` put there."""
        for n, before in enumerate(self._groups):
            for key, index in numbers_in(before) if self._slots[n] else ():
                now = groups[n].get(key)
                now = now if index is None or not isinstance(now, tuple | list) else now[index]
                if not (isinstance(now, Number) and now.made == Place(n, key, index)):
                    return key
        return None

    def value(self, made: Expression) -> float:
        """What it is now."""
        return value_of(made, self._groups)

    def read(self, made: Expression, whole: bool = True) -> float:
        """The value of it, which the graph is made for from now on; or for its sign."""
        self.reads.update(Read(place, whole or not isinstance(made, Place)) for place in _places(made))
        return self.value(made)

    def tensor(self, made: Expression, group: int) -> Tensor | None:
        """The input that holds its value; None where there are no more of them."""
        used = [n for g, n in self.taken.items() if g[0] == group]
        slot = self.taken.get((group, made))
        if slot is None:
            if len(used) == len(self._slots[group]):
                return None
            slot = self.taken[group, made] = len(used)
        return self._slots[group][slot]


class Number(float):
    """A number of an optimizer's group, or what Python computed from some.

    As a float it is no number, so that code which does not ask (`math.sqrt`) leaves a trace of it in the graph.
    """

    numbers: Numbers
    made: Expression
    group: int

    def __new__(cls, numbers: Numbers, made: Expression, group: int) -> Number:
        self = super().__new__(cls, math.nan)
        self.numbers, self.made, self.group = numbers, made, group
        return self

    def tensor(self) -> Tensor | float:
        """The graph's input that holds it, or its value, which is then a constant of the graph."""
        found = self.numbers.tensor(self.made, self.group)
        return self.numbers.read(self.made) if found is None else found

    def read(self) -> float:
        """Its value, which the graph is made for."""
        return self.numbers.read(self.made)

    def __bool__(self) -> bool:
        return bool(self.numbers.read(self.made, whole=False))

    def __hash__(self) -> int:
        return hash(self.read())

    def __float__(self) -> float:
        return float(self.read())

    def __repr__(self) -> str:
        return repr(self.numbers.value(self.made))

    __str__ = __repr__

    def __reduce__(self) -> Any:
        return float, (self.read(),)


def _operation(name: str, turned: bool = False) -> Callable[..., Any]:
    def operation(self: Number, *others: Any) -> Any:
        if any(not isinstance(other, int | float) for other in others):
            return NotImplemented  # a tensor has it then, as it has those of all functions
        of = tuple(other.made if isinstance(other, Number) else other for other in others)
        return Number(self.numbers, _Made(name, (*of, self.made) if turned else (self.made, *of)), self.group)

    return operation


def _compared(name: str) -> Callable[..., Any]:
    def compared(self: Number, other: Any) -> Any:
        if not isinstance(other, int | float):
            return NotImplemented
        if isinstance(other, Number):
            return getattr(operator, name)(self.read(), other.read())
        return getattr(operator, name)(self.numbers.read(self.made, whole=other != 0), other)

    return compared


def _asked(name: str) -> Callable[..., Any]:
    def asked(self: Number, *others: Any) -> Any:
        return getattr(float(self.read()), name)(*(o.read() if isinstance(o, Number) else o for o in others))

    return asked


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    setattr(Number, f"__{_name}__", _operation(_name))
    setattr(Number, f"__r{_name}__", _operation(_name, turned=True))
for _name in ("neg", "pos", "abs"):
    setattr(Number, f"__{_name}__", _operation(_name))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Number, f"__{_name}__", _compared(_name))
for _name in ("int", "round", "trunc", "floor", "ceil", "divmod", "format"):
    setattr(Number, f"__{_name}__", _asked(f"__{_name}__"))
