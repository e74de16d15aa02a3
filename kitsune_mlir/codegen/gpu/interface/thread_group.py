"""Some threads of a block that share a piece of work, and where they meet."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from kitsune_mlir.codegen.gpu.emit.control_flow import if_, sync_block
from kitsune_mlir.codegen.gpu.emit.value import Value
from kitsune_mlir.codegen.gpu.interface.context import TaskContext
from kitsune_mlir.codegen.gpu.sm90.mbarrier import NamedBarrier

__all__ = ["ThreadGroup"]


@dataclasses.dataclass(frozen=True)
class ThreadGroup:
    """Whole warps of a block.

    Attributes:
        thread: number of the calling thread among them, i32.
        threads: how many they are.
        barrier: where they meet; None: all threads of the block do.
    """

    thread: Value
    threads: int
    barrier: NamedBarrier | None = None

    @staticmethod
    def block(task: TaskContext) -> ThreadGroup:
        """All threads of the block."""
        return ThreadGroup(task.thread, task.threads)

    @staticmethod
    def part(task: TaskContext, first: int, threads: int, barrier: int) -> ThreadGroup:
        """`threads` threads from number `first` on, with a named barrier of their own."""
        return ThreadGroup(task.thread - first, threads, NamedBarrier(barrier, threads))

    @staticmethod
    def leading(task: TaskContext, threads: int, barrier: int) -> ThreadGroup:
        """The first `threads` threads: all of the block, or some that meet at a named barrier."""
        if task.threads == threads:
            return ThreadGroup.block(task)
        return ThreadGroup(task.thread, threads, NamedBarrier(barrier, threads))

    def only(self, body: Callable[[], object]) -> None:
        """What the threads of a leading group do, and no others of the block."""
        if self.barrier is None:
            body()
        else:
            if_(self.thread < self.threads, body)

    @property
    def warps(self) -> int:
        """Number of warps."""
        return self.threads // 32

    def sync(self) -> None:
        """All of them meet."""
        if self.barrier is None:
            sync_block()
        else:
            self.barrier.sync()
