"""The ring of stages of a product: operands in shared memory, read by both consumer warpgroups.

Chunks of the sum go round the stages, over all tiles that a block has of the task: whoever fills the ring runs ahead into the
next tile while the last one is stored.
"""

from __future__ import annotations

from kitsune_mlir.codegen.gpu import wgmma
from kitsune_mlir.codegen.gpu.barriers import Ring, Slot, fence_async_shared
from kitsune_mlir.codegen.gpu.builder import for_, if_
from kitsune_mlir.codegen.gpu.context import TaskContext
from kitsune_mlir.codegen.gpu.memory import offset
from kitsune_mlir.codegen.gpu.mma_plan import MmaPlan
from kitsune_mlir.codegen.gpu.value import Value
from kitsune_mlir.shared_tile import SharedTile

__all__ = ["Stages"]


class Stages:
    """The ring of a task, while its code is emitted."""

    def __init__(self, plan: MmaPlan, task: TaskContext):
        self.plan, self.task = plan, task
        self.ring = Ring(task.barrier_base, plan.stages)

    def pointer(self, stage: Value) -> Value:
        """Where a stage starts in shared memory: A, then B."""
        return offset(self.task.shared, stage * self.plan.stage_bytes)

    def product(self, group: Value, slot: Slot, chunks: Value | int) -> tuple[list[Value], Slot]:
        """A consumer's part of a tile: its accumulators after `chunks` chunks, and where it is in the ring afterwards."""
        accumulators = self._multiply(None, group, slot)

        def step(_: Value, stage: Value, parity: Value, *carried: Value) -> list[Value]:
            before = Slot(stage, parity)
            now = self.ring.next(before)
            started = self._multiply(list(carried), group, now)
            wgmma.wait(1, [])
            self._release(before)
            return [*now.values, *started]

        if not isinstance(chunks, int) or chunks > 1:
            stage, parity, *accumulators = for_(1, chunks, 1, step, [*slot.values, *accumulators])
            slot = Slot(stage, parity)
        accumulators = wgmma.wait(0, accumulators)
        self._release(slot)
        return accumulators, self.ring.next(slot)

    def _multiply(self, accumulators: list[Value] | None, group: Value, slot: Slot) -> list[Value]:
        plan = self.plan
        self.ring.full(slot.stage).wait(slot.parity)
        if plan.boxes is None:
            fence_async_shared()  # threads wrote what the tensor cores read
        a, b = _operands(plan, self.pointer(slot.stage), group)
        return wgmma.multiply(accumulators, a, b, plan.geometry.n, plan.pattern.product.dtype, plan.sum.steps)

    def _release(self, slot: Slot) -> None:
        """The warpgroup has read the stage. One thread speaks for it: `wgmma.wait` is for the instruction as a whole."""
        if_(self.task.thread % 128 == 0, self.ring.empty(slot.stage).arrive)


def _operands(plan: MmaPlan, stage: Value, group: Value) -> tuple[wgmma.SharedOperand, wgmma.SharedOperand]:
    """A and B of a warpgroup in the stage that starts at `stage`."""
    geometry = plan.geometry
    row = group * 64 if geometry.by_rows else 0
    col = group * geometry.part if geometry.part else 0
    return (
        _operand(plan.a_tile, stage, row, plan.a.transposed),
        _operand(plan.b_tile, offset(stage, plan.a_tile.bytes), col, plan.b.transposed),
    )


def _operand(tile: SharedTile, pointer: Value, start: Value | int, transposed: bool) -> wgmma.SharedOperand:
    if not transposed:
        return wgmma.SharedOperand(tile, pointer, row=start)
    # A warpgroup's rows or columns start with a panel of 64.
    if isinstance(start, Value):
        pointer = offset(pointer, start * (tile.panel_bytes // 64))
    return wgmma.SharedOperand(tile, pointer, transposed=True)
