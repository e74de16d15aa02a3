"""The shortest way to a fault: which tiles run, in which order, until something goes wrong.

A program's counters only grow, so what can run never stops being able to. Tile c may therefore run before tile d has finished
exactly when c starts in a run in which d hangs for ever. The trace is the tiles that c needs for that, none of which can be
left out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch_mlir import ir

from kitsune_mlir.dialects.tile_indices import Array, Points

from ._progress_program import Program, Task
from .base import PassFailure

Tile = tuple[int, int]  # number of the task, number of the tile in row-major order
_SHOWN = 12  # lines of a trace
_PRUNED = 64  # tiles of a trace that are tried to be left out


@dataclass(frozen=True)
class Trace:
    """A run up to a fault.

    `tiles` finish in this order; meanwhile `hanging` has begun, or could have, and is not finished; then `last` begins, and
    does what it should not. For a lock-up, `last` waits for ever after all of `tiles`.
    """

    tiles: tuple[Tile, ...]
    hanging: Tile | None
    last: Tile

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
    waits: list[tuple[int, Array, Array, int]]
    posts: list[tuple[int, Array]]


class Replay:
    """A program tile by tile, to run it with some tiles left out."""

    def __init__(self, program: Program):
        self.program = program
        self.tasks = [self._expand(task) for task in program.tasks]
        self._without: dict[Tile, list[Array]] = {}

    def _expand(self, task: Task) -> _Tiles:
        every = Points.every(task.extents)
        waits = [(w.semaphore, every.take(w.lo), every.take(w.hi), w.count) for w in task.waits]
        return _Tiles(math.prod(task.extents), waits, [(p.semaphore, every.take(p.slot)) for p in task.posts])

    def ranks(self, hanging: Sequence[Tile] = ()) -> list[Array]:
        """For each task the place of each tile in a run in which `hanging` never finish; -1 for tiles that then cannot."""
        made = [np.zeros(n, np.int64) for n in self.program.slots]
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
        """The tiles that must finish for `last` to begin while `hanging` does not finish; with `both`, for both to begin."""
        ranks = self.ranks([tile for tile in (hanging, last) if tile is not None])
        goals = [last, hanging] if both and hanging is not None else [last]
        needed: set[Tile] = set()
        pending = list(goals)
        while pending:
            for tile in self._needs(pending.pop(), ranks, needed):
                if tile not in needed:
                    needed.add(tile)
                    pending.append(tile)
        order = sorted(needed, key=lambda tile: ranks[tile[0]][tile[1]])
        for tile in list(reversed(order)) if len(order) <= _PRUNED else []:
            shorter = [t for t in order if t != tile]
            if self._suffices(shorter, goals):
                order = shorter
        return Trace(tuple(order), hanging, last)

    def lock_up(self, last: Tile) -> Trace:
        """Nothing has to run for a tile to wait for ever; those that it waits for and that can run do."""
        ranks = self.ranks([last])
        needed = self._needs(last, ranks, set())
        return Trace(tuple(sorted(needed, key=lambda tile: ranks[tile[0]][tile[1]])), None, last)

    def _needs(self, tile: Tile, ranks: list[Array], known: set[Tile]) -> set[Tile]:
        """Tiles whose posts let a tile begin: for each slot as few as give its count, those that can run first."""
        found: set[Tile] = set()
        for semaphore, lo, hi, count in self.tasks[tile[0]].waits:
            for slot in range(int(lo[tile[1]]), int(hi[tile[1]])):
                posts: dict[Tile, int] = {}
                for number, task in enumerate(self.tasks):
                    for other, slots in task.posts:
                        if other == semaphore:
                            for poster in np.flatnonzero((slots == slot) & (ranks[number] >= 0)).tolist():
                                posts[number, poster] = posts.get((number, poster), 0) + 1
                have = 0
                for poster in sorted(posts, key=lambda t: (t not in known and t not in found, ranks[t[0]][t[1]])):
                    if have >= count:
                        break
                    found.add(poster)
                    have += posts[poster]
        return found

    def _suffices(self, tiles: Sequence[Tile], goals: Sequence[Tile]) -> bool:
        """Whether these tiles can run in this order and the goals begin afterwards."""
        made: dict[tuple[int, int], int] = {}
        for number, tile in [*tiles, *goals]:
            for semaphore, lo, hi, count in self.tasks[number].waits:
                if any(made.get((semaphore, slot), 0) < count for slot in range(int(lo[tile]), int(hi[tile]))):
                    return False
            if (number, tile) not in goals:
                for semaphore, slots in self.tasks[number].posts:
                    made[semaphore, int(slots[tile])] = made.get((semaphore, int(slots[tile])), 0) + 1
        return True
