"""What a consumer warpgroup does for gradients: scores and their gradient made again on the tensor cores, and sums of both.

A block's scores and the gradients of its probabilities are two products, resident rows times streamed ones, in registers.
Weights are powers of 2, as the rows' logarithms are known: no maximum is looked for. What becomes of them is the first factor
of the sums' products as it is (`sm90.wgmma`), the second are the streamed rows where they lie. While one warpgroup has only
arithmetic, the other one multiplies.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from kitsune_mlir.codegen.gpu.emit.approx_math import LOG2_E, exp2
from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_
from kitsune_mlir.codegen.gpu.emit.convert import pack_values
from kitsune_mlir.codegen.gpu.emit.inline_ptx import fresh
from kitsune_mlir.codegen.gpu.emit.memory import load, offset
from kitsune_mlir.codegen.gpu.emit.value import Value, cast, f32, fma, i32, maximum, minimum, select, unpack
from kitsune_mlir.codegen.gpu.engines.attention.consumer import stage_rows
from kitsune_mlir.codegen.gpu.engines.attention.gradient_blocks import BlockRange, blocks_of, bound_of
from kitsune_mlir.codegen.gpu.engines.attention.gradient_plan import GradientPlan
from kitsune_mlir.codegen.gpu.engines.attention.gradient_producer import numbers_of, row_numbers
from kitsune_mlir.codegen.gpu.engines.attention.masks import Masks, rows_of_masks
from kitsune_mlir.codegen.gpu.engines.attention.plan import GROUP_ROWS
from kitsune_mlir.codegen.gpu.engines.attention.producer import PipelineState
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.codegen.gpu.sm90 import wgmma
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Slot, fence_async_shared
from kitsune_mlir.codegen.gpu.sm90.warp_specialize import CONSUMERS

__all__ = ["consume_gradient_tiles"]

NARROW_HEAD = 128
"""Up to so many elements all addresses of products' steps have room in registers."""


def consume_gradient_tiles(pipeline: PipelineState, group: Value) -> None:
    """All tiles of a task, by consumer warpgroup `group` (i32, 0 or 1)."""

    def tile(tile: TileContext, piece: Value, stage: Value, parity: Value, turn: Value) -> list[Value]:
        consumer = _Consumer(pipeline, group, pipeline.walk.tile(tile), turn)
        return [*consumer.run(Slot(stage, parity)).values, turn ^ 1]

    pipeline.task.for_each_piece(tile, [*pipeline.ring(0).consumer_start().values, i32(0)])


class _Consumer:
    """One tile by one consumer; `turn` is the parity of the barriers of the resident operands and of the results."""

    def __init__(self, pipeline: PipelineState, group: Value, tile: TileContext, turn: Value):
        self.pipeline, self.group, self.tile, self.turn = pipeline, group, tile, turn
        self.plan: GradientPlan = pipeline.plan
        self.pattern = self.plan.pattern
        self.gradient = self.pattern.gradient
        self.ring = pipeline.ring(0)
        self.local, self.lane = pipeline.task.thread & 127, pipeline.task.thread & 31
        self.first = group * GROUP_ROWS
        self.row = self.first + (self.local // 32 * 16 + self.lane // 4)  # the other one is 8 below
        count, drops = self.pattern.row_count, self.gradient.dropout is not None
        rows = rows_of_masks(self.row, count, CONSUMERS * GROUP_ROWS, drops)
        self.masks = Masks(self.pattern.sides, self.pattern.loads, tile, [[row] for row in rows])
        if self.gradient.dropout is not None:
            self.masks.prepare(self.gradient.dropout.tree)
        self.bounds = [bound_of(self.plan, self.row + 8 * half, tile) for half in range(2)]

    def run(self, slot: Slot) -> Slot:
        """One tile; the ring's next slot."""
        plan, pattern = self.plan, self.pattern
        self.pipeline.query_full.wait(self.turn)
        self.numbers = [] if plan.keys else [self._row_numbers(half) for half in range(2)]
        last = minimum(self.first + (GROUP_ROWS - 1), pattern.row_count - 1)
        blocks = blocks_of(plan, self.tile, self.first, last)
        sums = list(range(len(pattern.results)))
        state = slot.values
        for wanted in [sums] if plan.sweeps == 1 else [[number] for number in sums]:
            counts = [(pattern.width, pattern.head)[number] // 2 for number in wanted]
            state = self._sweep(wanted, counts, blocks, [*state, *[f32(0.0)] * sum(counts)])
            if wanted[-1] == sums[-1]:
                if_(self.local == 0, self.pipeline.query_empty.arrive)
            self._store(wanted, counts, state[2:])
            state = state[:2]
        return Slot(*state)

    def _sweep(self, wanted: Sequence[int], counts: Sequence[int], blocks: BlockRange, state: list[Value]) -> list[Value]:
        """Add up the sums `wanted`, each in so many registers, over all blocks; the ring's next slot and they."""
        plan, pattern = self.plan, self.pattern

        def body(masked: bool):
            def block(index: Value, *values: Value) -> list[Value]:
                ends = itertools.accumulate(counts, initial=2)
                parts = [list(values[end : end + count]) for end, count in zip(ends, counts, strict=False)]
                return self._block(index, Slot(values[0], values[1]), dict(zip(wanted, parts, strict=True)), masked)

            return block

        cut = bool(self.gradient.steps) or (not plan.keys and pattern.length % plan.block != 0)
        if plan.keys and cut:
            state = for_(blocks.begin, blocks.whole, 1, body(True), state)
        state = for_(blocks.whole, blocks.whole_end, 1, body(False), state)
        if not plan.keys and cut:
            # Of a last block that is known to be one LLVM would make code that is no loop, for which registers do not suffice.
            end = blocks.end if plan.steps else fresh(blocks.end)
            state = for_(blocks.whole_end, end, 1, body(True), state)
        return state

    def _row_numbers(self, half: int) -> tuple[Value, Value]:
        """What the scores of a row of queries start from, and what their gradients do."""
        return row_numbers(self.plan, self.tile, "row0", minimum(self.row + 8 * half, self.pattern.row_count - 1))

    def _block(self, index: Value, slot: Slot, sums: dict[int, list[Value]], masked: bool) -> list[Value]:
        """Add what a block gives to the sums, by their numbers: 0 that of the scores' gradients, 1 that of the weights."""
        plan, pattern, dtype = self.plan, self.pattern, self.gradient.dtype
        self.ring.full(slot.stage).wait(slot.parity)
        base = self.pipeline.slot(0, slot.stage)
        other = offset(base, plan.blocks[0].bytes)
        first = self.first
        if max(pattern.width, pattern.head) > NARROW_HEAD:
            # 0 more; without, ptxas keeps in registers, from loop to loop, where each step of the products begins.
            first = first + (fresh(slot.parity) >> 1)
        scored = wgmma.SharedOperand(plan.resident[0], self.pipeline.task.shared, row=first)
        beside = offset(self.pipeline.task.shared, plan.resident_at(1))
        sloped = wgmma.SharedOperand(plan.resident[1], beside, row=first)
        streamed, weighed = wgmma.SharedOperand(plan.blocks[0], base), wgmma.SharedOperand(plan.blocks[1], other)
        # Starting from the rows' numbers takes no registers beside those of the products.
        dropped = self.gradient.dropout is not None
        starts = [self._numbers(slot, number) for number in range(2) if number == 0 or (0 in sums and not dropped)]
        scores = wgmma.multiply(starts[0], scored, streamed, plan.block, dtype, -(-pattern.width // 16))
        slopes: list[Value] = []
        if 0 in sums:
            slopes = wgmma.multiply(None if dropped else starts[1], sloped, weighed, plan.block, dtype, -(-pattern.head // 16))
        weights = self._signed(self._weights(wgmma.wait(len(sums.keys() & {0}), scores), index, masked), index)
        if 1 in sums:
            summed = [maximum(weight, f32(0.0)) for weight in weights] if dropped else weights
            across = wgmma.SharedOperand(plan.blocks[1], other, transposed=True)
            sums[1] = wgmma.multiply(sums[1], pack_values(summed, dtype), across, pattern.head, dtype)
        if 0 in sums:
            changes = self._changes(weights, wgmma.wait(len(sums) - 1, slopes), slot)
            across = wgmma.SharedOperand(plan.blocks[0], base, transposed=True)
            sums[0] = wgmma.multiply(sums[0], pack_values(changes, dtype), across, pattern.width, dtype)
        found = wgmma.wait(0, [value for values in sums.values() for value in values])
        if plan.keys:  # each lane has read numbers in the slot, and tells for itself
            self.ring.empty(slot.stage).arrive()
        else:
            if_(self.lane == 0, self.ring.empty(slot.stage).arrive)
        return [*self.ring.next(slot).values, *found]

    def _signed(self, weights: list[Value], index: Value) -> list[Value]:
        """Probabilities of a block, those that dropout drops negative."""
        dropout, base = self.gradient.dropout, index * self.plan.block + (self.lane & 3) * 2
        if dropout is None:
            return weights
        signed = []
        for register, weight in enumerate(weights):
            place = base + wgmma.register_column(register)
            if self.pattern.length % self.plan.block and self.pattern.loads:
                place = minimum(place, self.pattern.length - 1)
            signed.append(select(self.masks.value(dropout.tree, register // 2 % 2, place), weight, -weight))
        return signed

    def _changes(self, weights: list[Value], slopes: list[Value], slot: Slot) -> list[Value]:
        """Gradients of a block's scores, but for a constant factor."""
        dropout = self.gradient.dropout
        if dropout is None:
            return [weight * slope for weight, slope in zip(weights, slopes, strict=True)]
        changes = []
        for weight, slope, mean in zip(weights, slopes, self._numbers(slot, 1), strict=True):
            kept = weight > 0.0
            changes.append(maximum(weight, -weight) * select(kept, fma(slope, dropout.factor, mean), mean))
        return changes

    def _numbers(self, slot: Slot, which: int) -> list[Value]:
        """What each register of the scores (`which` 0), or of the probabilities' gradients (1), starts from."""
        block = self.plan.block
        if not self.plan.keys:
            return [self.numbers[register // 2 % 2][which] for register in range(block // 2)]
        base = offset(numbers_of(self.pipeline, slot.stage), (self.lane & 3) * 8 + which * block * 4)
        pairs = [unpack(load(offset(base, 32 * group), "vector<2xf32>")) for group in range(block // 8)]
        return [pairs[register // 4][register % 2] for register in range(block // 2)]

    def _weights(self, scores: list[Value], index: Value, masked: bool) -> list[Value]:
        """Probabilities of a block."""
        factor = self.gradient.scale * LOG2_E
        base = index * self.plan.block + (self.lane & 3) * 2
        weights = []
        for register, score in enumerate(scores):
            exponent = score * factor
            if masked:
                exponent = self._masked(exponent, base + wgmma.register_column(register), register // 2 % 2)
            weights.append(exp2(exponent))
        return weights

    def _masked(self, exponent: Value, place: Value, half: int) -> Value:
        """The exponent of a probability, to base 2, with masks and biases applied."""
        inside, there = self._inside(place, half), minimum(place, self.pattern.length - 1)
        for step in self.plan.masks:
            mask = self.masks.value(step.tree, half, there)
            if step.kind == "bias":
                exponent = fma(cast(mask, "f32"), LOG2_E, exponent)
            else:
                inside = mask if inside is None else inside & mask
        return exponent if inside is None else select(inside, exponent, f32(float("-inf")))

    def _inside(self, place: Value, half: int) -> Value | None:
        """Whether a streamed row is there, and one that the masks allow."""
        bound, pattern = self.bounds[half], self.pattern
        if self.plan.keys:
            return None if bound is None else place >= bound
        inside = None if pattern.length % self.plan.block == 0 else place < pattern.length
        if bound is None:
            return inside
        return place <= bound if inside is None else inside & (place <= bound)

    def _store(self, wanted: Sequence[int], counts: Sequence[int], sums: Sequence[Value]) -> None:
        """Leave results in shared memory, in the places of resident operands; after the last tell the storing thread."""
        plan, pipeline = self.plan, self.pipeline
        ends = itertools.accumulate(counts, initial=0)
        parts = {number: sums[end : end + count] for number, end, count in zip(wanted, ends, counts, strict=False)}
        if 0 in parts:
            parts[0] = [value * self.gradient.factor for value in parts[0]]
        if 1 in parts and self.gradient.dropout is not None:
            parts[1] = [value * self.gradient.dropout.factor for value in parts[1]]

        def write(group: int) -> None:
            for number, values in parts.items():
                place = offset(pipeline.task.shared, plan.result_at_of(number) + group * GROUP_ROWS * 128)
                stage_rows(values, self.local, plan.resident[number], place, self.gradient.dtype)
            if len(self.pattern.results) - 1 in parts:
                fence_async_shared()
                pipeline.result_full[group].arrive()

        if_(self.group == 0, lambda: write(0), lambda: write(1))
