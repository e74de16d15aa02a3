"""A second opinion on tile programs, for programs of some hundred tiles: every tile one by one, memory as sets of words.

It shares nothing with `kitsune-check-progress`. Counters only grow, so whether tile y can start before tile x has finished is
found by running the program with x hanging: for all x at once, a column of counters for each. `verdict` is None for a good
program. `random_run` starts and ends tiles in random order and watches every word that is read; `replay` follows a trace.
"""

from __future__ import annotations

import functools
import math
import random
from dataclasses import dataclass, field

import numpy as np
from torch_mlir import ir

_DYNAMIC = ir.ShapedType.get_dynamic_size()
_OPERATIONS = {
    "addi": np.add, "subi": np.subtract, "muli": np.multiply, "minui": np.minimum, "minsi": np.minimum, "maxsi": np.maximum,
    "maxui": np.maximum, "divui": np.floor_divide, "remui": np.remainder, "divsi": np.floor_divide, "remsi": np.remainder,
    "ceildivui": lambda a, b: -(-a // b), "ceildivsi": lambda a, b: -(-a // b),
}  # fmt: skip
WORD = 4  # bytes of a word of memory; odd sizes are rounded outwards


def _maker(value: ir.Value) -> ir.Operation | None:
    return value.owner.operation if isinstance(value, ir.OpResult) else None


def _bytes(type_: ir.Type) -> int:
    element = ir.ShapedType(type_).element_type
    return 8 if isinstance(element, ir.IndexType) else max(1, element.width // 8)


@dataclass
class Touch:
    """What a tile does to memory: `words` as bits of a number."""

    kind: str  # "read", "write" or "add"
    memory: int
    name: int  # of the buffer that it is known by
    words: int
    store: int  # which operation


@dataclass
class Tile:
    task: int
    number: int
    waits: list[tuple[int, int, int, int]] = field(default_factory=list)  # first slot, end, count, of all slots; semaphore
    posts: list[int] = field(default_factory=list)
    touches: list[Touch] = field(default_factory=list)


class Oracle:
    """All tiles of a tile program. `broken` says what a tile does to counters that do not exist."""

    def __init__(self, function: ir.Operation):
        self.tiles: list[Tile] = []
        self.first_slot: dict[ir.Value, tuple[int, int]] = {}
        self.slots = 0
        self.broken: str | None = None
        self.names: dict[object, int] = {}
        self.stores = 0
        block = function.regions[0].blocks[0]
        attributes = function.attributes
        inputs, results = (ir.IntegerAttr(attributes[f"kitsune.{x}"]).value for x in ("arguments", "results"))
        self.block, self.inputs = block, inputs
        self.results = range(inputs, inputs + results)
        task = 0
        for op in (o.operation for o in block.operations):
            if op.name == "kitsune.make_semaphore":
                count = ir.IntegerAttr(op.attributes["slots"]).value
                self.first_slot[op.results[0]] = (self.slots, count)
                self.slots += count
            elif op.name == "kitsune.task":
                self._task(op, task)
                task += 1

    # Reading.

    def _task(self, op: ir.Operation, number: int) -> None:
        extents = list(ir.DenseI64ArrayAttr(op.attributes["grid"]))
        block = op.regions[0].blocks[0]
        count = math.prod(extents)
        self.known: dict[ir.Value, np.ndarray] = dict(
            zip(block.arguments, np.unravel_index(np.arange(count), extents), strict=True)
        )
        self.count = count
        tiles = [Tile(number, n) for n in range(count)]
        for inner in self._all(block):
            self.stores += 1
            if inner.name == "kitsune.wait":
                first, slots = self.first_slot[inner.operands[0]]
                wanted = ir.IntegerAttr(inner.attributes["count"]).value
                for tile, lo, hi in zip(tiles, *(self._values(v).tolist() for v in list(inner.operands)[1:]), strict=True):
                    if not (0 <= lo <= hi <= slots):
                        self.broken = self.broken or "waits outside of its semaphore"
                    tile.waits.append((first + lo, first + hi, wanted, first))
            elif inner.name == "kitsune.post":
                first, slots = self.first_slot[inner.operands[0]]
                for tile, slot in zip(tiles, self._values(inner.operands[1]).tolist(), strict=True):
                    if not 0 <= slot < slots:
                        self.broken = self.broken or "posts outside of its semaphore"
                    tile.posts.append(first + slot)
            elif inner.name == "bufferization.to_tensor":
                self._touch(tiles, "read", inner.operands[0])
            elif inner.name == "bufferization.materialize_in_destination":
                self._touch(tiles, "write", inner.operands[1])
            elif inner.name == "kitsune.scatter_add":
                self._touch(tiles, "add", inner.operands[3])
        self.tiles += tiles

    def _all(self, block: ir.Block):
        for op in (o.operation for o in block.operations):
            yield op
            for region in op.regions if op.name.startswith("scf.") else ():
                for inner in region.blocks:
                    yield from self._all(inner)

    def _values(self, value: ir.Value) -> np.ndarray:
        if value not in self.known:
            op = _maker(value)
            assert op is not None
            if op.name == "arith.constant":
                found = np.full(self.count, op.attributes["value"].value)
            else:
                found = _OPERATIONS[op.name.removeprefix("arith.")](*(self._values(v) for v in op.operands))
            self.known[value] = found
        return self.known[value]

    def _touch(self, tiles: list[Tile], kind: str, view: ir.Value) -> None:
        steps, value = [], view
        while (op := _maker(value)) is not None:
            steps.append(op)
            value = op.operands[0]
        memory = ir.BlockArgument(value).arg_number
        if memory < self.inputs:
            return
        name: object = memory
        shape = list(ir.ShapedType(value.type).shape)
        # The box in bytes along each dimension of the newest view that is whole: start, offsets, sizes.
        start, size = 0, _bytes(value.type)
        offsets, sizes = [np.zeros(self.count, int)] * len(shape), list(shape)
        for op in reversed(steps):
            result = list(ir.ShapedType(op.results[0].type).shape)
            if op.name == "memref.view":
                start, size, shape = int(self._values(op.operands[1])[0]), _bytes(op.results[0].type), result
                offsets, sizes, name = [np.zeros(self.count, int)] * len(shape), list(shape), (memory, hash(op))
            elif op.name == "memref.subview":
                dynamic = iter(list(op.operands)[1:])
                for d, (offset, extent) in enumerate(
                    zip(op.attributes["static_offsets"], op.attributes["static_sizes"], strict=True)
                ):
                    offsets[d] = offsets[d] + (self._values(next(dynamic)) if offset == _DYNAMIC else offset)
                    sizes[d] = extent
            else:
                assert sizes == shape, "a reshape of a part"
                shape, offsets, sizes = result, [np.zeros(self.count, int)] * len(result), list(result)
        number = self.names.setdefault(name, len(self.names))
        patterns: dict[tuple[int, ...], int] = {}
        for n, tile in enumerate(tiles):
            at = tuple(int(o[n]) for o in offsets)
            if at not in patterns:
                patterns[at] = _words(shape, at, sizes, start, size)
            tile.touches.append(Touch(kind, memory, number, patterns[at], self.stores))

    # Judging.

    def before(self) -> np.ndarray | None:
        """[x, y]: whether x has finished whenever y starts. None if the program locks up."""
        total = len(self.tiles)
        made = np.zeros((max(1, self.slots), total + 1), np.int32)  # the last column is for nobody hanging
        started = np.zeros((total, total + 1), bool)
        version = [0] * (max(1, self.slots) + 1)
        moved = True
        while moved:
            moved = False
            seen: dict[tuple[int, int, int, int], np.ndarray] = {}
            for y, tile in enumerate(self.tiles):
                if started[y].all():
                    continue
                able = np.ones(total + 1, bool)
                for lo, hi, count, first in tile.waits:
                    key = (lo, hi, count, version[first])
                    if key not in seen:
                        seen[key] = (made[lo:hi] >= count).all(axis=0)
                    able &= seen[key]
                new = able & ~started[y]
                if not new.any():
                    continue
                moved = True
                started[y] |= new
                new[y] = False
                for slot in tile.posts:
                    made[slot] += new
                    version[self._first(slot)] += 1
            if started[:, total].all() and (started.all() or not moved):
                break
        return ~started[:, :total].T if started[:, total].all() else None

    def _first(self, slot: int) -> int:
        return max(first for first, _ in self.first_slot.values() if first <= slot)

    def sequential_fault(self) -> str | None:
        """Run the tiles one after the other: lock-ups, reads of what is not there, results that are not complete."""
        made = [0] * self.slots
        valid: dict[tuple[int, int], int] = {}
        for tile in self.tiles:
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
        for memory in self.results:
            type_ = self.block.arguments[memory].type
            shape = list(ir.ShapedType(type_).shape)
            whole = _words(shape, (0,) * len(shape), shape, 0, _bytes(type_))
            written = 0
            for (other, _), words in valid.items():
                written |= words if other == memory else 0
            if whole & ~written:
                return f"result {memory - self.inputs} is not complete"
        return None

    def conflicts(self) -> list[tuple[int, int, Touch, Touch]]:
        """Pairs of tiles x before y (or the same), in order of the program, that touch the same words, one of them writing."""
        found = []
        written: list[int] = []  # by tile: words that it writes, and all that it touches, all memories side by side
        touched: list[int] = []
        size = 1 << max((t.words.bit_length() for tile in self.tiles for t in tile.touches), default=1).bit_length()
        by_task: dict[int, list[int]] = {}
        for n, tile in enumerate(self.tiles):
            by_task.setdefault(tile.task, []).append(n)
            written.append(0)
            touched.append(0)
            for t in tile.touches:
                words = t.words << (size * (t.memory - self.inputs))
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
                        for a in self.tiles[x].touches:
                            for b in self.tiles[y].touches:
                                if a.memory == b.memory and a.words & b.words and _clash(a, b, x == y):
                                    found.append((x, y, a, b))
        return found

    def verdict(self, conflicts: list[tuple[int, int, Touch, Touch]] | None = None) -> str | None:
        """None for a good program, else the first fault. `conflicts`: as found before, where memory has not changed."""
        if self.broken:
            return self.broken
        fault = self.sequential_fault()
        if fault:
            return fault
        before = self.before()
        if before is None:
            return "locks up"
        missing: dict[tuple[int, int, int], int] = {}  # (reader, its access, store) -> words that it reads of the store's
        there: dict[tuple[int, int, int], int] = {}
        for x, y, a, b in self.conflicts() if conflicts is None else conflicts:
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

    # Running.

    def random_run(self, rng: random.Random) -> str | None:
        """One run with tiles that begin and end in random order; what a tile reads wrongly, if anything.

        A tile's words are torn while it runs, and must be what they should when it begins and when it ends.
        """
        wanted = self._sequential_tags()
        made, tags = [0] * self.slots, {}
        waiting, running = list(range(len(self.tiles))), []
        while waiting or running:
            able = [n for n in waiting if all(made[s] >= c for lo, hi, c, _ in self.tiles[n].waits for s in range(lo, hi))]
            if not able and not running:
                return "locks up"
            if able and (not running or rng.random() < 0.6):
                n = rng.choice(able)
                waiting.remove(n)
                running.append(n)
                fault = self._compare(n, tags, wanted)
                self._write(n, tags, torn=True)
            else:
                n = running.pop(rng.randrange(len(running)))
                fault = self._compare(n, tags, wanted)
                self._write(n, tags, torn=False)
                for slot in self.tiles[n].posts:
                    made[slot] += 1
            if fault:
                return fault
        return None

    def _sequential_tags(self) -> dict[tuple[int, int], list[tuple[int, int]]]:
        """(tile, access) -> [(store, words that it should find written by it)] in a sequential run."""
        found, tags = {}, {}
        for n, tile in enumerate(self.tiles):
            for touch in (t for t in tile.touches if t.kind == "read"):
                found[n, touch.store] = [(s, w & touch.words) for s, w in tags.get(touch.memory, {}).items() if w & touch.words]
            self._write(n, tags, torn=False)
        return found

    def _write(self, n: int, tags: dict, torn: bool) -> None:
        for touch in (t for t in self.tiles[n].touches if t.kind != "read"):
            held = tags.setdefault(touch.memory, {})
            same = held.get(touch.store, 0) & touch.words if torn else 0  # written again with the same values
            words = touch.words & ~same
            for store in held:
                if touch.kind == "write" or store == -1:
                    held[store] &= ~words
            if touch.kind == "write":
                held[-1 if torn else touch.store] = held.get(-1 if torn else touch.store, 0) | words

    def _compare(self, n: int, tags: dict, wanted: dict) -> str | None:
        for touch in (t for t in self.tiles[n].touches if t.kind == "read"):
            for store, words in wanted[n, touch.store]:
                if words & ~tags.get(touch.memory, {}).get(store, 0):
                    return f"tile {n} reads words that another store should have written"
        return None

    def reachable(self, last: tuple[int, int]) -> bool:
        """Whether a tile can begin after all those before it, in order of the program, have ended."""
        made = [0] * self.slots
        for tile in self.tiles:
            ready = all(made[s] >= c for lo, hi, c, _ in tile.waits for s in range(lo, hi))
            if (tile.task, tile.number) == last:
                return ready
            for slot in tile.posts if ready else ():
                made[slot] += 1
        raise KeyError(last)

    def replay(self, order: list[tuple[int, int]], hanging: tuple[int, int] | None, last: tuple[int, int]) -> str | None:
        """What is wrong with a trace: its tiles cannot run in this order, `last` cannot begin then, or it holds `hanging`."""
        place = {(t.task, t.number): n for n, t in enumerate(self.tiles)}
        made = [0] * self.slots
        for key in [*order, last]:
            tile = self.tiles[place[key]]
            if any(made[s] < c for lo, hi, c, _ in tile.waits for s in range(lo, hi)):
                return f"{key} cannot begin"
            for slot in tile.posts if key != last else ():
                made[slot] += 1
        return "the hanging tile is among those that finish" if hanging in order else None

    def fewest(self, hanging: tuple[int, int] | None, goals: list[tuple[int, int]], limit: int) -> int | None:
        """How many tiles must at least end before `goals` can all have begun, while `hanging` does not end.

        Breadth first over sets of ended tiles; None where there are more than `limit` of them to look at.
        """
        place = {(t.task, t.number): n for n, t in enumerate(self.tiles)}
        out = {place[key] for key in [*goals, *([hanging] if hanging else [])]}
        wanted = [place[key] for key in goals]
        feeders: dict[int, set[int]] = {}
        for n, tile in enumerate(self.tiles):
            for slot in tile.posts:
                feeders.setdefault(slot, set()).add(n)
        useful, pending = set(), list(wanted)
        while pending:
            for lo, hi, count, _ in self.tiles[pending.pop()].waits:
                for n in (n for slot in range(lo, hi) if count for n in feeders.get(slot, ())):
                    if n not in useful and n not in out:
                        useful.add(n)
                        pending.append(n)

        def able(n: int, made: dict[int, int]) -> bool:
            return all(made.get(s, 0) >= c for lo, hi, c, _ in self.tiles[n].waits for s in range(lo, hi))

        level, seen = [frozenset()], 1
        while level:
            new: set[frozenset[int]] = set()
            for ended in level:
                made: dict[int, int] = {}
                for n in ended:
                    for slot in self.tiles[n].posts:
                        made[slot] = made.get(slot, 0) + 1
                if all(able(n, made) for n in wanted):
                    return len(ended)
                new |= {ended | {n} for n in useful - ended if able(n, made)}
                if seen + len(new) > limit:
                    return None
            seen += len(new)
            level = list(new)
        return None


def _clash(a: Touch, b: Touch, same_tile: bool) -> bool:
    """Whether the order of two accesses to the same words matters."""
    if a.kind == b.kind == "read" or a.kind == b.kind == "add" or (a.kind == b.kind == "write" and a.store == b.store):
        return False
    return not same_tile or a.kind != b.kind


def _words(shape: list[int], at: tuple[int, ...], sizes: list[int], start: int, size: int) -> int:
    """The words of a box, as bits."""
    if not shape:
        return ((1 << -(-size // WORD)) - 1) << (start // WORD)
    offsets = np.zeros(1, np.int64)
    for d in range(len(shape) - 1):
        stride = math.prod(shape[d + 1 :]) * size
        offsets = (offsets[:, None] + (at[d] + np.arange(sizes[d])) * stride).ravel()
    low = start + offsets + at[-1] * size
    length, words = sizes[-1] * size, 0
    for first in low.tolist():
        begin, end = first // WORD, -(-(first + length) // WORD)
        words |= ((1 << (end - begin)) - 1) << begin
    return words
