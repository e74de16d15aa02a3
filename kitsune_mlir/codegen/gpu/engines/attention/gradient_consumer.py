"""What a consumer warpgroup does for gradients: scores and their gradient made again on the tensor cores, and sums of both.

A block's scores and the gradients of its probabilities are two products, resident rows times streamed ones, in registers.
Weights are powers of 2, as the rows' logarithms are known: no maximum is looked for. What becomes of them is the first factor
of the sums' products as it is (`sm90.wgmma`), the second are the streamed rows where they lie. While one warpgroup has only
arithmetic, the other one multiplies.
"""

from __future__ import annotations

from kitsune_mlir.codegen.gpu.emit.approx_math import LOG2_E, exp2
from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_, sync_warp
from kitsune_mlir.codegen.gpu.emit.convert import pack_values
from kitsune_mlir.codegen.gpu.emit.inline_ptx import fresh
from kitsune_mlir.codegen.gpu.emit.memory import load, offset
from kitsune_mlir.codegen.gpu.emit.value import Value, cast, f32, fma, i32, minimum, select, unpack
from kitsune_mlir.codegen.gpu.engines.attention.consumer import stage_rows
from kitsune_mlir.codegen.gpu.engines.attention.gradient_blocks import blocks_of, bound_of
from kitsune_mlir.codegen.gpu.engines.attention.gradient_plan import GradientPlan
from kitsune_mlir.codegen.gpu.engines.attention.gradient_producer import numbers_of, row_numbers
from kitsune_mlir.codegen.gpu.engines.attention.masks import Masks
from kitsune_mlir.codegen.gpu.engines.attention.plan import GROUP_ROWS
from kitsune_mlir.codegen.gpu.engines.attention.producer import PipelineState
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.codegen.gpu.sm90 import wgmma
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Slot, fence_async_shared

__all__ = ["consume_gradient_tiles"]


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
        rows = [[minimum(self.row + 8 * half, self.pattern.row_count - 1)] for half in range(2)]
        self.masks = Masks(self.pattern.sides, self.pattern.loads, tile, rows)
        self.bounds = [bound_of(self.plan, self.row + 8 * half, tile) for half in range(2)]

    def run(self, slot: Slot) -> Slot:
        """One tile; the ring's next slot."""
        plan, pattern = self.plan, self.pattern
        self.pipeline.query_full.wait(self.turn)
        self.numbers = [] if plan.keys else [self._row_numbers(half) for half in range(2)]
        last = minimum(self.first + (GROUP_ROWS - 1), pattern.row_count - 1)
        blocks = blocks_of(plan, self.tile, self.first, last)
        counts = [pattern.width // 2, *([pattern.head // 2] if len(pattern.results) > 1 else [])]
        state = [*slot.values, *[f32(0.0)] * sum(counts)]

        def body(masked: bool):
            return lambda index, *values: self._block(index, list(values), counts[0], masked)

        cut = bool(self.gradient.steps) or (not plan.keys and pattern.length % plan.block != 0)
        if plan.keys and cut:
            state = for_(blocks.begin, blocks.whole, 1, body(True), state)
        state = for_(blocks.whole, blocks.whole_end, 1, body(False), state)
        if not plan.keys and cut:
            # Of a last block that is known to be one LLVM would make code that is no loop, for which registers do not suffice.
            end = blocks.end if plan.steps else fresh(blocks.end)
            state = for_(blocks.whole_end, end, 1, body(True), state)
        if_(self.local == 0, self.pipeline.query_empty.arrive)
        self._store(state[2:], counts)
        return Slot(state[0], state[1])

    def _row_numbers(self, half: int) -> tuple[Value, Value]:
        """What the scores of a row of queries start from, and what their gradients do."""
        return row_numbers(self.plan, self.tile, "row0", minimum(self.row + 8 * half, self.pattern.row_count - 1))

    def _block(self, index: Value, values: list[Value], first_count: int, masked: bool) -> list[Value]:
        """Add what a block gives to the sums."""
        plan, pattern, dtype = self.plan, self.pattern, self.gradient.dtype
        slot, first, second = Slot(values[0], values[1]), values[2 : 2 + first_count], values[2 + first_count :]
        self.ring.full(slot.stage).wait(slot.parity)
        base = self.pipeline.slot(0, slot.stage)
        other = offset(base, plan.blocks[0].bytes)
        scored = wgmma.SharedOperand(plan.resident[0], self.pipeline.task.shared, row=self.first)
        beside = offset(self.pipeline.task.shared, plan.resident[0].bytes)
        sloped = wgmma.SharedOperand(plan.resident[1], beside, row=self.first)
        streamed, weighed = wgmma.SharedOperand(plan.blocks[0], base), wgmma.SharedOperand(plan.blocks[1], other)
        # Starting from the rows' numbers takes no registers beside those of the products.
        starts = self._numbers(slot, 0), self._numbers(slot, 1)
        scores = wgmma.multiply(starts[0], scored, streamed, plan.block, dtype, -(-pattern.width // 16))
        slopes = wgmma.multiply(starts[1], sloped, weighed, plan.block, dtype, -(-pattern.head // 16))
        weights = self._weights(wgmma.wait(1, scores), index, masked)
        if second:
            across = wgmma.SharedOperand(plan.blocks[1], other, transposed=True)
            second = wgmma.multiply(second, pack_values(weights, dtype), across, pattern.head, dtype)
        slopes = wgmma.wait(1 if second else 0, slopes)
        changes = [weight * slope for weight, slope in zip(weights, slopes, strict=True)]
        across = wgmma.SharedOperand(plan.blocks[0], base, transposed=True)
        first = wgmma.multiply(first, pack_values(changes, dtype), across, pattern.width, dtype)
        sums = wgmma.wait(0, [*first, *second])
        if plan.keys:
            sync_warp()  # all lanes have read the slot's numbers, and one tells
        if_(self.lane == 0, self.ring.empty(slot.stage).arrive)
        return [*self.ring.next(slot).values, *sums]

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

    def _store(self, sums: list[Value], counts: list[int]) -> None:
        """Leave the results in shared memory for the storing thread, in the places of the resident operands."""
        plan, pipeline = self.plan, self.pipeline
        parts = [sums[: counts[0]], sums[counts[0] :]][: len(counts)]
        parts[0] = [value * self.gradient.factor for value in parts[0]]

        def write(group: int) -> None:
            for number, values in enumerate(parts):
                shared = plan.resident[number]
                place = offset(pipeline.task.shared, number * plan.resident[0].bytes + group * GROUP_ROWS * 128)
                stage_rows(values, self.local, shared, place, self.gradient.dtype)
            fence_async_shared()
            pipeline.result_full[group].arrive()

        if_(self.group == 0, lambda: write(0), lambda: write(1))
