"""Runs of tile programs, tile after tile: in random order, watching every word read; along a trace; the shortest ones."""

from __future__ import annotations

import random

from test.oracles.tiles import TileProgram

__all__ = ["fewest", "random_run", "reachable", "replay"]


def random_run(program: TileProgram, rng: random.Random) -> str | None:
    """One run with tiles that begin and end in random order; what a tile reads wrongly, if anything.

    A tile's words are torn while it runs, and must be what they should when it begins and when it ends.
    """
    wanted = _sequential_tags(program)
    made, tags = [0] * program.slots, {}
    waiting, running = list(range(len(program.tiles))), []
    while waiting or running:
        able = [n for n in waiting if all(made[s] >= c for lo, hi, c, _ in program.tiles[n].waits for s in range(lo, hi))]
        if not able and not running:
            return "locks up"
        if able and (not running or rng.random() < 0.6):
            n = rng.choice(able)
            waiting.remove(n)
            running.append(n)
            fault = _compare(program, n, tags, wanted)
            _write(program, n, tags, torn=True)
        else:
            n = running.pop(rng.randrange(len(running)))
            fault = _compare(program, n, tags, wanted)
            _write(program, n, tags, torn=False)
            for slot in program.tiles[n].posts:
                made[slot] += 1
        if fault:
            return fault
    return None


def _sequential_tags(program: TileProgram) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """(tile, access) -> [(store, words that it should find written by it)] in a sequential run."""
    found, tags = {}, {}
    for n, tile in enumerate(program.tiles):
        for touch in (t for t in tile.touches if t.kind == "read"):
            found[n, touch.store] = [(s, w & touch.words) for s, w in tags.get(touch.memory, {}).items() if w & touch.words]
        _write(program, n, tags, torn=False)
    return found


def _write(program: TileProgram, n: int, tags: dict, torn: bool) -> None:
    for touch in (t for t in program.tiles[n].touches if t.kind != "read"):
        held = tags.setdefault(touch.memory, {})
        same = held.get(touch.store, 0) & touch.words if torn else 0  # written again with the same values
        words = touch.words & ~same
        for store in held:
            if touch.kind == "write" or store == -1:
                held[store] &= ~words
        if touch.kind == "write":
            held[-1 if torn else touch.store] = held.get(-1 if torn else touch.store, 0) | words


def _compare(program: TileProgram, n: int, tags: dict, wanted: dict) -> str | None:
    for touch in (t for t in program.tiles[n].touches if t.kind == "read"):
        for store, words in wanted[n, touch.store]:
            if words & ~tags.get(touch.memory, {}).get(store, 0):
                return f"tile {n} reads words that another store should have written"
    return None


def reachable(program: TileProgram, last: tuple[int, int]) -> bool:
    """Whether a tile can begin after all those before it, in order of the program, have ended."""
    made = [0] * program.slots
    for tile in program.tiles:
        ready = all(made[s] >= c for lo, hi, c, _ in tile.waits for s in range(lo, hi))
        if (tile.task, tile.number) == last:
            return ready
        for slot in tile.posts if ready else ():
            made[slot] += 1
    raise KeyError(last)


def replay(
    program: TileProgram, order: list[tuple[int, int]], hanging: tuple[int, int] | None, last: tuple[int, int]
) -> str | None:
    """What is wrong with a trace: its tiles cannot run in this order, `last` cannot begin then, or it holds `hanging`."""
    place = {(t.task, t.number): n for n, t in enumerate(program.tiles)}
    made = [0] * program.slots
    for key in [*order, last]:
        tile = program.tiles[place[key]]
        if any(made[s] < c for lo, hi, c, _ in tile.waits for s in range(lo, hi)):
            return f"{key} cannot begin"
        for slot in tile.posts if key != last else ():
            made[slot] += 1
    return "the hanging tile is among those that finish" if hanging in order else None


def fewest(program: TileProgram, hanging: tuple[int, int] | None, goals: list[tuple[int, int]], limit: int) -> int | None:
    """How many tiles must at least end before `goals` can all have begun, while `hanging` does not end.

    Breadth first over sets of ended tiles; None where there are more than `limit` of them to look at.
    """
    place = {(t.task, t.number): n for n, t in enumerate(program.tiles)}
    out = {place[key] for key in [*goals, *([hanging] if hanging else [])]}
    wanted = [place[key] for key in goals]
    feeders: dict[int, set[int]] = {}
    for n, tile in enumerate(program.tiles):
        for slot in tile.posts:
            feeders.setdefault(slot, set()).add(n)
    useful, pending = set(), list(wanted)
    while pending:
        for lo, hi, count, _ in program.tiles[pending.pop()].waits:
            for n in (n for slot in range(lo, hi) if count for n in feeders.get(slot, ())):
                if n not in useful and n not in out:
                    useful.add(n)
                    pending.append(n)

    def able(n: int, made: dict[int, int]) -> bool:
        return all(made.get(s, 0) >= c for lo, hi, c, _ in program.tiles[n].waits for s in range(lo, hi))

    level, seen = [frozenset()], 1
    while level:
        new: set[frozenset[int]] = set()
        for ended in level:
            made: dict[int, int] = {}
            for n in ended:
                for slot in program.tiles[n].posts:
                    made[slot] = made.get(slot, 0) + 1
            if all(able(n, made) for n in wanted):
                return len(ended)
            new |= {ended | {n} for n in useful - ended if able(n, made)}
            if seen + len(new) > limit:
                return None
        seen += len(new)
        level = list(new)
    return None
