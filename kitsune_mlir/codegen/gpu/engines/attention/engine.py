"""The `attention` engine: softmax(scale * q k^T, masked) v for a tile of query rows, without ever storing scores.

A block of 384 threads has a multiprocessor to itself. One warpgroup moves data (`attention.producer`): q, and blocks of keys
and values through a ring. Two compute (`attention.consumer`), with the softmax of `attention.online_softmax`; tiles of few rows
by warps with keys of their own (`attention.decode`). Keys that no row attends to under a causal mask are not read, and the
tiles with most keys come first (`attention.kv_schedule`).
"""

from __future__ import annotations

from typing import ClassVar

from kitsune_mlir.codegen.gpu.emit.control_flow import if_, warp_id
from kitsune_mlir.codegen.gpu.emit.value import Value
from kitsune_mlir.codegen.gpu.engines.attention import tiles
from kitsune_mlir.codegen.gpu.engines.attention.consumer import consume_tiles
from kitsune_mlir.codegen.gpu.engines.attention.decode import consume_few
from kitsune_mlir.codegen.gpu.engines.attention.kv_schedule import KvSchedule, tile_costs
from kitsune_mlir.codegen.gpu.engines.attention.plan import AttentionPlan, make_plan
from kitsune_mlir.codegen.gpu.engines.attention.producer import PipelineState, ask_for_cached, load_tiles, store_tiles
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

__all__ = ["AttentionEngine"]


class AttentionEngine(Engine):
    """See the module's docstring."""

    name: ClassVar[str] = "attention"
    traits: ClassVar[Traits] = Traits(ENGINES["attention"], ends_early=True)
    prefetches: ClassVar[bool] = True

    def offer(self, candidate: Candidate, machine: Target, options: KernelOptions) -> Offer | Decline:
        return tiles.offer(self.name, candidate, machine)

    def make_plan(self, task: TaskView, options: KernelOptions) -> Plan:
        return make_plan(self.name, task, options)

    def prefetch(self, plan: Plan, task: TaskContext, thread: Value, threads: int, soon: bool = True) -> None:
        if_(thread.below(32), lambda: ask_for_cached(plan.private, task, thread))

    def emit(self, plan: Plan, task: TaskContext) -> None:
        attention: AttentionPlan = plan.private
        # The engine before may have used the same shared memory through the other proxy.
        fence_async_shared()
        task.sync()
        pipeline = PipelineState(attention, task, KvSchedule(task, tile_costs(attention, task.view), attention.workers))

        def produce() -> None:
            warp = warp_id(task.thread)
            if_(warp == 0, lambda: load_tiles(pipeline, 0))
            if_(task.thread == 32, lambda: store_tiles(pipeline))
            if attention.split:
                if_(warp == 2, lambda: load_tiles(pipeline, 1))

        consume = consume_few if attention.few else consume_tiles
        roles.specialize(task, produce, lambda group: consume(pipeline, group), producer_registers=40)
