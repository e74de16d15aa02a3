"""A second opinion on tile programs, for programs of some hundred tiles: every tile one by one, memory as sets of words.

It shares nothing with `kitsune-check-progress`. Counters only grow, so whether tile y can start before tile x has finished is
found by running the program with x hanging: for all x at once, a column of counters for each. `verdict` is None for a good
program.
"""

from __future__ import annotations

import functools

import numpy as np

from test.oracles.tiles import TileProgram, Touch

__all__ = ["Conflict", "conflicts_of", "verdict"]

Conflict = tuple[int, int, Touch, Touch]
"""Numbers of two tiles, and what each does to the same words."""


def _before(program: TileProgram) -> np.ndarray | None:
    """[x, y]: whether x has finished whenever y starts. None if the program locks up."""
    total = len(program.tiles)
    made = np.zeros((max(1, program.slots), total + 1), np.int32)  # the last column is for nobody hanging
    started = np.zeros((total, total + 1), bool)
    version = [0] * (max(1, program.slots) + 1)
    moved = True
    while moved:
        moved = False
        seen: dict[tuple[int, int, int, int], np.ndarray] = {}
        for y, tile in enumerate(program.tiles):
            if started[y].all():
                continue
            able = np.ones(total + 1, bool)
            for lo, hi, count, first in tile.waits:
                key = (lo, hi, count, version[first])
                if key not in seen:
                    seen[key] = np.asarray((made[lo:hi] >= count).all(axis=0))
                able &= seen[key]
            new = able & ~started[y]
            if not new.any():
                continue
            moved = True
            started[y] |= new
            new[y] = False
            for slot in tile.posts:
                made[slot] += new
                version[_first(program, slot)] += 1
        if started[:, total].all() and (started.all() or not moved):
            break
    return ~started[:, :total].T if started[:, total].all() else None


def _first(program: TileProgram, slot: int) -> int:
    return max(first for first, _ in program.first_slot.values() if first <= slot)


def _sequential_fault(program: TileProgram) -> str | None:
    """Run the tiles one after the other: lock-ups, reads of what is not there, results that are not complete."""
    made = [0] * program.slots
    valid: dict[tuple[int, int], int] = {}
    for tile in program.tiles:
        label = f"task {tile.task} tile {tile.number}"
        if any(made[slot] < count for lo, hi, count, _ in tile.waits for slot in range(lo, hi)):
            return f"{label} waits for what later tiles post"
        for touch in (t for t in tile.touches if t.kind != "write"):
            if touch.words & ~valid.get((touch.memory, touch.name), 0):
                return f"{label} reads what is not there"
        for touch in (t for t in tile.touches if t.kind != "read"):
            for key in valid:
                if key[0] == touch.memory and key[1] != touch.name:
                    valid[key] &= ~touch.words
            valid[touch.memory, touch.name] = valid.get((touch.memory, touch.name), 0) | touch.words
        for slot in tile.posts:
            made[slot] += 1
    for memory, whole in program.results.items():
        written = 0
        for (other, _), words in valid.items():
            written |= words if other == memory else 0
        if whole & ~written:
            return f"result {memory - program.inputs} is not complete"
    return None


def conflicts_of(program: TileProgram) -> list[Conflict]:
    """Pairs of tiles x before y (or the same), in order of the program, that touch the same words, one of them writing."""
    found = []
    written: list[int] = []  # by tile: words that it writes, and all that it touches, all memories side by side
    touched: list[int] = []
    size = 1 << max((t.words.bit_length() for tile in program.tiles for t in tile.touches), default=1).bit_length()
    by_task: dict[int, list[int]] = {}
    for n, tile in enumerate(program.tiles):
        by_task.setdefault(tile.task, []).append(n)
        written.append(0)
        touched.append(0)
        for t in tile.touches:
            words = t.words << (size * (t.memory - program.inputs))
            touched[n] |= words
            written[n] |= 0 if t.kind == "read" else words
    unions = {
        task: [functools.reduce(int.__or__, (w[n] for n in of)) for w in (written, touched)] for task, of in by_task.items()
    }
    for first in by_task:
        for second in (s for s in by_task if s >= first):
            if not (unions[first][0] & unions[second][1] or unions[first][1] & unions[second][0]):
                continue
            for x in by_task[first]:
                for y in (n for n in by_task[second] if n >= x):
                    if not (written[x] & touched[y] or touched[x] & written[y]):
                        continue
                    for a in program.tiles[x].touches:
                        for b in program.tiles[y].touches:
                            if a.memory == b.memory and a.words & b.words and _clash(a, b, x == y):
                                found.append((x, y, a, b))
    return found


def verdict(program: TileProgram, conflicts: list[Conflict] | None = None) -> str | None:
    """None for a good program, else the first fault. `conflicts`: as found before, where memory has not changed."""
    if program.broken:
        return program.broken
    fault = _sequential_fault(program)
    if fault:
        return fault
    before = _before(program)
    if before is None:
        return "locks up"
    missing: dict[tuple[int, int, int], int] = {}  # (reader, its access, store) -> words that it reads of the store's
    there: dict[tuple[int, int, int], int] = {}
    for x, y, a, b in conflicts_of(program) if conflicts is None else conflicts:
        if a.kind == "write" and b.kind != "write" and x != y:
            # A last tile that is shifted back writes words again: it is enough that one writer of each word came before.
            key = (y, b.store, a.store)
            missing[key] = missing.get(key, 0) | a.words & b.words
            if before[x, y]:
                there[key] = there.get(key, 0) | a.words
        elif x == y or not before[x, y]:
            return f"tiles {x} and {y} touch the same words"
    for key, words in missing.items():
        if words & ~there.get(key, 0):
            return f"tile {key[0]} reads what may not be there yet"
    return None


def _clash(a: Touch, b: Touch, same_tile: bool) -> bool:
    """Whether the order of two accesses to the same words matters."""
    if a.kind == b.kind == "read" or a.kind == b.kind == "add" or (a.kind == b.kind == "write" and a.store == b.store):
        return False
    return not same_tile or a.kind != b.kind
