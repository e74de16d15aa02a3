"""The producer of a product whose operands TMA loads: one thread that keeps the ring full, in a warp that waits with it.

What other tiles have to finish first ("held" operands) is loaded after the waits. In a block's first tile of a task, the
rest (weights) is on its way before them; later the ring's depth hides the waits.
"""

from __future__ import annotations

import dataclasses

from kitsune_mlir.codegen.gpu import tma
from kitsune_mlir.codegen.gpu.barriers import Barrier, Slot
from kitsune_mlir.codegen.gpu.builder import for_, if_, lane_id
from kitsune_mlir.codegen.gpu.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.memory import offset
from kitsune_mlir.codegen.gpu.mma_operand import Box
from kitsune_mlir.codegen.gpu.mma_order import ordered
from kitsune_mlir.codegen.gpu.mma_plan import MmaPlan
from kitsune_mlir.codegen.gpu.mma_ring import Stages
from kitsune_mlir.codegen.gpu.mma_split import Pieces
from kitsune_mlir.codegen.gpu.value import Value, i32

__all__ = ["Loader"]


@dataclasses.dataclass(frozen=True)
class Loader:
    """Emits the producer; `plan` has boxes."""

    plan: MmaPlan
    task: TaskContext
    stages: Stages

    @property
    def early(self) -> tuple[int, ...]:
        """Which operands (0: A, from 1: B) are loaded before the waits; none, if there are no waits."""
        if not self.task.view.waits:
            return ()
        constant = tuple(index for index, box in enumerate(self._boxes()) if box.window.constant)
        return constant if len(constant) < len(self._boxes()) else constant[1:]

    def run(self) -> None:
        """All tiles of the block; one warp, of which the first lane loads."""
        slot = self.stages.ring.producer_start()
        self.task.for_each_piece(lambda tile, *state: self._piece(ordered(tile), *state), [*slot.values, i32(1)])

    def _piece(self, tile: TileContext, piece: Value, stage: Value, parity: Value, first: Value) -> list[Value]:
        """`first` is 1 in the block's first tile, where every stage is empty, and 0 later."""
        tile.resolve()
        every, early, lane = tuple(range(len(self._boxes()))), self.early, lane_id(self.task.thread)
        begin, end = Pieces(self.plan, self.task).chunks(piece, self.plan.sum.chunks)
        if early:

            def weights(chunk: Value) -> None:
                self._start(tile, Slot(chunk, parity), chunk + begin, early)

            if_((first != 0) & (lane == 0), lambda: for_(0, self.plan.prefill, 1, weights) and None)
        if self.task.view.waits:
            tile.poll_by_warp(lane)

        def chunk(index: Value, stage: Value, parity: Value) -> list[Value]:
            slot = Slot(stage, parity)
            if early:
                fresh = (first == 0) | (index - begin >= self.plan.prefill)
                if_(fresh, lambda: self._start(tile, slot, index, early))
                self._complete(tile, slot, index, tuple(operand for operand in every if operand not in early))
            else:
                self.stages.ring.empty(stage).wait(parity)
                self._complete(tile, slot, index, every)
            return self.stages.ring.next(slot).values

        def load() -> list[Value]:
            return for_(begin, end, 1, chunk, [stage, parity])

        # The other lanes only poll; where they are in the ring does not matter.
        return [*if_(lane == 0, load, lambda: [stage, parity], ["i32", "i32"]), i32(0)]

    def _start(self, tile: TileContext, slot: Slot, chunk: Value, which: tuple[int, ...]) -> None:
        """Load the first operands into a stage, once it is empty; its phase goes on."""
        self.stages.ring.empty(slot.stage).wait(slot.parity)
        self.stages.ring.full(slot.stage).expect(sum(self._boxes()[index].bytes for index in which))
        self._load(tile, slot, chunk, which)

    def _complete(self, tile: TileContext, slot: Slot, chunk: Value, which: tuple[int, ...]) -> None:
        """Load the last operands into a stage; its phase ends when all have come."""
        self.stages.ring.full(slot.stage).arrive_and_expect(sum(self._boxes()[index].bytes for index in which))
        self._load(tile, slot, chunk, which)

    def _load(self, tile: TileContext, slot: Slot, chunk: Value, which: tuple[int, ...]) -> None:
        stage, full = self.stages.pointer(slot.stage), self.stages.ring.full(slot.stage)
        for index in which:
            self._load_box(tile, self._boxes()[index], index, offset(stage, self.plan.place(index)), full, chunk)

    def _load_box(self, tile: TileContext, box: Box, index: int, target: Value, full: Barrier, chunk: Value) -> None:
        order = self.plan.sum
        positions: dict[str, Value] = {}
        rest = inner = chunk
        if order.outer:
            inner, rest = chunk % order.inner_chunks, chunk // order.inner_chunks
        positions[order.inner[0]] = inner * order.chunk
        for side, length in reversed(order.outer):
            positions[side] = rest % length
            rest = rest // length
        coordinates = []
        for dim in box.dims:
            start = tile.index(dim.start)
            coordinates.append(start + positions[dim.side] if dim.side in positions else start)
        for panel in range(box.panels):
            place = [*coordinates[:-1], coordinates[-1] + 64 * panel]
            tma.load_tile(offset(target, panel * box.map.box_bytes), self.task.tensor_map(index), full, place)

    def _boxes(self) -> tuple[Box, ...]:
        assert self.plan.boxes is not None
        return self.plan.boxes
