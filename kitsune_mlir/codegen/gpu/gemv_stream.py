"""The loading warp of the `gemv` engine: a ring of stages in shared memory, filled by bulk copies of runs of memory.

A stage is filled by one copy for each of its rows; the lanes of the warp start them side by side. Weights depend on nothing:
as much of them as the ring holds is under way before the warp waits for what other tiles have to finish first.
"""

from __future__ import annotations

import dataclasses

from kitsune_mlir.codegen.gpu import tma
from kitsune_mlir.codegen.gpu.barriers import Barrier, Ring, Slot, fence_async
from kitsune_mlir.codegen.gpu.builder import for_, if_, lane_id, sync_warp
from kitsune_mlir.codegen.gpu.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.gemv_plan import GemvPlan
from kitsune_mlir.codegen.gpu.memory import Cache, offset
from kitsune_mlir.codegen.gpu.mma_match import COL, ROW
from kitsune_mlir.codegen.gpu.value import Value, i32, i64, minimum, select

__all__ = ["Stages", "Stream"]


@dataclasses.dataclass(frozen=True)
class Stages:
    """Where a task's shared memory and barriers are.

    Attributes:
        plan: what was decided.
        task: the kernel as the task sees it.
    """

    plan: GemvPlan
    task: TaskContext

    @property
    def ring(self) -> Ring:
        """The ring's barriers."""
        return Ring(self.task.barrier_base, self.plan.geometry.stages)

    @property
    def arrived(self) -> Barrier:
        """Completes when resident activations are there."""
        return self.task.barriers[2 * self.plan.geometry.stages]

    @property
    def resident(self) -> Value:
        """Pointer to resident activations."""
        return self.task.shared

    def weights(self, slot: Slot) -> Value:
        """Pointer to a stage's weights."""
        base = offset(self.task.shared, self.plan.geometry.resident_bytes)
        return offset(base, slot.stage * self.plan.geometry.stage_bytes)

    def activations(self, slot: Slot) -> Value:
        """Pointer to a stage's part of activations that are not resident."""
        return offset(self.weights(slot), self.plan.geometry.weights_bytes)

    @property
    def sums(self) -> Value:
        """Pointer to the partial sums."""
        geometry = self.plan.geometry
        return offset(self.task.shared, geometry.resident_bytes + geometry.stages * geometry.stage_bytes)


class Stream:
    """The loading warp's code."""

    def __init__(self, stages: Stages):
        self.stages = stages
        self.plan, self.task, self.ring = stages.plan, stages.task, stages.ring
        self.geometry = stages.plan.geometry
        self.lane = lane_id(self.task.thread)

    def run(self) -> None:
        """Load all tiles that the block has of the task."""
        start = self.ring.producer_start()
        self.task.for_each_tile(self._tile, [*start.values, i32(1)])

    def _tile(self, tile: TileContext, stage: Value, parity: Value, first: Value) -> list[Value]:
        tile.resolve()
        geometry = self.geometry
        weights = [window.start(tile) for window in self.plan.weights]
        source = self.plan.input.start(tile)
        total = geometry.passes * geometry.chunks
        ahead = min(geometry.stages, total)
        slot = Slot(stage, parity)

        # Weights first. What is loaded together with them after the wait is a second copy to the same barrier.
        def begin(number: Value, *carried: Value) -> list[Value]:
            return self._begin(number, weights, Slot(*carried)).values

        def complete(number: Value, *carried: Value) -> list[Value]:
            return self._activations(number, source, Slot(*carried)).values

        def both(number: Value, *carried: Value) -> list[Value]:
            self._begin(number, weights, Slot(*carried))
            return (Slot(*carried) if geometry.resident else self._activations(number, source, Slot(*carried))).values

        filled = Slot(*for_(0, ahead, 1, begin, slot.values))
        if geometry.resident:
            if_(first == 1, lambda: self._resident(tile, source))
        else:
            self._poll(tile)
            for_(0, ahead, 1, complete, slot.values)
        if total > ahead:

            def rest(number: Value, *carried: Value) -> list[Value]:
                both(number, *carried)
                return self.ring.next(Slot(*carried)).values

            filled = Slot(*for_(ahead, total, 1, rest, filled.values))
        return [*filled.values, i32(0)]

    def _poll(self, tile: TileContext) -> None:
        """Wait for what other tiles have to finish first: one lane, then the warp."""

        def poll() -> None:
            for wait in self.task.view.waits:
                tile.poll(wait)

        if self.task.view.waits:
            if_(self.lane == 0, poll)
            sync_warp()
            fence_async()

    def _resident(self, tile: TileContext, source: Value) -> None:
        """Load all activations."""
        geometry, window = self.geometry, self.plan.input
        self._poll(tile)
        bytes = geometry.depth * geometry.bytes
        if_(self.lane == 0, lambda: self.stages.arrived.arrive_and_expect(geometry.rows * bytes))
        sync_warp()

        def copy(row: Value) -> None:
            target = offset(self.stages.resident, row * geometry.row_pitch)
            start = offset(source, i64(row) * (window.stride(ROW) * geometry.bytes))
            tma.load_span(target, start, bytes, self.stages.arrived)

        for_(self.lane, geometry.rows, 32, copy)

    def _begin(self, number: Value, weights: list[Value], slot: Slot) -> Slot:
        """Take a stage and start the copies of its weights; the slot after it."""
        geometry = self.geometry
        turn, chunk = number // geometry.chunks, number % geometry.chunks
        column = turn * geometry.pass_cols
        bytes = self._run(chunk)
        columns = minimum(geometry.cols - column, geometry.pass_cols)
        lines = columns * geometry.products + (0 if geometry.resident else geometry.rows)
        full = self.ring.full(slot.stage)
        self.ring.empty(slot.stage).wait(slot.parity)
        if_(self.lane == 0, lambda: full.arrive_and_expect(bytes * lines))
        sync_warp()
        stage = self.stages.weights(slot)
        along = i64(chunk) * (geometry.chunk * geometry.bytes)

        def copy(line: Value) -> None:
            product, inside = line // geometry.pass_cols, line % geometry.pass_cols
            pointer = weights[0]
            for index, other in enumerate(weights[1:], 1):
                pointer = select(product == index, other, pointer)
            stride = self.plan.weights[0].stride(COL)
            for index, window in enumerate(self.plan.weights[1:], 1):
                stride = select(product == index, i32(window.stride(COL)), i32(stride))
            place = i64(column + inside) * (i64(stride) * geometry.bytes)
            start = offset(offset(pointer, place), along)
            target = offset(stage, line * geometry.pitch)
            if_(inside < columns, lambda: tma.load_span(target, start, bytes, full, Cache.STREAM))

        for_(self.lane, geometry.lines, 32, copy)
        return self.ring.next(slot)

    def _activations(self, number: Value, source: Value, slot: Slot) -> Slot:
        """Start the copies of a stage's part of the activations; the slot after it."""
        geometry, window = self.geometry, self.plan.input
        chunk = number % geometry.chunks
        bytes = self._run(chunk)
        base = self.stages.activations(slot)
        along = offset(source, i64(chunk) * (geometry.chunk * geometry.bytes))

        def copy(row: Value) -> None:
            start = offset(along, i64(row) * (window.stride(ROW) * geometry.bytes))
            tma.load_span(offset(base, row * geometry.pitch), start, bytes, self.ring.full(slot.stage))

        for_(self.lane, geometry.rows, 32, copy)
        return self.ring.next(slot)

    def _run(self, chunk: Value) -> Value:
        """Bytes of one row in a chunk."""
        geometry = self.geometry
        if not geometry.ragged:
            return i32(geometry.chunk * geometry.bytes)
        return minimum(geometry.depth - chunk * geometry.chunk, geometry.chunk) * geometry.bytes
