"""The ring of stages of a product: operands in shared memory, read by both consumer warpgroups.

Chunks of the sum go round the stages, over all tiles that a block has of the task: whoever fills the ring runs ahead into the
next tile while the last one is stored. While a chunk is multiplied, the one before is given back; where an operand's sum is a
second product and steps that read matrices follow (an optimizer's update), a chunk is finished first: with both products in
flight where the loop ends, ptxas takes 20 to 36 s for such a kernel, else 2 to 4 s.
"""

from __future__ import annotations

from collections.abc import Callable

from kitsune_mlir.codegen.gpu.contraction.split_k import BARRIER
from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_
from kitsune_mlir.codegen.gpu.emit.memory import offset, store
from kitsune_mlir.codegen.gpu.emit.value import Value, constant, i32, select, vector
from kitsune_mlir.codegen.gpu.engines.mma.plan import EXACT_PRODUCTS, ONES, MmaPlan
from kitsune_mlir.codegen.gpu.interface.context import TaskContext
from kitsune_mlir.codegen.gpu.sm90 import wgmma
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Barrier, NamedBarrier, Ring, Slot, fence_async_shared
from kitsune_mlir.codegen.gpu.sm90.warp_specialize import WARPGROUP_THREADS
from kitsune_mlir.machine.shared_tile import SharedTile

__all__ = ["Stages"]

EXACT_CHUNKS = 2
"""Chunks of f32 (64 terms) that tensor cores add up before the threads do. 256 x 1152 by 1152 x 128 has an error of 3.6e-7, an
exact product of cuBLAS 6.1e-7; with four chunks it is 7.8e-7 and as fast (H200)."""


class Stages:
    """The ring of a task, while its code is emitted."""

    def __init__(self, plan: MmaPlan, task: TaskContext):
        self.plan, self.task = plan, task
        self.ring = Ring(task.barrier_base, plan.stages)

    def pointer(self, stage: Value) -> Value:
        """Where a stage starts in shared memory: A, then B (then, of f32 operands, the rests of both)."""
        return offset(self.task.shared, stage * self.plan.stage_bytes)

    def small_parts(self, stage: Value) -> Barrier:
        """Tells that both halves of the stage's f32 operands are there."""
        return Barrier(offset(self.task.barrier_base, (stage + 2 * self.plan.stages) * Barrier.BYTES))

    def product(self, group: Value, slot: Slot, chunks: Value | int, meanwhile: Callable[[], None]) -> tuple[list[Value], Slot]:
        """A consumer's part of a tile: its accumulators after `chunks` chunks, and where it is in the ring afterwards.

        `meanwhile` emits loads that should be there when the last chunk is multiplied; they may be of what the task waited for.
        """
        if self.plan.exact:
            return self._exact_product(group, slot, chunks)
        accumulators, slot = self._started(group, slot, chunks, meanwhile)
        accumulators = wgmma.wait(0, accumulators)
        self._release(slot)
        return accumulators, self.ring.next(slot)

    def _exact_product(self, group: Value, slot: Slot, chunks: Value | int) -> tuple[list[Value], Slot]:
        """The same for f32: tensor cores cut sums off, so that errors add up, and long sums are added by the threads."""

        def part(first: Value, stage: Value, parity: Value, *sums: Value) -> list[Value]:
            left = chunks - first
            count = select(left < EXACT_CHUNKS, left, EXACT_CHUNKS)
            accumulators, last = self._started(group, Slot(stage, parity), count)
            accumulators = wgmma.wait(0, accumulators)
            self._release(last)
            return [*self.ring.next(last).values, *(sum + part for sum, part in zip(sums, accumulators, strict=True))]

        zeros = [constant(0.0, "f32")] * (self.plan.geometry.n // 2)
        stage, parity, *sums = for_(0, chunks, EXACT_CHUNKS, part, [*slot.values, *zeros])
        return sums, Slot(stage, parity)

    def _started(
        self, group: Value, slot: Slot, chunks: Value | int, meanwhile: Callable[[], None] = lambda: None
    ) -> tuple[list[Value], Slot]:
        """Accumulators of `chunks` chunks, the last of them in flight, and its slot; `meanwhile` follows the first."""
        accumulators = self._multiply(None, group, slot)
        meanwhile()
        summed = self.plan.pattern.operand_sum is not None
        groups = EXACT_PRODUCTS if self.plan.exact else 1 + summed  # of instructions a chunk
        if summed and self.plan.pattern.reads_matrices:
            groups = 0  # for ptxas: see this module's docstring

        def step(_: Value, stage: Value, parity: Value, *carried: Value) -> list[Value]:
            before = Slot(stage, parity)
            now = self.ring.next(before)
            started = self._multiply(list(carried), group, now)
            wgmma.wait(groups, [])
            self._release(before)
            return [*now.values, *started]

        if not isinstance(chunks, int) or chunks > 1:
            stage, parity, *accumulators = for_(1, chunks, 1, step, [*slot.values, *accumulators])
            slot = Slot(stage, parity)
        return accumulators, slot

    def _multiply(self, accumulators: list[Value] | None, group: Value, slot: Slot) -> list[Value]:
        plan = self.plan
        barrier = self.small_parts(slot.stage) if plan.exact else self.ring.full(slot.stage)
        barrier.wait(slot.parity)
        if plan.boxes is None or plan.mixed:
            fence_async_shared()  # threads wrote what the tensor cores read
        stage = self.pointer(slot.stage)
        a, b = _operands(plan, stage, group)
        pairs = [(a, b)]
        if plan.exact:
            a_rest, b_rest = _operands(plan, offset(stage, plan.operand_bytes), group)
            pairs = [(a_rest, b), (a, b_rest), *pairs]  # small sums are cut off at lower bits
        count = plan.geometry.n // 2
        sums = accumulators[count:] if accumulators is not None else None
        accumulators = accumulators[:count] if accumulators is not None else None
        for left, right in pairs:
            accumulators = wgmma.multiply(accumulators, left, right, plan.geometry.n, plan.kind, plan.sum.steps)
        assert accumulators is not None
        if plan.pattern.operand_sum is None:
            return accumulators
        ones = wgmma.SharedOperand(ONES, self._ones(group))
        return [*accumulators, *wgmma.multiply(sums, a, ones, ONES.rows, plan.kind, plan.sum.steps)]

    def _ones(self, group: Value) -> Value:
        return offset(self.task.shared, group * ONES.bytes + self.plan.ones)

    def prepare(self, group: Value) -> None:
        """Write the ones of a warpgroup, where an operand's sum is wanted, before its first chunk."""
        if self.plan.pattern.operand_sum is None:
            return
        one = {"bf16": 0x3F803F80, "f16": 0x3C003C00}[self.plan.kind]
        each = ONES.bytes // WARPGROUP_THREADS
        start = offset(self._ones(group), self.task.thread % WARPGROUP_THREADS * each)
        store(vector([i32(one)] * (each // 4)), start)
        fence_async_shared()
        NamedBarrier(group + BARRIER, WARPGROUP_THREADS).sync()

    def _release(self, slot: Slot) -> None:
        """The warpgroup has read the stage. One thread speaks for it: `wgmma.wait` is for the instruction as a whole."""
        empty, local = self.ring.empty(slot.stage), self.task.thread % WARPGROUP_THREADS
        if self.plan.multicast is None:
            if_(local == 0, empty.arrive)
        else:  # other blocks load into it, too
            if_(local < self.plan.multicast.blocks, lambda: empty.arrive_at(local))


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
