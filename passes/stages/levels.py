"""The order of stages on a GPU: whatever can start at the same time is together."""

from collections.abc import Callable, Mapping, Sequence

__all__ = ["in_levels"]


def in_levels(groups: Sequence[int], sources: Mapping[int, Sequence[int]], multiplies: Callable[[int], bool]) -> list[int]:
    """Groups that can start at the same time together, so that blocks without a tile of the one work on the other instead of
    waiting for it (the products of q, k and v); last what nobody reads, products before the rest: an engine goes through
    successive ones without a break.

    Args:
        groups: in an order in which producers come before consumers.
        sources: the groups that each reads.
        multiplies: whether a group holds products.
    """
    readers: dict[int, list[int]] = {}
    for g, found in sources.items():
        for source in found:
            readers.setdefault(source, []).append(g)
    level: dict[int, int] = {}
    for g in groups:
        level[g] = max((level[source] + 1 for source in sources[g]), default=0)
    late: set[int] = set()
    for g in groups:
        # What is made of arguments alone, and needed late, is not put before what others wait for.
        if not sources[g] and g in readers and not multiplies(g):
            level[g] = max(0, min(level[reader] for reader in readers[g]) - 1)
            late |= {g} if level[g] else set()
    return sorted(groups, key=lambda g: (level[g], g in late, g not in readers, g not in readers and not multiplies(g)))
