"""What of a program's traffic crosses to memory: L2 as a list of chunks, the least recently used of which is given up first."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

from kitsune_mlir.machine import rates
from kitsune_mlir.simulation.program import SimTask, Touch

__all__ = ["Traffic", "traffic_of"]

CHUNK = 64 << 10
MOST_CHUNKS = 20_000


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes of all tiles of a task: from and to memory, between L2 and blocks, of these between tasks, through rings."""

    dram_read: float
    dram_written: float
    l2: float
    between: float
    ring: float = 0.0

    @property
    def dram(self) -> float:
        """Both ways."""
        return self.dram_read + self.dram_written


class _Cache:
    """Least recently used chunks; each is (memory, number)."""

    def __init__(self, chunks: int):
        self.chunks = chunks
        self.held: collections.OrderedDict[tuple[int, int], int | None] = collections.OrderedDict()
        self.written_back: collections.Counter[int] = collections.Counter()

    def touch(self, key: tuple[int, int], writer: int | None) -> bool:
        """Whether the chunk was there. `writer`: the task that writes it, or None."""
        there = key in self.held
        dirty = self.held.pop(key, None)
        self.held[key] = dirty if writer is None else writer
        while len(self.held) > self.chunks:
            _, owner = self.held.popitem(last=False)
            if owner is not None:
                self.written_back[owner] += 1
        return there


def traffic_of(tasks: Sequence[SimTask], cache_bytes: int, cold: bool = False) -> list[Traffic]:
    """The traffic of each task, in a run that follows another one of the same program; `cold`: nothing is in L2 before."""
    ends: dict[int, int] = {}
    for touch in (t for task in tasks for t in task.touches):
        ends[touch.memory] = max(ends.get(touch.memory, 0), touch.high)
    size = max(CHUNK, sum(ends.values()) // MOST_CHUNKS)
    cache = _Cache(max(1, int(cache_bytes * rates.L2_USABLE) // size))
    missed = [0.0] * len(tasks)
    for _ in range(1 if cold else 2):
        missed = [0.0] * len(tasks)
        cache.written_back.clear()
        for number, task in enumerate(tasks):
            for touch in task.touches:
                missed[number] += _run(cache, touch, number, size)
    back = cache.written_back
    return [
        Traffic(
            missed[number],
            float(back[number] * size),
            sum(t.asked for t in task.touches),
            sum(t.asked for t in task.touches if t.between),
            sum(t.asked for t in task.touches if t.ring),
        )
        for number, task in enumerate(tasks)
    ]


def _run(cache: _Cache, touch: Touch, task: int, size: int) -> float:
    """Bytes read from memory for one touch: at most what is asked for."""
    misses = 0
    for chunk in range(touch.low // size, -(-touch.high // size)):
        low, high = max(touch.low, chunk * size), min(touch.high, (chunk + 1) * size)
        if not cache.touch((touch.memory, chunk), task if touch.writes else None):
            misses += high - low
    return 0.0 if touch.writes else float(min(misses, touch.asked))
