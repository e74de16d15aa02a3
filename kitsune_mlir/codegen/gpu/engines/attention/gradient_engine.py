"""The `attention_gradient` engine: gradients of attention's operands, without ever storing anything of the scores' size.

Two kinds of stages, in one form (`dialects.attention_gradient`): of queries, which stream keys and values, and of keys and
values, which stream queries and what comes back. Nothing is added by atomics, so results are the same bits on every run; the
price is that scores are made again twice. Roles and ring are those of `attention` (`attention.engine`).
"""

from __future__ import annotations

from typing import ClassVar

from kitsune_mlir.codegen.gpu.emit.control_flow import if_, warp_id
from kitsune_mlir.codegen.gpu.engines.attention import tiles
from kitsune_mlir.codegen.gpu.engines.attention.gradient_consumer import consume_gradient_tiles
from kitsune_mlir.codegen.gpu.engines.attention.gradient_plan import GradientPlan, make_gradient_plan
from kitsune_mlir.codegen.gpu.engines.attention.gradient_producer import load_gradient_tiles, store_gradients
from kitsune_mlir.codegen.gpu.engines.attention.kv_schedule import KvSchedule
from kitsune_mlir.codegen.gpu.engines.attention.producer import PipelineState
from kitsune_mlir.codegen.gpu.interface.context import TaskContext
from kitsune_mlir.codegen.gpu.interface.engine import Engine
from kitsune_mlir.codegen.gpu.interface.offer import Candidate, Offer
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions, Plan
from kitsune_mlir.codegen.gpu.interface.traits import Traits
from kitsune_mlir.codegen.gpu.sm90 import warp_specialize as roles
from kitsune_mlir.codegen.gpu.sm90.mbarrier import fence_async_shared
from kitsune_mlir.dialects.tile_records import TaskView
from kitsune_mlir.machine.rates import ENGINES
from kitsune_mlir.machine.target import Target

__all__ = ["AttentionGradientEngine"]


class AttentionGradientEngine(Engine):
    """See the module's docstring."""

    name: ClassVar[str] = "attention_gradient"
    traits: ClassVar[Traits] = Traits(ENGINES["attention"], ends_early=True)

    def offer(self, candidate: Candidate, machine: Target, options: KernelOptions) -> Offer | Decline:
        tile = tiles.gradient_tile(candidate.space)
        if tile is None:
            return Decline(self.name, "it is no gradient of attention that 'kitsune-fuse-attention' has found")
        return Offer(self.name, tuple(tile))

    def make_plan(self, task: TaskView, options: KernelOptions) -> Plan:
        return make_gradient_plan(self.name, task, options)

    def emit(self, plan: Plan, task: TaskContext) -> None:
        gradient: GradientPlan = plan.private
        # The engine before may have used the same shared memory through the other proxy.
        fence_async_shared()
        task.sync()
        pipeline = PipelineState(gradient, task, KvSchedule(task, gradient.costs(task.view), gradient.workers))

        def produce() -> None:
            if_(warp_id(task.thread) == 0, lambda: load_gradient_tiles(pipeline))
            if_(task.thread == 32, lambda: store_gradients(pipeline))

        roles.specialize(task, produce, lambda group: consume_gradient_tiles(pipeline, group), producer_registers=40)
