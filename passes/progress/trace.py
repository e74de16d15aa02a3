"""The shortest way to a fault: which tiles run, in which order, until something goes wrong.

A program's counters only grow, so what can run never stops being able to. Tile c may therefore run before tile d has finished
exactly when c starts in a run in which d hangs for ever. The trace is the fewest tiles that c needs for that.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch_mlir import ir

from kitsune_mlir.dialects.tile_indices import Array, Points
from kitsune_mlir.dialects.tile_records import Semaphore
from kitsune_mlir.dialects.tile_regions import Program, Task
from kitsune_mlir.passes.base import PassFailure

from .shortest import Shortest, Slot, Tile, run_of

_SHOWN = 12  # lines of a trace


@dataclass(frozen=True)
class Trace:
    """A run up to a fault.

    `tiles` finish in this order; meanwhile `hanging` has begun, or could have, and is not finished; then `last` begins, and
    does what it should not. For a lock-up, `last` waits for ever whatever runs before, so nothing has to.
    `shortest`: no fewer tiles do; else the search for fewer was cut off. `both`: `hanging` has begun, too.
    """

    tiles: tuple[Tile, ...]
    hanging: Tile | None
    last: Tile
    shortest: bool = True
    both: bool = False

    def lines(self, program: Program, fault: str) -> list[str]:
        """The trace in words, a line a step; runs of tiles of one task are one line."""
        steps: list[str] = []
        for number, group in itertools.groupby(self.tiles, key=lambda tile: tile[0]):
            task = program.tasks[number]
            members = [tile for _, tile in group]
            first, last = (task.tile(_coordinates(task, tile)) for tile in (members[0], members[-1]))
            steps.append(f"{first} runs" if len(members) == 1 else f"{first} to {last} run, {len(members)} tiles")
        if len(steps) > _SHOWN:
            steps = [*steps[: _SHOWN - 1], f"and {len(steps) - _SHOWN + 1} steps more"]
        if self.hanging is not None:
            steps.append(f"{self._name(program, self.hanging)} is not finished")
        steps.append(f"{self._name(program, self.last)} {fault}")
        if not self.shortest:
            steps.append("(a shorter way may exist: not all were looked at)")
        return [f"trace, step {n}: {step}" for n, step in enumerate(steps, 1)]

    def _name(self, program: Program, tile: Tile) -> str:
        task = program.tasks[tile[0]]
        return task.tile(_coordinates(task, tile[1]))


class ProgressFailure(PassFailure):
    """A tile program can go wrong. The message ends with the trace, a line a step.

    Attributes:
        trace: the run that shows it; None where the fault is in one place and nothing has to run.
    """

    def __init__(self, op: ir.Operation, message: str, program: Program, trace: Trace | None = None, fault: str = ""):
        self.trace = trace
        lines = trace.lines(program, fault) if trace is not None else []
        super().__init__(op, "\n  ".join([message, *lines]))


def number_of(task: Task, coordinates: Sequence[int]) -> int:
    """The number of a tile in row-major order."""
    return int(np.ravel_multi_index(tuple(coordinates), task.extents))


def _coordinates(task: Task, tile: int) -> tuple[int, ...]:
    return tuple(int(c) for c in np.unravel_index(tile, task.extents))


@dataclass(frozen=True, eq=False)
class _Tiles:
    """A task's tiles one by one: what each waits for, (semaphore, lo, hi, count) with arrays, and posts, (semaphore, slot)."""

    count: int
    waits: list[tuple[Semaphore, Array, Array, int]]
    posts: list[tuple[Semaphore, Array]]


class Replay:
    """A program tile by tile, to run it with some tiles left out."""

    def __init__(self, program: Program):
        self.program = program
        self.tasks = [self._expand(task) for task in program.tasks]
        self._without: dict[Tile, list[Array]] = {}
        self._wanted: dict[Tile, dict[Slot, int]] = {}

    def _expand(self, task: Task) -> _Tiles:
        every = Points.every(task.extents)
        waits = [(w.semaphore, every.take(w.lo), every.take(w.hi), w.count) for w in task.waits]
        return _Tiles(math.prod(task.extents), waits, [(p.semaphore, every.take(p.slot)) for p in task.posts])

    def ranks(self, hanging: Sequence[Tile] = ()) -> list[Array]:
        """For each task the place of each tile in a run in which `hanging` never finish; -1 for tiles that then cannot."""
        made = {semaphore: np.zeros(semaphore.slots, np.int64) for semaphore in self.program.semaphores}
        ranks = [np.full(task.count, -1) for task in self.tasks]
        blocked = [np.zeros(task.count, bool) for task in self.tasks]
        for number, tile in hanging:
            blocked[number][tile] = True
        place, moved = 0, True
        while moved:
            moved = False
            for number, task in enumerate(self.tasks):
                while True:
                    able = (ranks[number] < 0) & ~blocked[number]
                    for semaphore, lo, hi, count in task.waits:
                        short = np.concatenate([[0], np.cumsum(made[semaphore] < count)])
                        bounds = [np.clip(x, 0, len(made[semaphore])) for x in (lo, hi)]
                        able &= short[np.maximum(*bounds)] == short[bounds[0]]
                    new = np.flatnonzero(able)
                    if not len(new):
                        break
                    ranks[number][new] = place + np.arange(len(new))
                    place, moved = place + len(new), True
                    for semaphore, slot in task.posts:
                        np.add.at(made[semaphore], slot[new][(slot[new] >= 0) & (slot[new] < len(made[semaphore]))], 1)
        return ranks

    def can_begin(self, last: Tile, hanging: Tile) -> bool:
        """Whether `last` begins in some run before `hanging` has finished."""
        if hanging not in self._without:
            self._without[hanging] = self.ranks([hanging])
        return bool(self._without[hanging][last[0]][last[1]] >= 0)

    def trace(self, last: Tile, hanging: Tile | None = None, both: bool = False) -> Trace:
        """The fewest tiles that finish for `last` to begin while `hanging` does not finish; with `both`, for both to begin."""
        ranks = self.ranks([tile for tile in (hanging, last) if tile is not None])
        goals = [last, hanging] if both and hanging is not None else [last]
        posters = self._posters(ranks)
        found = Shortest(self._waits, posters, goals, self._enough(goals, ranks, posters))
        return Trace(tuple(run_of(sorted(found.best), self._waits, posters)), hanging, last, found.exact, len(goals) > 1)

    def _enough(self, goals: Sequence[Tile], ranks: list[Array], posters: Callable[[Slot], Mapping[Tile, int]]) -> set[Tile]:
        """Tiles whose posts let the goals begin: for each slot as few as give its count, those that can run first."""
        found: set[Tile] = set()
        pending = list(goals)

        def rank(tile: Tile) -> float:
            return math.inf if tile in goals else ranks[tile[0]][tile[1]]

        while pending:
            waiting = pending.pop()
            for slot, count in self._waits(waiting).items():
                before = {tile: n for tile, n in posters(slot).items() if rank(tile) < rank(waiting)}
                for tile in sorted(before, key=lambda tile: (tile not in found, rank(tile))):
                    if count <= 0:
                        break
                    count -= before[tile]
                    if tile not in found:
                        found.add(tile)
                        pending.append(tile)
        return found

    def _waits(self, tile: Tile) -> dict[Slot, int]:
        """How many posts a tile waits for in each slot."""
        if tile not in self._wanted:
            wanted: dict[Slot, int] = {}
            for semaphore, lo, hi, count in self.tasks[tile[0]].waits:
                for slot in range(int(lo[tile[1]]), int(hi[tile[1]])):
                    wanted[semaphore, slot] = max(count, wanted.get((semaphore, slot), 0))
            self._wanted[tile] = wanted
        return self._wanted[tile]

    def _posters(self, ranks: list[Array]) -> Callable[[Slot], Mapping[Tile, int]]:
        """For a slot how many posts each tile makes there, of the tiles that have a rank."""
        known: dict[Slot, dict[Tile, int]] = {}

        def of(place: Slot) -> dict[Tile, int]:
            if place not in known:
                posts: dict[Tile, int] = {}
                for number, task in enumerate(self.tasks):
                    for other, slots in task.posts:
                        if other == place[0]:
                            for poster in np.flatnonzero((slots == place[1]) & (ranks[number] >= 0)).tolist():
                                posts[number, poster] = posts.get((number, poster), 0) + 1
                known[place] = posts
            return known[place]

        return of
