"""The `chain` engine: whole chains of row-local layers in one task, on tensor cores, with nothing between them in memory.

One warpgroup moves weights and rows into shared memory (`chain.resident.producer`), two multiply and do everything else in
registers (`chain.resident.consumer`, `chain.core.evaluate`); each has rows of its own, so they never exchange data. What a
layer leaves in the accumulators is, rounded and packed, the next layer's factor.
"""

from __future__ import annotations

from typing import ClassVar

from kitsune_mlir.codegen.gpu.emit.control_flow import if_
from kitsune_mlir.codegen.gpu.engines.chain import layers
from kitsune_mlir.codegen.gpu.engines.chain.core.records import ChainPlan
from kitsune_mlir.codegen.gpu.engines.chain.resident.consumer import Consumer
from kitsune_mlir.codegen.gpu.engines.chain.resident.plan import make_plan
from kitsune_mlir.codegen.gpu.engines.chain.resident.producer import Producer
from kitsune_mlir.codegen.gpu.engines.chain.wide.consumer import Consumer as WideConsumer
from kitsune_mlir.codegen.gpu.engines.chain.wide.plan import WidePlan, make_wide_plan
from kitsune_mlir.codegen.gpu.engines.chain.wide.producer import Producer as WideProducer
from kitsune_mlir.codegen.gpu.interface.context import TaskContext
from kitsune_mlir.codegen.gpu.interface.engine import Engine
from kitsune_mlir.codegen.gpu.interface.offer import Candidate, Offer
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions, Plan
from kitsune_mlir.codegen.gpu.interface.traits import Traits
from kitsune_mlir.codegen.gpu.sm90 import warp_specialize as roles
from kitsune_mlir.codegen.gpu.sm90.mbarrier import fence_async_shared
from kitsune_mlir.dialects.iteration import Space
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.dialects.scatter_kinds import ADDITIONS
from kitsune_mlir.dialects.tile_records import TaskView
from kitsune_mlir.machine.rates import ENGINES
from kitsune_mlir.machine.target import Target

__all__ = ["ChainEngine"]

COPY_REGISTERS = 56
"""Registers of a moving warpgroup whose threads copy. The rest is the computing warpgroups'."""


class ChainEngine(Engine):
    """See the module's docstring."""

    name: ClassVar[str] = "chain"
    traits: ClassVar[Traits] = Traits(
        ENGINES["chain"], keeps_order=True, several_products=True, beside_columns=256, ends_early=True
    )

    def offer(self, candidate: Candidate, machine: Target, options: KernelOptions) -> Offer | Decline:
        return layers.offer(self.name, candidate, machine)

    def adds_rows(self, space: Space, kind: str, dtype: str, columns: int) -> bool:
        return kind in ADDITIONS

    def make_plan(self, task: TaskView, options: KernelOptions) -> Plan:
        try:
            return make_plan(self.name, task, options)
        except MatchFailure as reason:
            try:
                return make_wide_plan(self.name, task, options)
            except MatchFailure as other:
                raise MatchFailure(f"{reason}; for wide layers: {other}") from other

    def emit(self, plan: Plan, task: TaskContext) -> None:
        # The engine before may have used the same shared memory through the other proxy.
        fence_async_shared()
        task.sync()
        if isinstance(plan.private, WidePlan):
            wide = plan.private
            roles.specialize(task, WideProducer(wide, task).run, lambda group: WideConsumer(wide, task, group).run())
            return
        chain: ChainPlan = plan.private
        copies = any(not slot.source.maps for slot in chain.slots)
        registers = COPY_REGISTERS if copies else roles.PRODUCER_REGISTERS

        def work() -> None:
            roles.specialize(task, Producer(chain, task).run, lambda group: Consumer(chain, task, group).run(), registers)

        if_(task.first < task.tiles, work)  # who has no tile needs no weights either
