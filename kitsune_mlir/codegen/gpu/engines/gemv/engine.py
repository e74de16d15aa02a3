"""The `gemv` engine: products with few rows (up to 64), which are as fast as their weights come from memory.

Two warps load (`gemv.producer`): one every weight once, through a ring in shared memory that is deep enough to keep DRAM busy,
by bulk copies that wait for nothing else; another the activations, after the task's waits. Eight warps multiply
(`gemv.multiply`), 16-bit floats on tensor cores with the weights as the operand of 16 rows, f32 with fused multiply-adds. What
they have at the end of a pass is added up in shared memory and runs through the task's element-wise steps (`gemv.epilogue`).
Several products of one input, such as SwiGLU's gate and up, share a stage and a pass. Successive tasks share the ring: the warp
that loads weights goes on to the next task's while the others still multiply. The order of every sum is fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_, lane_id, warp_id
from kitsune_mlir.codegen.gpu.emit.value import Value, i32
from kitsune_mlir.codegen.gpu.engines.gemv import tiles
from kitsune_mlir.codegen.gpu.engines.gemv.epilogue import MULTIPLIERS, read_ahead, store_pass
from kitsune_mlir.codegen.gpu.engines.gemv.l2_prefetch import fetch_ahead
from kitsune_mlir.codegen.gpu.engines.gemv.multiply import multiplier
from kitsune_mlir.codegen.gpu.engines.gemv.plan import CONSUMERS, make_plan, share_ring
from kitsune_mlir.codegen.gpu.engines.gemv.producer import ActivationStream, Stages, WeightStream, number_waits
from kitsune_mlir.codegen.gpu.interface.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.interface.engine import Engine
from kitsune_mlir.codegen.gpu.interface.offer import Candidate, Offer
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions, Plan
from kitsune_mlir.codegen.gpu.interface.traits import Traits
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Slot
from kitsune_mlir.dialects.tile_records import TaskView
from kitsune_mlir.machine.rates import ENGINES
from kitsune_mlir.machine.target import Target

__all__ = ["GemvEngine"]


class GemvEngine(Engine):
    """See the module's docstring."""

    name: ClassVar[str] = "gemv"
    traits: ClassVar[Traits] = Traits(
        ENGINES["gemv"], asked_next=("mma",), loads_ahead=True, weights_ahead="always", ends_early=True
    )
    prefetches: ClassVar[bool] = True

    def offer(self, candidate: Candidate, machine: Target, options: KernelOptions) -> Offer | Decline:
        return tiles.offer(self.name, candidate, machine)

    def make_plan(self, task: TaskView, options: KernelOptions) -> Plan:
        return make_plan(self.name, task, options)

    def join(self, plans: Sequence[Plan], options: KernelOptions) -> Sequence[Plan] | None:
        return share_ring(plans, options)

    def emit(self, plan: Plan, task: TaskContext) -> None:
        self.emit_fused([plan], [task])

    def emit_fused(self, plans: Sequence[Plan], tasks: Sequence[TaskContext]) -> None:
        every = [Stages(plan.private, task) for plan, task in zip(plans, tasks, strict=True)]
        warp = warp_id(tasks[0].thread)

        def load_weights() -> None:
            slot = every[0].ring.producer_start()
            for stages in every:
                slot = WeightStream(stages).run(slot)
            tasks[-1].ahead(lane_id(tasks[0].thread), 32)

        def load_activations() -> None:
            slot, seen = every[0].ring.producer_start(), i32(0)
            for stages, waits in zip(every, number_waits(tasks), strict=True):
                slot, seen = ActivationStream(stages, waits).run(slot, seen)

        def load() -> None:
            if_(warp == CONSUMERS, load_weights, lambda: if_(warp == CONSUMERS + 1, load_activations))

        def multiply() -> None:
            slot = every[0].ring.consumer_start()
            for stages in every:
                slot = _multiply(stages, slot)

        if_(warp < CONSUMERS, multiply, load)
        tasks[0].sync()

    def prefetch(self, plan: Plan, task: TaskContext, thread: Value, threads: int, soon: bool = True) -> None:
        if not soon:
            fetch_ahead(plan.private, task, thread, threads)


def _multiply(stages: Stages, slot: Slot) -> Slot:
    """All tiles of a block, in the warps that multiply. They wait for stages only, which come after the task's waits."""
    geometry = stages.plan.geometry

    def tile(tile: TileContext, *carried: Value) -> list[Value]:
        tile.resolve()

        def one(number: Value, *carried: Value) -> list[Value]:
            work = multiplier(stages)
            ahead = read_ahead(stages, tile, number)
            slot, sums = work.run(Slot(*carried))
            for row in range(0, geometry.rows, geometry.sum_rows):
                MULTIPLIERS.sync()  # the sums before have been read
                work.publish(sums, row)
                MULTIPLIERS.sync()
                store_pass(stages, tile, number, row, ahead)
            return slot.values

        values = for_(0, geometry.passes, 1, one, carried)
        tile.post_after(MULTIPLIERS.sync, leader=0)
        return values

    return Slot(*stages.task.for_each_tile(tile, slot.values))
