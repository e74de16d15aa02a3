"""Random streams of accesses, and a brute-force oracle of their hazards that knows bytes and nothing of intervals.

    python -m test.oracles.hazard_streams [--kind compiled|python] [--streams 1000000] [--seed 0] [--json FILE]

Each stream appends entries whose ranges alias, overlap in part, are empty or unknown, and retires entries in any order that
their hazards allow. After every append: what is named as data is, byte for byte, who wrote last what is read; all that is
named conflicts; everything that conflicts is named, or ends before something that is.
"""

from __future__ import annotations

import argparse
import platform
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kitsune_mlir.windows.compiled_hazards import CompiledHazards
from kitsune_mlir.windows.hazards import BOTH, READ, WRITE, Hazards, Range

__all__ = ["check_stream", "random_ranges"]

MEMORY = 64
SIZES = (1, 2, 3, 8, 32)
KINDS: dict[str, Callable[[int], Any]] = {"compiled": CompiledHazards, "python": Hazards}


def random_ranges(draw: random.Random) -> list[Range] | None:
    """What one entry reads and writes of a memory of `MEMORY` bytes; None, one time in twenty, where that is unknown."""
    if draw.random() < 0.05:
        return None
    found = []
    for _ in range(draw.randrange(5)):
        if draw.random() < 0.6:  # a whole tensor
            low = 8 * draw.randrange(MEMORY // 8)
            high = low + 8
        else:  # a view
            low = draw.randrange(MEMORY)
            high = min(MEMORY, low + draw.choice((0, 1, 3, 8, 17, MEMORY)))
        found.append((low, high, draw.choice((READ, READ, WRITE, BOTH))))
    return sorted(found, key=lambda one: one[2])


class Bytes:
    """The accesses of an entry as sets of bytes, one bit each."""

    def __init__(self, ranges: list[Range] | None):
        self.unknown = ranges is None
        self.reads = self.writes = 0
        for low, high, mode in ranges or ():
            mask = (1 << high) - (1 << low)
            self.reads |= mask if mode != WRITE else 0
            self.writes |= mask if mode != READ else 0

    def conflicts(self, other: Bytes) -> bool:
        """Whether two entries may not change places."""
        if self.unknown or other.unknown:
            return True
        return bool(self.writes & (other.reads | other.writes) or self.reads & other.writes)


def check_stream(seed: int, make: Callable[[int], Any] = Hazards, length: int = 14) -> int:
    """Run one stream; how many hazards it had.

    Raises:
        AssertionError: a hazard was missed, or named where there is none; the message has the seed.
    """
    draw = random.Random(seed)
    size = draw.choice(SIZES)
    hazards, pending, before = make(size), dict[int, Bytes](), dict[int, set[int]]()
    count = 0
    for _ in range(length):
        while pending and (len(pending) == size or draw.random() < 0.3):
            free = [number for number in pending if not before[number] & pending.keys()]
            number = draw.choice(free)
            del pending[number]
            hazards.retire(number)
        ranges = random_ranges(draw)
        mine = Bytes(ranges)
        if ranges is not None and draw.random() < 0.2:
            found = hazards.touching(ranges)
            _check_order(seed, mine, found, pending, before)
        number, (data, order) = hazards.append(ranges)
        named = data | order
        expected = _data(mine, pending)
        assert data == expected, f"stream {seed}, entry {number}: data is {sorted(data)}, the oracle has {sorted(expected)}"
        before[number] = _check_order(seed, mine, named, pending, before)
        count += len(named)
        pending[number] = mine
    while pending:
        number = next(n for n in pending if not before[n] & pending.keys())
        del pending[number]
        hazards.retire(number)
    assert hazards.pieces == 0, f"stream {seed}: {hazards.pieces} pieces are left of no entry"
    return count


def _data(mine: Bytes, pending: dict[int, Bytes]) -> set[int]:
    """Who wrote last what an entry reads; a barrier may have written anything."""
    if mine.unknown:
        return set(pending)
    found, left = set(), mine.reads
    for number, other in reversed(pending.items()):
        if not other.unknown and other.writes & left:
            found.add(number)
            left &= ~other.writes
    barriers = [number for number, other in pending.items() if other.unknown]
    return found | set(barriers[-1:])


def _check_order(seed: int, mine: Bytes, named: set[int], pending: dict[int, Bytes], before: dict[int, set[int]]) -> set[int]:
    """Everything that ends before an entry which waits for those that are named."""
    closure = set(named)
    for number in named:
        assert number in pending, f"stream {seed}: {number} is named, and has ended"
        assert mine.conflicts(pending[number]), f"stream {seed}: {number} is named without a conflict"
        closure |= before[number]
    for number, other in pending.items():
        assert number in closure or not mine.conflicts(other), f"stream {seed}: the conflict with {number} is missed"
    return closure


def main() -> None:
    """The command."""
    from bench.records import Record
    from bench.timing import commit_of

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=list(KINDS), default="compiled")
    parser.add_argument("--streams", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    make = KINDS[asked.kind]
    start, count = time.monotonic(), 0
    for number in range(asked.streams):
        count += check_stream(asked.seed + number, make)
    seconds = round(time.monotonic() - start, 1)
    print(f"{asked.streams} streams, {count} hazards, none missed and none that is no conflict, {seconds} s")
    record = Record.open(asked.json)
    record.begin(
        {
            "command": f"python -m test.oracles.hazard_streams --kind {asked.kind}",
            "commit": commit_of(),
            "machine": platform.machine(),
        }
    )
    facts = {"streams": asked.streams, "seed": asked.seed, "hazards": count, "missed": 0, "spurious": 0}
    record.add({"case": make.__name__, "ok": True, **facts, "seconds": seconds})


if __name__ == "__main__":
    main()
