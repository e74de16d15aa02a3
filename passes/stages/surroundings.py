"""What a group of ops needs and gives: free ops that go with it, values that others read; of two groups, from those of both.

Groups grow by one op at a time, and each try to join two asks for both: to look at all ops again each time is quadratic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import merge

from torch_mlir import ir

from kitsune_mlir.dialects.iteration import is_free, is_reshape, root_of
from kitsune_mlir.dialects.products import defining_op
from kitsune_mlir.dialects.unchanged import remembered
from kitsune_mlir.dialects.verify import captures

__all__ = ["Surroundings", "reads", "surroundings", "surroundings_of_both"]


def reads(op: ir.Operation) -> list[ir.Value]:
    """Every value an op uses, its operands and what its regions use from outside, without repetition."""
    return list(_read(op))


@remembered
def _read(op: ir.Operation) -> tuple[ir.Value, ...]:
    return tuple(dict.fromkeys([*op.operands, *captures(op)]))


@dataclass(frozen=True)
class Surroundings:
    """Of a group.

    Attributes:
        inside: hashes of its ops.
        needed: its ops and the free ops that they need, by their numbers in the program, in that order.
        viewed: hashes of others' ops that it sees through reshapes, which are views of memory made outside.
        given: numbers of op and result, and the value, of each result that others need (views, returned values, other groups).
    """

    inside: frozenset[int]
    needed: dict[int, ir.Operation]
    viewed: frozenset[int]
    given: list[tuple[int, int, ir.Value]]

    @property
    def ops(self) -> list[ir.Operation]:
        """The group's ops and the free ones that it needs, in order of the program."""
        return list(self.needed.values())

    @property
    def outputs(self) -> list[ir.Value]:
        """What others need, in order of the program."""
        return [value for _, _, value in self.given]


def surroundings(group: Sequence[ir.Operation], order: Mapping[int, int], grouped: Mapping[int, int]) -> Surroundings:
    """Those of a group of ops.

    Args:
        order: the number of each op of the block, by hash.
        grouped: the group of each op that is in one, by hash.
    """
    inside = frozenset(map(hash, group))
    needed, viewed = _needed(group, inside, order, grouped)
    made = [(order[hash(op)], n, result) for op in group for n, result in enumerate(op.results)]
    return Surroundings(inside, needed, viewed, [one for one in made if _is_given(one[2], inside, order, grouped)])


def surroundings_of_both(
    a: Surroundings, b: Surroundings, order: Mapping[int, int], grouped: Mapping[int, int]
) -> Surroundings:
    """Those of two groups together: fewer values are given, and views of each other's results go with them."""
    inside = a.inside | b.inside
    if a.viewed & b.inside or b.viewed & a.inside:
        group = [op for one in (a, b) for op in one.needed.values() if hash(op) in one.inside]
        needed, viewed = _needed(group, inside, order, grouped)
    else:
        needed, viewed = dict(sorted({**a.needed, **b.needed}.items())), a.viewed | b.viewed
    given = [one for one in merge(a.given, b.given, key=lambda one: one[:2]) if _is_given(one[2], inside, order, grouped)]
    return Surroundings(inside, needed, viewed, given)


def _needed(
    group: Sequence[ir.Operation], inside: frozenset[int], order: Mapping[int, int], grouped: Mapping[int, int]
) -> tuple[dict[int, ir.Operation], frozenset[int]]:
    found = {hash(op): op for op in group}
    viewed: set[int] = set()
    pending = [value for op in group for value in reads(op)]
    while pending:
        maker = defining_op(pending.pop())
        if maker is None or hash(maker) in found or hash(maker) in grouped or not is_free(maker):
            continue
        if is_reshape(maker):
            # What shows an argument or another stage's result is made outside the stage: an engine then sees a plain load.
            shown = defining_op(root_of(maker.operands[0]))
            if shown is None:
                continue
            if hash(shown) in grouped and hash(shown) not in inside:
                viewed.add(hash(shown))
                continue
        found[hash(maker)] = maker
        pending += reads(maker)
    return dict(sorted((order[key], op) for key, op in found.items())), frozenset(viewed)


def _is_given(value: ir.Value, inside: frozenset[int], order: Mapping[int, int], grouped: Mapping[int, int]) -> bool:
    """Whether something outside a group needs a value of it."""
    pending = [value]
    while pending:
        for use in pending.pop().uses:
            user = use.owner.operation
            while hash(user) not in order and user.parent is not None:
                user = user.parent.operation if hasattr(user.parent, "operation") else user.parent
            if hash(user) in inside:
                continue
            if hash(user) not in order or hash(user) in grouped or not is_free(user):
                return True
            pending += user.results
    return False
