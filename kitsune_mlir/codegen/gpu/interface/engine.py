"""What an engine is: it looks at a task and plans or declines, and later emits the task's code into the one kernel.

The kernel is persistent: every block walks its tiles of task 0, then its tiles of task 1, and so on. All threads of the
block run an engine's code for each tile, so an engine may use block barriers freely. While its task runs, an engine owns
the block's shared memory from `TaskContext.shared` on, its own mbarriers and its own scratch; nothing of these survives
into another task. The mbarriers are initialised when the task begins, and their phases run on from tile to tile.

The simplest engine overrides `make_plan` and `emit_tile`:

    def emit_tile(self, plan, tile):
        tile.wait()                                   # all waits; every thread may read afterwards
        data = load(offset(tile.pointer(buffer), ...), ...)
        ...
        tile.finish()                                 # block barrier, then the posts

One that splits the block into roles overrides `emit` and loops over the tiles in each role:

    def emit(self, plan, task):
        if_(warp == 0, lambda: task.for_each_tile(produce, slot.values), lambda: task.for_each_tile(consume, ...))
        task.sync()

where the producing thread calls `tile.poll_by_thread()` itself, after the loads that wait for nothing (weights).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.value import Value
from kitsune_mlir.codegen.gpu.interface.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.interface.offer import Candidate, Offer
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions, Plan
from kitsune_mlir.codegen.gpu.interface.traits import Traits
from kitsune_mlir.dialects.iteration import Space
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.dialects.tile_records import TaskView
from kitsune_mlir.machine.target import Target

__all__ = ["Engine", "Steps"]


@dataclasses.dataclass(frozen=True)
class Steps:
    """An op that blocks do together in steps, after each of which they meet.

    Attributes:
        count: of the steps. seconds: that each takes, all that is done in it included.
        blocks: that do it.
    """

    count: int
    seconds: float
    blocks: int


class Engine:
    """Base of all engines. Engines have no state: one object serves every program."""

    name: ClassVar[str] = ""
    traits: ClassVar[Traits] = Traits()
    prefetches: ClassVar[bool] = False
    """Whether `prefetch` does anything."""

    def offer(self, candidate: Candidate, machine: Target, options: KernelOptions) -> Offer | Decline:
        """Take or decline what may become a stage, before there is a task: writes no IR, and takes about a millisecond.

        Who is asked first is the registry's order. An engine that does only tasks which passes make for it declines all.
        """
        return Decline(self.name, "no stage asks for it")

    def step(self, op: ir.Operation) -> Steps | None:
        """How an op goes that blocks do together in steps. None where it does no such op."""
        return None

    def adds_rows(self, space: Space, kind: str, dtype: str, columns: int) -> bool:
        """Whether its tasks of a stage put rows of what they make into another tensor at indices, instead of storing them.

        Args:
            space: of the stage.
            kind: what becomes of two values that meet (`dialects/scatter_kinds.py`).
            dtype, columns: of a row.
        """
        return False

    def plan(self, task: TaskView, options: KernelOptions) -> Plan | Decline:
        """Decide whether and how to do `task`. Must not change the IR. By default `make_plan`, whose failure declines."""
        try:
            return self.make_plan(task, options)
        except MatchFailure as reason:
            return Decline(self.name, str(reason))

    def make_plan(self, task: TaskView, options: KernelOptions) -> Plan:
        """The plan of `task`.

        Raises:
            MatchFailure: the engine does not do it.
        """
        raise NotImplementedError(f"{type(self).__name__}.make_plan")

    def emit_tile(self, plan: Plan, tile: TileContext) -> None:
        """Emit the whole of one tile: waits, loads, work, stores, posts. All threads of the block run it."""
        raise NotImplementedError(f"{type(self).__name__}.emit_tile")

    def emit(self, plan: Plan, task: TaskContext) -> None:
        """Emit all tiles that a block has of the task: a loop around `emit_tile`, unless overridden.

        At the end all threads must have met in a block barrier after their last use of shared memory (`tile.finish` does it).
        """

        def body(tile: TileContext) -> None:
            self.emit_tile(plan, tile)

        task.for_each_tile(body)

    def join(self, plans: Sequence[Plan], options: KernelOptions) -> Sequence[Plan] | None:
        """New plans for successive tasks that the engine emits together (`emit_fused`); None if it does not.

        They have the same barriers, which are initialised before the first of the tasks only.
        """
        return None

    def emit_fused(self, plans: Sequence[Plan], tasks: Sequence[TaskContext]) -> None:
        """Emit all tiles that a block has of successive tasks, those of the first task first; otherwise as `emit`."""
        raise NotImplementedError(f"{type(self).__name__}.emit_fused")

    def prefetch(self, plan: Plan, task: TaskContext, thread: Value, threads: int, soon: bool = True) -> None:
        """Emit what brings the beginning of the block's first tile to L2, as far as nobody writes it: weights, cached keys.

        `threads` threads, of which this is number `thread`, run it while tasks before this one are still at work. It waits for
        nothing and touches no shared memory. `soon`: the block goes on to the task at once, and waits for no kernel before.
        """
