"""The order of groups that are joined: what leads through a third group, beside a search of all paths, in random graphs."""

from __future__ import annotations

import random

import pytest

from kitsune_mlir.passes.stages.group_order import GroupOrder


class Groups:
    """Operations that read earlier ones, in groups that begin with one each."""

    def __init__(self, count: int, most: int):
        self.of = {n: n for n in range(count)}
        self.reads = {n: random.sample(range(n), min(n, random.randint(0, most))) for n in range(count)}

    def read_by(self, g: int) -> list[int]:
        return sorted({self.of[s] for n, own in self.of.items() if own == g for s in self.reads[n]} - {g})

    def paths(self, a: int, b: int) -> bool:
        """Whether `b` reads `a` through others."""
        pending, seen = [g for g in self.read_by(b) if g != a], set()
        while pending:
            g = pending.pop()
            if g == a:
                return True
            if g not in seen:
                seen.add(g)
                pending += self.read_by(g)
        return False

    def join(self, a: int, b: int) -> None:
        self.of = {n: b if own == a else own for n, own in self.of.items()}


@pytest.mark.parametrize("most", [1, 2, 4])
def test_random_graphs(most: int) -> None:
    found = {False: 0, True: 0}
    for _ in range(60):
        groups = Groups(random.randint(2, 24), most)
        order = GroupOrder(groups.read_by)
        order.begin(range(len(groups.of)))
        for _ in range(40):
            if len(every := sorted(set(groups.of.values()))) < 2:
                break
            a, b = random.sample(every, 2)
            both = [(a, b), (b, a)]
            through = [groups.paths(*pair) for pair in both]
            assert [order.leads_through_others(*pair) for pair in both] == through
            found[any(through)] += 1
            if not any(through):
                groups.join(a, b)
                order.join(a, b)
    assert min(found.values()) > 100


def test_a_group_that_ends_before_another_begins_may_read_it_through_a_third() -> None:
    """A weight's gradient and its sum (0), the sum's cast (1), a number (2), the weight's update (3), the bias's update (4)."""
    groups = Groups(0, 0)
    groups.of = {0: 0, 1: 1, 2: 2, 3: 0, 4: 4}
    groups.reads = {0: [], 1: [0], 2: [], 3: [0, 2], 4: [1, 2]}
    order = GroupOrder(groups.read_by)
    order.begin([0, 1, 2, 4])
    assert order.leads_through_others(2, 4) and not order.leads_through_others(0, 1)
