"""Ring queues through L2: `depth` slots of global memory through which one side hands tiles to the other, in order.

Tile number n lies in slot n % depth. Every slot has two counters of its own, posts that filled it and posts that freed it:
under one counter for all slots, a producer's lag and a consumer's lag could add up to a deadlock. The counters are those of
the kernel (`handoff.Semaphores`): every run starts at zero, so a captured graph replays, and streams do not meet.

A tile may be filled by several posts (`pushes`) and read by several consumers (`pops`): slot n % depth holds tile n once it was
filled pushes * (n // depth + 1) times, and is free for it once it was freed pops * (n // depth) times.

Counters are polled by one thread and bumped by one thread; who else moves the data meets it in a barrier, before and after.
"""

from __future__ import annotations

import dataclasses

from kitsune_mlir.codegen.gpu.emit.memory import offset
from kitsune_mlir.codegen.gpu.emit.value import Value, cast
from kitsune_mlir.codegen.gpu.interface.semaphores import Semaphores

__all__ = ["L2Ring"]

SPACING = 4
"""Counters from one that is used to the next: 128 bytes, so that who polls one does not hold up who bumps its neighbour."""


@dataclasses.dataclass(frozen=True)
class L2Ring:
    """One ring.

    Attributes:
        memory: pointer to `depth` slots.
        slot_bytes: of each.
        depth: number of slots.
        counters: of the kernel.
        first: number of the ring's first counter (int or i32); it has `counters_of(depth)` of them.
        pushes, pops: posts that fill and that free a slot.
        task: for the report of a debug build.
    """

    memory: Value
    slot_bytes: int
    depth: int
    counters: Semaphores
    first: Value | int
    pushes: int = 1
    pops: int = 1
    task: int = 0

    @staticmethod
    def counters_of(depth: int) -> int:
        """Counters that a ring needs."""
        return 2 * depth * SPACING

    def slot(self, number: Value) -> Value:
        """The slot of tile `number` (i32)."""
        return number % self.depth

    def pointer(self, number: Value) -> Value:
        """Where tile `number` lies."""
        return offset(self.memory, cast(self.slot(number), "i64", signed=False) * self.slot_bytes)

    def acquire(self, number: Value) -> None:
        """The producer's thread waits until the slot of tile `number` is free for it."""
        self.counters.poll(self._freed(number), number // self.depth * self.pops, self.task)

    def push(self, number: Value) -> None:
        """The producer's thread says that (its part of) tile `number` is there: all that it wrote or saw written is."""
        self.counters.post(self._filled(number))

    def pop(self, number: Value) -> None:
        """The consumer's thread waits until tile `number` is there."""
        self.counters.poll(self._filled(number), (number // self.depth + 1) * self.pushes, self.task)

    def release(self, number: Value) -> None:
        """The consumer's thread gives the slot of tile `number` back, when it has been read."""
        self.counters.post(self._freed(number))

    def _filled(self, number: Value) -> Value:
        return self.slot(number) * SPACING + self.first

    def _freed(self, number: Value) -> Value:
        return (self.slot(number) + self.depth) * SPACING + self.first
