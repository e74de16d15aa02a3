"""The multiplying warps of the `gemv` engine: from a stage of the ring to sums in registers, and from these to shared memory.

Tensor cores: the weights are A (16 columns of the product by 16 of the sum), the activations B (8 rows). The order of a sum is
free, so a lane reads 16 bytes, eight neighbours, of a line of either operand, and uses them as the pairs of two
instructions: what the fragments' layout calls columns 2t, 2t+1, 2t+8 and 2t+9 are 8t to 8t+3, then 8t+4 to 8t+7. So is the
order of lines: eight lanes read two lines at a time, which are four apart so that the swizzle keeps them in different
banks. Every warp has its own part of each chunk for all columns.

f32: a warp has some columns for the whole sum; its lanes have the sum's parts and are added up at the end.
"""

from __future__ import annotations

from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_, lane_id, sync_warp, warp_id
from kitsune_mlir.codegen.gpu.emit.inline_ptx import fresh, pinned
from kitsune_mlir.codegen.gpu.emit.memory import load, offset, store
from kitsune_mlir.codegen.gpu.emit.reduce import over_lanes
from kitsune_mlir.codegen.gpu.emit.value import Value, bitcast, constant, fma, i32, unpack
from kitsune_mlir.codegen.gpu.engines.gemv.plan import CONSUMERS
from kitsune_mlir.codegen.gpu.engines.gemv.producer import Stages
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Slot
from kitsune_mlir.codegen.gpu.sm90.mma_sync import multiply_add
from kitsune_mlir.machine.shared_tile import PANEL_BYTES

__all__ = ["Multiplier", "multiplier"]

MANY_SUMS = 40


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
            self.stages.wait(slot)
            sums = self._chunk(sums, self.stages.weights(slot), self.stages.activations(slot))
            sync_warp()
            if_(self.lane == 0, ring.empty(slot.stage).arrive)
            return [*ring.next(slot).values, *sums]

        zeros = [constant(0.0, "f32")] * self.sums
        # One chunk stays a loop: ptxas would move additions behind the barriers that follow, and keep all operands till then.
        count = fresh(i32(1)) if geometry.chunks == 1 and self.many else geometry.chunks
        stage, parity, *sums = for_(0, count, 1, chunk, [*slot.values, *zeros])
        return Slot(stage, parity), sums

    @property
    def many(self) -> bool:
        """Whether sums take so many registers that operands must not wait in registers, too."""
        return self.sums >= MANY_SUMS

    def publish(self, sums: list[Value], first_row: int) -> None:
        """Write the pass's partial sums of rows from `first_row` on, as many as there is room for, to shared memory."""
        raise NotImplementedError

    def _chunk(self, sums: list[Value], weights: Value, source: Value) -> list[Value]:
        raise NotImplementedError

    def _piece(self, panel: Value, line: Value | int, piece: Value) -> Value:
        """16 bytes of a line of a swizzled panel, as four i32."""
        return load(offset(panel, ((piece ^ (line & 7)) << 4) + line * PANEL_BYTES), "vector<4xi32>")

    def _place(self, copy: Value | int, row: Value | int, line: Value) -> Value:
        """Pointer to a partial sum."""
        geometry = self.geometry
        element = (copy * geometry.sum_rows + row) * geometry.sum_pitch + line
        return offset(self.stages.sums, element * 4)


class _Tensor(Multiplier):
    def __init__(self, stages: Stages):
        super().__init__(stages)
        geometry = self.geometry
        self.groups, self.blocks, self.sums = geometry.lines // 16, geometry.warp_blocks, geometry.sums
        self.dtype = stages.plan.pattern.product.dtype
        # Warps that share a part of the sum are neighbours.
        self.rows_part, self.sum_part = self.warp % geometry.row_parts, self.warp // geometry.row_parts

    def _chunk(self, sums: list[Value], weights: Value, source: Value) -> list[Value]:
        geometry = self.geometry
        pieces = 8 * geometry.panels // geometry.sum_parts  # of 16 bytes, that a warp has of each line
        line, first_row = self._line(), self.rows_part * (8 * self.blocks)
        for step in range(0, pieces, 4):
            number = self.sum_part * pieces + step
            panel, piece = number // 8, number % 8 + self.lane % 4
            rows, b = offset(source, panel * geometry.activations_panel), []
            for block in range(self.blocks):
                # Rows beyond the last are never stored; there is no memory for them beside a single one.
                row = line + first_row + 8 * block if geometry.rows > 1 else 0
                b.append(unpack(self._piece(rows, row, piece)))
            lines = offset(weights, panel * (geometry.lines * PANEL_BYTES))
            for group in range(self.groups):
                low, high = (unpack(self._piece(lines, line + (16 * group + more), piece)) for more in (0, 8))
                for block in range(self.blocks):
                    first = 4 * (group * self.blocks + block)
                    for half in (0, 2):
                        fragment = [low[half], high[half], low[half + 1], high[half + 1]]
                        sums[first : first + 4] = multiply_add(
                            sums[first : first + 4], fragment, b[block][half : half + 2], self.dtype
                        )
        return sums

    def _line(self) -> Value:
        """The line, of eight, that the lane's fragments have at index lane / 4."""
        index = self.lane // 4
        return index // 2 + index % 2 * 4

    def publish(self, sums: list[Value], first_row: int) -> None:
        line, row = self._line(), self.lane % 4
        first_block = first_row // 8
        for number in range(first_block, first_block + self.geometry.sum_rows // 8):
            block = number % self.blocks

            def write(number: int = number, block: int = block) -> None:
                for group in range(self.groups):
                    first = 4 * (group * self.blocks + block)
                    for place, value in enumerate(sums[first : first + 4]):
                        # Index 2t is row t of eight, index 2t + 1 is row t + 4.
                        inside = row + (8 * (number - first_block) + 4 * (place % 2))
                        store(value, self._place(self.sum_part, inside, line + (16 * group + 8 * (place // 2))))

            if_(self.rows_part == number // self.blocks, write)


class _Fma(Multiplier):
    def __init__(self, stages: Stages):
        super().__init__(stages)
        self.own, self.sums = self.geometry.lines // CONSUMERS, self.geometry.sums

    def _chunk(self, sums: list[Value], weights: Value, source: Value) -> list[Value]:
        geometry = self.geometry
        piece = self.lane % 8
        for step in range(0, geometry.panels, 4):
            panel = self.lane // 8 + step
            lines = offset(weights, panel * (geometry.lines * PANEL_BYTES))
            rows = offset(source, panel * geometry.activations_panel)
            own = [_numbers(self._piece(lines, self.warp + CONSUMERS * index, piece)) for index in range(self.own)]
            for row in range(geometry.rows):
                x = _numbers(self._piece(rows, row, piece))
                for index in range(self.own):
                    for one, other in zip(x, own[index], strict=True):
                        number = index * geometry.rows + row
                        sums[number] = fma(one, other, sums[number])
            sums = pinned(sums) if self.many else sums
        return sums

    def publish(self, sums: list[Value], first_row: int) -> None:
        geometry = self.geometry
        rows = range(first_row, min(geometry.rows, first_row + geometry.sum_rows))
        for index in range(self.own):
            for row in rows:
                total = over_lanes("add", sums[index * geometry.rows + row], (16, 8, 4, 2, 1))
                place = self._place(0, row - first_row, self.warp + CONSUMERS * index)
                if_(self.lane == (index * geometry.rows + row) % 32, lambda total=total, place=place: store(total, place))


def _numbers(words: Value) -> list[Value]:
    return unpack(bitcast(words, "vector<4xf32>"))


def multiplier(stages: Stages) -> Multiplier:
    """The way to multiply a plan's elements."""
    return _Tensor(stages) if stages.plan.geometry.tensor_cores else _Fma(stages)
