"""The multiplying warps of the `gemv` engine: from a stage of the ring to sums in registers, and from these to shared memory.

Tensor cores: the weights are A (16 columns of the product by 16 of the sum), the activations B (8 rows). The order of a sum is
free, so a lane reads 16 bytes, eight neighbours, of a row of either operand, and uses them as the pairs of two
instructions: what the fragments' layout calls columns 2t, 2t+1, 2t+8 and 2t+9 are 8t to 8t+3, then 8t+4 to 8t+7. Every warp has
its own part of each chunk for all columns.

f32: a warp has some columns for the whole sum; its lanes have the sum's parts and are added up at the end.
"""

from __future__ import annotations

from kitsune_mlir.codegen.gpu.barriers import Slot
from kitsune_mlir.codegen.gpu.builder import for_, if_, lane_id, sync_warp, warp_id
from kitsune_mlir.codegen.gpu.gemv_plan import CONSUMERS
from kitsune_mlir.codegen.gpu.gemv_stream import Stages
from kitsune_mlir.codegen.gpu.memory import load, offset, store
from kitsune_mlir.codegen.gpu.mma_sync import multiply_add
from kitsune_mlir.codegen.gpu.reduce import over_lanes
from kitsune_mlir.codegen.gpu.value import Value, constant, fma, minimum, select, unpack

__all__ = ["Multiplier", "multiplier"]


class Multiplier:
    """What both ways of multiplying share: the walk over the stages of a pass.

    Attributes:
        sums: number of registers that hold a pass.
    """

    sums: int

    def __init__(self, stages: Stages):
        self.stages, self.geometry = stages, stages.plan.geometry
        self.lane, self.warp = lane_id(stages.task.thread), warp_id(stages.task.thread)

    def run(self, slot: Slot) -> tuple[Slot, list[Value]]:
        """Multiply the chunks of a pass; the slot after them, and the warp's sums."""
        ring, geometry = self.stages.ring, self.geometry

        def chunk(number: Value, *carried: Value) -> list[Value]:
            slot, sums = Slot(*carried[:2]), list(carried[2:])
            ring.full(slot.stage).wait(slot.parity)
            weights = self.stages.weights(slot)
            if geometry.resident:
                source = offset(self.stages.resident, number * (geometry.chunk * geometry.bytes))
            else:
                source = self.stages.activations(slot)
            left = geometry.depth - number * geometry.chunk if geometry.ragged else None
            sums = self._chunk(sums, weights, source, left)
            sync_warp()
            if_(self.lane == 0, ring.empty(slot.stage).arrive)
            return [*ring.next(slot).values, *sums]

        zeros = [constant(0.0, "f32")] * self.sums
        stage, parity, *sums = for_(0, geometry.chunks, 1, chunk, [*slot.values, *zeros])
        return Slot(stage, parity), sums

    def publish(self, sums: list[Value], first_row: int) -> None:
        """Write the pass's partial sums of rows from `first_row` on, as many as there is room for, to shared memory."""
        raise NotImplementedError

    def _chunk(self, sums: list[Value], weights: Value, source: Value, left: Value | None) -> list[Value]:
        raise NotImplementedError

    @property
    def _source_pitch(self) -> int:
        return self.geometry.row_pitch if self.geometry.resident else self.geometry.pitch

    def _words(self, pointer: Value, inside: Value | None) -> list[Value]:
        """16 bytes as four i32; zeros beyond the end of the sum, where anything may lie."""
        words = unpack(load(pointer, "vector<4xi32>"))
        return words if inside is None else [select(inside, word, 0) for word in words]

    def _place(self, copy: Value | int, row: Value | int, line: Value) -> Value:
        """Pointer to a partial sum."""
        geometry = self.geometry
        element = (copy * geometry.sum_rows + row) * geometry.sum_pitch + line
        return offset(self.stages.sums, element * 4)


class _Tensor(Multiplier):
    def __init__(self, stages: Stages):
        super().__init__(stages)
        self.groups = self.geometry.lines // 16
        self.blocks = -(-self.geometry.rows // 8)
        self.sums = 4 * self.groups * self.blocks
        self.dtype = stages.plan.pattern.product.dtype

    def _chunk(self, sums: list[Value], weights: Value, source: Value, left: Value | None) -> list[Value]:
        geometry = self.geometry
        share = geometry.chunk // CONSUMERS
        line, place = self.lane // 4, self.warp * share + self.lane % 4 * 8
        for step in range(0, share, 32):
            at = place + step
            inside = None if left is None else at < left
            b = []
            for block in range(self.blocks):
                row = line + 8 * block
                if 8 * (block + 1) > geometry.rows:
                    row = minimum(row, geometry.rows - 1)
                b.append(self._words(offset(source, row * self._source_pitch + at * 2), inside))
            for group in range(self.groups):
                low = offset(weights, (line + 16 * group) * geometry.pitch + at * 2)
                a = [self._words(pointer, inside) for pointer in (low, offset(low, 8 * geometry.pitch))]
                for block in range(self.blocks):
                    first = 4 * (group * self.blocks + block)
                    for half in (0, 2):
                        fragment = [a[0][half], a[1][half], a[0][half + 1], a[1][half + 1]]
                        sums[first : first + 4] = multiply_add(
                            sums[first : first + 4], fragment, b[block][half : half + 2], self.dtype
                        )
        return sums

    def publish(self, sums: list[Value], first_row: int) -> None:
        line, row = self.lane // 4, self.lane % 4 * 2
        last = min(self.blocks, (first_row + self.geometry.sum_rows) // 8)
        for group in range(self.groups):
            for block in range(first_row // 8, last):
                first = 4 * (group * self.blocks + block)
                for number, value in enumerate(sums[first : first + 4]):
                    inside = row + (8 * block - first_row) + number % 2
                    store(value, self._place(self.warp, inside, line + (16 * group + 8 * (number // 2))))


class _Fma(Multiplier):
    def __init__(self, stages: Stages):
        super().__init__(stages)
        self.own = self.geometry.lines // CONSUMERS
        self.sums = self.own * self.geometry.rows

    def _chunk(self, sums: list[Value], weights: Value, source: Value, left: Value | None) -> list[Value]:
        geometry = self.geometry
        for step in range(0, geometry.chunk, 128):
            at = self.lane * 4 + step
            inside = None if left is None else at < left
            own = [
                self._numbers(offset(weights, (self.warp + CONSUMERS * index) * geometry.pitch + at * 4), inside)
                for index in range(self.own)
            ]
            for row in range(geometry.rows):
                x = self._numbers(offset(source, at * 4 + row * self._source_pitch), inside)
                for index in range(self.own):
                    for one, other in zip(x, own[index], strict=True):
                        number = index * geometry.rows + row
                        sums[number] = fma(one, other, sums[number])
        return sums

    def _numbers(self, pointer: Value, inside: Value | None) -> list[Value]:
        numbers = unpack(load(pointer, "vector<4xf32>"))
        return numbers if inside is None else [select(inside, number, 0.0) for number in numbers]

    def publish(self, sums: list[Value], first_row: int) -> None:
        geometry = self.geometry
        rows = range(first_row, min(geometry.rows, first_row + geometry.sum_rows))
        for index in range(self.own):
            for row in rows:
                total = over_lanes("add", sums[index * geometry.rows + row], (16, 8, 4, 2, 1))
                place = self._place(0, row - first_row, self.warp + CONSUMERS * index)
                if_(self.lane == (index * geometry.rows + row) % 32, lambda total=total, place=place: store(total, place))


def multiplier(stages: Stages) -> Multiplier:
    """The way to multiply a plan's elements."""
    return _Tensor(stages) if stages.plan.geometry.tensor_cores else _Fma(stages)
