"""One arena for buffers: which may share bytes, offsets by which they take few, and what then lay where."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

__all__ = ["Interval", "Packing", "Rule", "alive", "last_tenants", "packings"]

CLIMBS = 24
"""Packings that are tried beside those by the orders of `_ORDERS`, each from the one before: more found no smaller one."""
WORK = 4000
"""Buffers that these place together, at most: a packing of 500 takes 0.1 s."""


@dataclass
class Interval:
    """A buffer's bytes, the first and last stage (by number) that touch it, and its place once it has one."""

    stage: int
    result: int
    size: int
    first: int
    last: int
    offset: int = -1
    before: "Interval | None" = field(default=None, repr=False)  # in whose place it is written row by row


Rule = Callable[[Interval, Interval], bool]
"""Whether the first buffer, whose writer comes after the second one's last reader, may lie where the second one lay."""


@dataclass(frozen=True)
class Packing:
    """Offsets of intervals, in their order, and the bytes of the arena."""

    offsets: tuple[int, ...]
    total: int


_ORDERS: tuple[Callable[[Interval], tuple[int, ...]], ...] = (
    lambda i: (-i.size, i.first),
    lambda i: (-i.size * (i.last - i.first + 1), i.first),
    lambda i: (i.first - i.last, -i.size),
    lambda i: (i.first, -i.size),
    lambda i: (-i.last, -i.size),
)


def packings(intervals: Sequence[Interval], rule: Rule = lambda mine, other: True) -> list[Packing]:
    """Ways to place buffers, each taking fewer bytes than those before it. Two share bytes only where the one's writer comes
    after the other's last reader, and the rule allows it.

    All are first-fit. The first has the largest buffers first (greedy by size, as in Pisarchyk and Lee, arXiv 2001.03288,
    section 5); others have other orders, or what lies highest in the last one before all others (as the hill climbing of Arm's
    Vela does). None is tried any more where the bytes of what is alive at one time are reached (`alive`).
    """
    met, least = _conflicts(intervals, rule), alive(intervals)
    numbers = range(len(intervals))
    found: list[Packing] = []
    for key in _ORDERS:
        order = sorted(numbers, key=lambda n: key(intervals[n]))
        packing = _first_fit(intervals, met, order)
        if not found or packing.total < found[-1].total:
            found.append(packing)
            best = order
        if found[-1].total <= least:
            return found
    order = best
    for _ in range(min(CLIMBS, WORK // max(1, len(intervals)))):
        packing = _first_fit(intervals, met, order)
        if packing.total < found[-1].total:
            found.append(packing)
        if packing.total <= least:
            break
        top = max(numbers, key=lambda n: packing.offsets[n] + intervals[n].size)
        order = [top, *(n for n in order if n != top)]
    return found


def alive(intervals: Sequence[Interval]) -> int:
    """The most bytes that must be kept at one time: no packing takes fewer."""
    changes = sorted([(i.first, i.size) for i in intervals] + [(i.last + 1, -i.size) for i in intervals])
    return max(itertools.accumulate(size for _, size in changes), default=0)


def _conflicts(intervals: Sequence[Interval], rule: Rule) -> list[list[int]]:
    """For each interval the numbers of those that it may share no bytes with."""
    met: list[list[int]] = [[] for _ in intervals]
    for n, a in enumerate(intervals):
        for m in range(n):
            b = intervals[m]
            if not (rule(b, a) if a.last < b.first else b.last < a.first and rule(a, b)):
                met[n].append(m)
                met[m].append(n)
    return met


def _first_fit(intervals: Sequence[Interval], met: Sequence[Sequence[int]], order: Sequence[int]) -> Packing:
    """Each in the lowest place that those placed before it leave."""
    offsets = [-1] * len(intervals)
    for n in order:
        at = 0
        for start, end in sorted((offsets[m], offsets[m] + intervals[m].size) for m in met[n] if offsets[m] >= 0):
            if at + intervals[n].size <= start:
                break
            at = max(at, end)
        offsets[n] = at
    return Packing(tuple(offsets), max((at + i.size for at, i in zip(offsets, intervals, strict=True)), default=0))


def last_tenants(mine: Interval, intervals: Sequence[Interval]) -> list[Interval]:
    """The buffers that were the last to lie in some byte of `mine` before it, latest first.

    Those before them need no waiting: the last tenant's writer has waited for their readers.
    """
    free = [(mine.offset, mine.offset + mine.size)]
    found = []
    (first, end), before = free[0], mine.first
    near = [i for i in intervals if i.offset < end and first < i.offset + i.size and i.last < before]
    for other in sorted(near, key=lambda i: -i.first):
        start, end = other.offset, other.offset + other.size
        if any(a < end and start < b for a, b in free):
            found.append(other)
            free = [part for a, b in free for part in ((a, min(b, start)), (max(a, end), b)) if part[0] < part[1]]
    return found
