"""The fewest tiles that must finish before some others can begin: an exact search.

Counters only grow, so what counts is which tiles finish, not in which order: a set is enough if its tiles can all run, one
after the other, and the goals begin then. Where a slot has just as many posts as are waited for, all of its tiles are needed;
most programs leave no choice at all. Where there is one, the search takes or leaves out a tile at a time, goes no further where
as many tiles are taken as the best set has, and gives up after `BUDGET` choices.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

Tile = tuple[int, int]
Slot = tuple[Hashable, int]  # semaphore, slot
BUDGET = 600


class Shortest:
    """One search.

    Args:
        waits: for a tile, how many posts it waits for in each slot.
        posters: for a slot, how many posts each tile makes that may finish.
        goals: the tiles that are to begin.
        known: a set that is enough.
    """

    def __init__(
        self,
        waits: Callable[[Tile], Mapping[Slot, int]],
        posters: Callable[[Slot], Mapping[Tile, int]],
        goals: Sequence[Tile],
        known: Iterable[Tile],
    ):
        self._waits, self._posters, self._goals = waits, posters, goals
        self.best = frozenset(known)
        self._left = BUDGET
        pending: list[tuple[frozenset[Tile], frozenset[Tile]]] = [(frozenset(), frozenset())]
        while pending and self._left > 0:
            pending += reversed(self._search(*pending.pop()))

    @property
    def exact(self) -> bool:
        """Whether no smaller set is enough: the search has seen all that there are."""
        return self._left > 0

    def _search(self, taken: frozenset[Tile], without: frozenset[Tile]) -> list[tuple[frozenset[Tile], frozenset[Tile]]]:
        """Look for the best set that has all of `taken` and none of `without`; which such searches are left, the next first."""
        self._left -= 1
        if self._left <= 0:
            return []
        closed = self._close(taken, without)
        if closed is None:
            return []
        taken, short = closed
        least = max((-(-missing // max(posts.values())) for missing, posts in short), default=0)
        if len(taken) + least >= len(self.best):
            return []
        if short:
            candidates = min(short, key=lambda one: len(one[1]))[1]
        elif stuck := taken.difference(run_of(sorted(taken), self._waits, self._posters)):
            # They wait for each other's posts: one of them needs a post of another tile.
            slots = (self._posters(slot) for tile in stuck for slot in self._waits(tile))
            candidates = {tile: n for posts in slots for tile, n in posts.items() if tile not in taken and tile not in without}
        else:
            self.best = taken
            return []
        if not candidates:
            return []
        tile = max(candidates, key=lambda one: candidates[one])
        return [(taken | {tile}, without), (taken, without | {tile})]

    def _close(
        self, taken: frozenset[Tile], without: frozenset[Tile]
    ) -> tuple[frozenset[Tile], list[tuple[int, dict[Tile, int]]]] | None:
        """`taken` with all that it cannot do without, and the slots where there is a choice: posts missing, and tiles for them.

        None if something is missing that nobody can post.
        """
        needed, pending = set(taken), [*self._goals, *taken]
        wanted: dict[Slot, int] = {}
        while True:
            for tile in pending:
                for slot, count in self._waits(tile).items():
                    wanted[slot] = max(count, wanted.get(slot, 0))
            pending, short = [], []
            for slot, count in wanted.items():
                posts = self._posters(slot)
                missing = count - sum(n for tile, n in posts.items() if tile in needed)
                if missing <= 0:
                    continue
                choice = {tile: n for tile, n in posts.items() if tile not in needed and tile not in without}
                spare = sum(choice.values()) - missing
                if spare < 0:
                    return None
                forced = [tile for tile, n in choice.items() if n > spare]
                pending += forced
                short.append((missing, choice))
            if not pending:
                return frozenset(needed), short
            pending = list(dict.fromkeys(pending))
            needed.update(pending)


def run_of(
    tiles: Sequence[Tile], waits: Callable[[Tile], Mapping[Slot, int]], posters: Callable[[Slot], Mapping[Tile, int]]
) -> list[Tile]:
    """Those of some tiles that can run if only these do, in an order in which they can."""
    left, done, made = list(tiles), [], set()

    def able(tile: Tile) -> bool:
        return all(
            sum(n for poster, n in posters(slot).items() if poster in made) >= count for slot, count in waits(tile).items()
        )

    while new := [tile for tile in left if able(tile)]:
        done += new
        made.update(new)
        left = [tile for tile in left if tile not in made]
    return done
