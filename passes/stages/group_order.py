"""An order of groups in which what is read comes first, kept while groups are joined.

Whether joining two groups makes others wait for themselves is a search among the groups between them, and only there (Pearce
and Kelly, A dynamic topological sort algorithm for directed acyclic graphs, 2006).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kitsune_mlir.dialects.deep import postorder

__all__ = ["GroupOrder"]


class GroupOrder:
    """An order of numbers of groups.

    Args:
        reads: the other groups that one reads, as groups are now.
    """

    def __init__(self, reads: Callable[[int], Iterable[int]]):
        self._reads = reads
        self._line: list[int | None] = []
        self._place: dict[int, int] = {}

    def begin(self, groups: Iterable[int]) -> None:
        """Order groups anew; of those that do not read each other, the ones that are named first come first."""
        self._line = list(postorder(groups, self._reads))
        self._place = {g: n for n, g in enumerate(self._line) if g is not None}

    def leads_through_others(self, a: int, b: int) -> bool:
        """Whether a group reads another one through a third: some path from `a` to `b`."""
        return a in self._read_by((g for g in self._reads(b) if g != a), self._place[a])

    def join(self, a: int, b: int) -> None:
        """Group `a` has become part of `b`, which reads now what both did. No third one may be between them."""
        first, last = sorted((self._place.pop(a), self._place.pop(b)))
        before = self._read_by(self._reads(b), first + 1)
        self._line[first], self._line[last] = b, None
        self._place[b] = first
        if not before:
            return
        between = [g for g in self._line[first + 1 : last] if g is not None]
        line = [*(g for g in between if g in before), b, *(g for g in between if g not in before)]
        self._line[first:last] = [*line, *[None] * (last - first - len(line))]
        self._place.update((g, n) for n, g in enumerate(line, first))

    def _read_by(self, groups: Iterable[int], least: int) -> set[int]:
        """Groups from a place on that some groups are or read, themselves or through others."""
        found: set[int] = set()
        pending = list(groups)
        while pending:
            g = pending.pop()
            if g not in found and self._place[g] >= least:
                found.add(g)
                pending += self._reads(g)
        return found
