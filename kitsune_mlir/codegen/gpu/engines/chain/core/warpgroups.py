"""The warpgroups of a chain's task: one moves weights and rows into shared memory, two multiply and do everything else."""

from __future__ import annotations

from collections.abc import Callable

from kitsune_mlir.codegen.gpu.emit.control_flow import if_, warp_id
from kitsune_mlir.codegen.gpu.emit.memory import offset
from kitsune_mlir.codegen.gpu.emit.value import Value
from kitsune_mlir.codegen.gpu.engines.chain.core.accumulator_init import Starts
from kitsune_mlir.codegen.gpu.engines.chain.core.records import RingPlan
from kitsune_mlir.codegen.gpu.interface.context import TaskContext
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Barrier, NamedBarrier, Ring, Slot, fence_async

__all__ = ["BOTH", "GROUP", "PAIR", "TURN", "Consumer", "Producer"]

GROUP = 128
BOTH = 2 * GROUP
TURN, OWN, PAIR = 2, 4, 6
"""Named barriers: whose turn it is (two), each computing warpgroup's own (two), both computing warpgroups."""


class Producer:
    """The moving warpgroup: one thread streams weights, and for each computing warpgroup a warp brings its rows.

    Args:
        moves_rows: whether it does.
    """

    def __init__(self, plan: RingPlan, task: TaskContext, moves_rows: bool = True):
        self.task, self.groups, self.stage_bytes, self.moves_rows = task, plan.groups, plan.stage_bytes, moves_rows
        self.ring = Ring(task.barrier_base, plan.stages)

    def run(self) -> None:
        """All threads of the warpgroup call it."""
        warp, lane = warp_id(self.task.thread), self.task.thread & 31
        if_((warp == 0) & (lane == 0), self.weights)
        if self.moves_rows:
            if_((warp - 1).below(self.groups), lambda: self.rows(warp - 1, lane))

    def weights(self) -> None:
        """One thread: the weights of all tiles."""
        raise NotImplementedError

    def rows(self, group: Value, lane: Value) -> None:
        """A warp, which also does all waits for other tasks: the rows of a computing warpgroup."""
        raise NotImplementedError

    def stream(self, tile: Callable[[Slot], Slot]) -> None:
        """Emit the loop over tiles; `tile` brings the weights of one, and gets and returns where it is in the ring."""
        self.task.for_each_tile(lambda _, *state: tile(Slot(*state)).values, self.ring.producer_start().values)

    def bring(self, slot: Slot, bytes: int, load: Callable[[Value, Barrier], None]) -> Slot:
        """Fill a stage of the ring when it is empty; the next one.

        Args:
            bytes: that TMA brings.
            load: starts that, given the stage's place and its "full".
        """
        self.ring.empty(slot.stage).wait(slot.parity)
        full = self.ring.full(slot.stage)
        full.arrive_and_expect(bytes)
        load(offset(self.task.shared, slot.stage * self.stage_bytes), full)
        return self.ring.next(slot)


class Consumer:
    """A computing warpgroup.

    Args:
        group: its number, 0 or 1 (i32, the same for the whole warpgroup).
        starts: what its products' sums start from.
    """

    def __init__(self, plan: RingPlan, task: TaskContext, group: Value, starts: Starts):
        self.task, self.group, self.groups, self.starts = task, group, plan.groups, starts
        self.ring = Ring(task.barrier_base, plan.stages)
        self.thread = task.thread & (GROUP - 1)
        self.elected = self.thread == 0
        self.own = NamedBarrier(group + OWN, GROUP)

    def run(self) -> None:
        """All threads of the warpgroup call it."""
        self.prepare()
        if self.groups == 1:
            if_(self.group == 0, self.tiles)
        else:
            self.tiles()

    def prepare(self) -> None:
        """What both warpgroups do once, together, also where only one has rows."""
        raise NotImplementedError

    def tiles(self) -> None:
        """All tiles of the warpgroup."""
        raise NotImplementedError

    def post(self, post: Callable[[], None]) -> None:
        """Let one thread make the task's posts when all computing warpgroups have written everything."""
        if self.task.kernel.fences:
            fence_async()
        NamedBarrier(PAIR, GROUP * self.groups).sync()
        if_(self.elected & (self.group == 0), post)
