"""How the blocks that share a tile hand each other partial results: claim the memory, announce, wait, give it back."""

from __future__ import annotations

from collections.abc import Callable

from kitsune_mlir.codegen.gpu.emit.control_flow import if_, sync_block
from kitsune_mlir.codegen.gpu.emit.memory import offset
from kitsune_mlir.codegen.gpu.emit.value import Value, i32, i64
from kitsune_mlir.codegen.gpu.interface.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.interface.split import PartialsSlot

__all__ = ["SplitExchange"]


class SplitExchange:
    """The memory and the counters of a task with a `Split`, as the threads use it that write and add up partial results.

    Args:
        task: that has them.
        leads: whether the calling thread is the one that polls and posts for all of these threads (i1).
        sync: a barrier over them.
    """

    def __init__(self, task: TaskContext, leads: Callable[[], Value], sync: Callable[[], None]):
        self.task, self.leads, self.sync = task, leads, sync
        self.counters = task.kernel.counters

    @property
    def slot(self) -> PartialsSlot:
        """Where the task's partial results and counters are."""
        assert self.task.place is not None
        return self.task.place

    def claim(self, sync: bool = True) -> None:
        """Wait until the task that had the memory before has read everything. Before the first write."""
        before = self.slot.before
        if before is not None:
            if_(self.leads(), lambda: self.counters.poll(i32(before[0]), before[1], self.task.number))
            if sync:
                self.sync()

    def announce(self, tile: Value, where: Value | None = None) -> None:
        """Count the block's partial results of a tile, on the tile's counter. After a barrier; not where `where` is false."""
        if_(self._leads(where), lambda: self.counters.post(tile + self.slot.arrivals))

    def wait(self, tile: Value, count: Value | int, where: Value | None = None) -> None:
        """Wait until `count` partial results of a tile have been announced; not where `where` is false."""
        arrival = tile + self.slot.arrivals
        if_(self._leads(where), lambda: self.counters.poll(arrival, count, self.task.number))
        self.sync()

    def release(self, where: Value | None = None, also: Callable[[], None] | None = None) -> None:
        """All threads have read what they add up; `also` is what the leading one posts then. Not where `where` is false."""
        self.sync()

        def post() -> None:
            if also is not None:
                also()
            self.counters.post(i32(self.slot.read))

        if_(self._leads(where), post)

    def end(self, tile: TileContext, pieces: int) -> None:
        """The end of one of a tile's `pieces`, after a barrier of the block: its memory is free, and it is done."""
        sync_block()

        def post() -> None:
            self.counters.post(i32(self.slot.read))
            tile.post(pieces)

        if_(self.leads(), post)

    def partials(self, number: Value, bytes: int) -> Value:
        """Pointer to partial results `number`, of `bytes` each."""
        assert self.task.partials is not None
        return offset(self.task.partials, i64(number) * bytes)

    def _leads(self, where: Value | None) -> Value:
        return self.leads() if where is None else self.leads() & where
