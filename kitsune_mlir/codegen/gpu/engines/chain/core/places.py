"""Places for rows in shared memory, and their mbarriers: the moving warpgroup fills them, each other one reads its own."""

from __future__ import annotations

import dataclasses

from kitsune_mlir.codegen.gpu.emit.memory import offset
from kitsune_mlir.codegen.gpu.emit.value import Value
from kitsune_mlir.codegen.gpu.interface.context import TaskContext
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Barrier

__all__ = ["Places"]


@dataclasses.dataclass(frozen=True)
class Places:
    """`depth` places for each of `groups` computing warpgroups.

    Attributes:
        start: offset of the first in shared memory; a warpgroup's lie one after the other.
        bytes: of one.
        barrier: number of the first mbarrier among the task's: "full" of each place, then "empty" of each.
    """

    start: int
    bytes: int
    depth: int
    groups: int
    barrier: int

    @property
    def arrivals(self) -> tuple[int, ...]:
        """Of each mbarrier."""
        return (1,) * (2 * self.depth * self.groups)

    @property
    def end(self) -> int:
        """Offset behind the last place."""
        return self.start + self.groups * self.depth * self.bytes

    def all_of(self, task: TaskContext, group: Value) -> Value:
        """A warpgroup's places in shared memory."""
        return offset(offset(task.shared, self.start), group * (self.depth * self.bytes))

    def pointer(self, task: TaskContext, group: Value, place: Value | int) -> Value:
        """A warpgroup's place in shared memory."""
        return offset(offset(task.shared, self.start), (group * self.depth + place) * self.bytes)

    def full(self, task: TaskContext, group: Value, place: Value | int) -> Barrier:
        """Tells that rows have come."""
        return self._barrier(task, self.barrier, group * self.depth + place)

    def empty(self, task: TaskContext, group: Value, place: Value | int) -> Barrier:
        """Tells that rows have been read."""
        return self._barrier(task, self.barrier + self.depth * self.groups, group * self.depth + place)

    @staticmethod
    def _barrier(task: TaskContext, first: int, number: Value) -> Barrier:
        return Barrier(offset(offset(task.barrier_base, Barrier.BYTES * first), number * Barrier.BYTES))
