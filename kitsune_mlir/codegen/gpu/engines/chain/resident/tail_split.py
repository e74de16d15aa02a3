"""Which tiles' rows each warpgroup of a chain has: in a last wave of few tiles, two blocks have one tile's halves.

Warpgroups have rows of their own, so nothing binds them to the same tile. A wave that gives less than half of the blocks a tile
is over earlier if each of these does one half, on a multiprocessor of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_
from kitsune_mlir.codegen.gpu.emit.value import Value, i32, select
from kitsune_mlir.codegen.gpu.interface.context import TaskContext, TileContext

__all__ = ["TailSplit"]


@dataclasses.dataclass(frozen=True)
class TailSplit:
    """How a task's tiles are dealt out.

    Args:
        task: the task.
        group: number of the warpgroup, 0 or 1 (i32), whose tiles are walked.
        halves: the last wave's tiles may be done by two blocks each. Then nobody posts for a tile, but once for all of them.
    """

    task: TaskContext
    group: Value
    halves: bool

    @classmethod
    def of(cls, task: TaskContext, group: Value, halves: bool) -> TailSplit:
        """Deal with `halves` where they are wanted and the task's posts allow them."""
        return cls(task, group, halves and cls.may_halve(task))

    @staticmethod
    def may_halve(task: TaskContext) -> bool:
        """Whether the task's blocks may post once for all their tiles."""
        return all(post.semaphore.first in task.kernel.whole for post in task.view.posts)

    @property
    def rest(self) -> Value:
        """Tiles of the last wave."""
        return i32(self.task.tiles) % self.task.blocks

    @property
    def spread(self) -> Value:
        """Whether (i1) two blocks do each of them."""
        return (self.rest > 0) & (2 * self.rest <= self.task.blocks) & (self.task.blocks < self.task.tiles)

    def for_each_tile(self, body: Callable[..., Sequence[Value] | Value | None], carried: Sequence[Value]) -> list[Value]:
        """Emit the loop over the warpgroup's tiles, as `TaskContext.for_each_tile` does."""
        if not self.halves:
            return self.task.for_each_tile(body, carried)
        return for_(self.task.first, self.end, self.task.blocks, lambda turn, *state: body(self.tile(turn), *state), carried)

    @property
    def end(self) -> Value:
        """Where the loop over turns ends: the second warpgroup's half of a tile is some blocks further on."""
        tiles = i32(self.task.tiles)
        if not self.halves:
            return tiles
        second = select(self.task.first < self.rest, tiles - self.rest, tiles + self.rest)
        return select(self.spread & (self.group == 1), second, tiles)

    def tile(self, turn: Value) -> TileContext:
        """The tile of a turn."""
        if not self.halves:
            return TileContext(self.task, turn, turn)
        moved = (turn >= i32(self.task.tiles) - self.rest) & self.spread & (self.group == 1)
        return TileContext(self.task, select(moved, turn - self.rest, turn), turn)

    def keep_turns(self, skip: Callable[[], None]) -> None:
        """Emit `skip`, which passes on the warpgroup's turns of a tile, where only the other one has a last tile."""
        if self.halves:
            first, rest = self.task.first, self.rest
            other = select(self.group == 1, i32(0), rest)  # where the other one's blocks begin
            if_(self.spread & (first >= other) & (first < other + rest), skip)

    def post(self) -> None:
        """The calling thread posts for all that both warpgroups have done; tiles count twice (`Plan.halves`)."""
        task = self.task
        waves = (i32(task.tiles) - self.rest) // task.blocks
        last = select(self.spread, select(task.first < 2 * self.rest, i32(1), 0), select(task.first < self.rest, i32(2), 0))
        tile = TileContext(task, i32(0))
        for post in task.view.posts:
            slot = tile.index(post.slot) + task.operands.first_slot(post.semaphore)
            task.kernel.counters.post(slot, (2 * waves + last) * (task.kernel.weight(post.semaphore) // 2))
