"""The `conv` engine: convolutions with channels innermost as implicit products on tensor cores.

Rows of the product are the weight's output channels, columns are pixels (`conv.tiles` says how a tile lies in shared memory).
One block has a multiprocessor to itself: two threads of a warpgroup load image and weight (`conv.mainloop`), two warpgroups
multiply and store (`conv.epilogue`). f32 factors are multiplied in TF32 where the framework allows that, else as sums of two
tf32 numbers, whose rests two more warps compute (`contraction.tf32x3`). Padding costs nothing: TMA gives zeros outside of the
image.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from kitsune_mlir.codegen.gpu.contraction.split_k import Pieces
from kitsune_mlir.codegen.gpu.emit.control_flow import if_, warp_id
from kitsune_mlir.codegen.gpu.emit.value import Value
from kitsune_mlir.codegen.gpu.engines.conv import stage_tiles
from kitsune_mlir.codegen.gpu.engines.conv.epilogue import Epilogue
from kitsune_mlir.codegen.gpu.engines.conv.mainloop import Stages
from kitsune_mlir.codegen.gpu.engines.conv.plan import HALVERS, ConvPlan, make_plan
from kitsune_mlir.codegen.gpu.interface.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.interface.engine import Engine
from kitsune_mlir.codegen.gpu.interface.offer import Candidate, Offer
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions, Plan
from kitsune_mlir.codegen.gpu.interface.traits import Traits
from kitsune_mlir.codegen.gpu.sm90.mbarrier import NamedBarrier, fence_async_shared
from kitsune_mlir.codegen.gpu.sm90.warp_specialize import specialize
from kitsune_mlir.dialects.tile_records import TaskView
from kitsune_mlir.machine.rates import ENGINES
from kitsune_mlir.machine.target import Target

__all__ = ["ConvEngine"]

PRODUCER_REGISTERS = 40
HALVING_REGISTERS = 56
STORED = 1  # the named barrier of the warpgroups that store


class ConvEngine(Engine):
    """See the module's docstring."""

    name: ClassVar[str] = "conv"
    traits: ClassVar[Traits] = Traits(ENGINES["conv"], loads_ahead=True, spreads_sums=True, f32_products=3, windows=True)

    def offer(self, candidate: Candidate, machine: Target, options: KernelOptions) -> Offer | Decline:
        return stage_tiles.offer(self.name, candidate, machine)

    def make_plan(self, task: TaskView, options: KernelOptions) -> Plan:
        return make_plan(self.name, task, options)

    def emit(self, plan: Plan, task: TaskContext) -> None:
        conv: ConvPlan = plan.private
        stages = Stages(conv, task)
        # The engine before may have used the same shared memory through the other proxy.
        fence_async_shared()
        task.sync()

        def produce() -> None:
            images, weights = stages.images.producer_start().values, stages.weights.producer_start().values
            if_(task.thread == 0, lambda: _each_piece(task, stages.load_images, images))
            if_(task.thread == 32, lambda: _each_piece(task, stages.load_weights, weights))
            if conv.exact:
                halving = warp_id(task.thread) >= (128 - HALVERS) // 32
                if_(halving, lambda: _each_piece(task, stages.halve, stages.start()))

        registers = HALVING_REGISTERS if conv.exact else PRODUCER_REGISTERS
        specialize(task, produce, lambda group: _consume(conv, task, stages, group), registers)


def _consume(conv: ConvPlan, task: TaskContext, stages: Stages, group: Value) -> None:
    """All pieces of the block, by one of the two consumers."""
    pieces = Pieces(conv, task)

    def work(tile: TileContext, piece: Value, *state: Value) -> list[Value]:
        accumulators, after = stages.product(group, piece, list(state))

        def finish() -> None:
            total = accumulators if conv.split is None else pieces.collect(tile, piece, group, accumulators)
            Epilogue(conv, tile, group, total).store()
            tile.post_after(NamedBarrier(STORED, 256).sync, leader=128)

        if conv.split is None:
            finish()
        else:
            if_(pieces.finishes(piece), finish, lambda: pieces.hand_over(tile, piece, group, accumulators))
        return after

    _each_piece(task, work, stages.start())


def _each_piece(task: TaskContext, work: Callable[..., list[Value]], start: list[Value]) -> None:
    """A loop over the block's pieces; `work` gets the tile, the piece and a state, and gives the next state."""

    def body(tile: TileContext, piece: Value, *state: Value) -> list[Value]:
        tile.resolve()
        return work(tile, piece, *state)

    task.for_each_piece(body, start)
