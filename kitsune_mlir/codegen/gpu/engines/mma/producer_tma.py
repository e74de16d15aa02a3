"""The producers of a product whose operands TMA loads: one thread keeps the ring full of A, another one of B.

What other tiles have to finish first ("held" operands) is loaded after the waits, in which the thread's warp takes part;
weights wait for nothing but room. One thread for both would take longer for a chunk of a small tile than the tensor cores do
(128 x 64 x 64 terms: 0.23 us, and 0.33 where it waits, on an H200). It loads both where other threads have work for the second
warp; then the weights of a block's first tile of a task are on their way before the waits.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

from kitsune_mlir.codegen.gpu.contraction.split_k import Pieces
from kitsune_mlir.codegen.gpu.emit.control_flow import cluster_rank, for_, if_, lane_id
from kitsune_mlir.codegen.gpu.emit.memory import offset
from kitsune_mlir.codegen.gpu.emit.value import Value, as_value, i32, maximum, minimum
from kitsune_mlir.codegen.gpu.engines.mma.deferred_waits import late_waits
from kitsune_mlir.codegen.gpu.engines.mma.k_ranges import by_range
from kitsune_mlir.codegen.gpu.engines.mma.mainloop import Stages
from kitsune_mlir.codegen.gpu.engines.mma.operand import Box
from kitsune_mlir.codegen.gpu.engines.mma.plan import MmaPlan
from kitsune_mlir.codegen.gpu.engines.mma.rasterize import ordered
from kitsune_mlir.codegen.gpu.interface.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.sm90 import tma
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Barrier, Slot
from kitsune_mlir.dialects.tile_records import Wait

__all__ = ["Loader"]


@dataclasses.dataclass(frozen=True)
class Loader:
    """Emits a producer of some operands (0: A, from 1: B); `plan` has boxes."""

    plan: MmaPlan
    task: TaskContext
    stages: Stages
    operands: tuple[int, ...]

    @property
    def waits(self) -> bool:
        """Whether there is something to wait for: whoever loads A waits for what stages of the results need, too."""
        waits = bool(self.task.view.waits) or self.task.kernel.dependent
        return waits and (0 in self.operands or not all(map(self._constant, self.operands)))

    @property
    def early(self) -> tuple[int, ...]:
        """Which operands are loaded before the waits; none, if there are no waits."""
        if not self.waits:
            return ()
        constant = tuple(operand for operand in self.operands if self._constant(operand))
        return constant if len(constant) < len(self.operands) else constant[1:]

    def run(self, slot: Slot) -> Slot:
        """All tiles of the block; one warp, of which the first lane loads. Where it is in the ring, and will be afterwards."""
        state = [*slot.values, i32(1)]
        return Slot(*self.task.for_each_piece(lambda tile, *state: self._piece(ordered(tile), *state), state)[:2])

    def _piece(self, tile: TileContext, piece: Value, stage: Value, parity: Value, first: Value) -> list[Value]:
        """`first` is 1 in the block's first tile, whose early operands are loaded before the waits, and 0 later."""
        tile.resolve()
        every, early, lane = self.operands, self.early, lane_id(self.task.thread)
        rest = tuple(operand for operand in every if operand not in early)
        begin, end = Pieces(self.plan, self.task).chunks(piece, self.plan.sum.chunks)
        if early:

            def weights(chunk: Value, *state: Value) -> list[Value]:
                self._start(tile, Slot(*state), chunk + begin, early)
                return self.stages.ring.next(Slot(*state)).values

            if_((first != 0) & (lane == 0), lambda: for_(0, self.plan.prefill, 1, weights, [stage, parity]) and None)
        later = late_waits(self.plan) if self.waits and not early else ()
        if self.waits:
            put_off = [wait for _, wait in later]
            tile.poll_by_warp(lane, [wait for wait in self.task.view.waits if wait not in put_off])

        def chunk(index: Value, stage: Value, parity: Value) -> list[Value]:
            slot = Slot(stage, parity)
            if early:
                fresh = (first == 0) | (index - begin >= self.plan.prefill)
                if_(fresh, lambda: self._start(tile, slot, index, early))
                self._complete(tile, slot, index, rest)
            else:
                self.stages.ring.empty(stage).wait(parity)
                self._complete(tile, slot, index, every)
            return self.stages.ring.next(slot).values

        def load(first: Value | int, last: Value | int, state: Sequence[Value]) -> list[Value]:
            # The other lanes only poll; where they are in the ring does not matter.
            return if_(lane == 0, lambda: for_(first, last, 1, chunk, state), lambda: list(state), ["i32", "i32"])

        if not later:
            return [*load(begin, end, [stage, parity]), i32(0)]
        start, stop = as_value(begin, "i32"), as_value(end, "i32")
        bounds = [at for at, _ in later]
        state = load(start, minimum(stop, bounds[0]), [stage, parity])
        for (at, wait), last in zip(later, [*bounds[1:], None], strict=True):
            low, high = maximum(start, at), stop if last is None else minimum(stop, last)

            def then(low: Value = low, high: Value = high, wait: Wait = wait, state: list[Value] = state) -> list[Value]:
                tile.poll_by_warp(lane, [wait])
                return load(low, high, state)

            state = if_(low < high, then, functools.partial(list, state), ["i32", "i32"])
        return [*state, i32(0)]

    def _start(self, tile: TileContext, slot: Slot, chunk: Value, which: tuple[int, ...]) -> None:
        """Load the first operands into a stage, once it is empty; its phase goes on."""
        self.stages.ring.empty(slot.stage).wait(slot.parity)
        full = self.stages.ring.full(slot.stage)
        by_range(self.plan.sum, chunk, lambda part: self._load(tile, slot, chunk, which, part, full.expect))

    def _complete(self, tile: TileContext, slot: Slot, chunk: Value, which: tuple[int, ...]) -> None:
        """Load the last operands into a stage; its phase ends when all have come."""
        full = self.stages.ring.full(slot.stage)
        by_range(self.plan.sum, chunk, lambda part: self._load(tile, slot, chunk, which, part, full.arrive_and_expect))

    def _load(
        self, tile: TileContext, slot: Slot, chunk: Value, which: tuple[int, ...], part: int, announce: Callable[[int], None]
    ) -> None:
        """Load operands of a chunk of range `part`, after announcing their bytes to the stage's barrier."""
        stage, full = self.stages.pointer(slot.stage), self.stages.ring.full(slot.stage)
        found = [(operand, self.plan.box(operand, part)) for operand in which]
        views = [(operand, number, box) for operand, number in found if (box := self._views()[number]) is not None]
        announce(sum(box.bytes for _, _, box in views))
        for operand, number, box in views:
            target = offset(stage, self.plan.place(operand))
            self._load_box(tile, box, self.plan.map_of(number), target, full, self._positions(chunk, operand, part))

    def _positions(self, chunk: Value, operand: int, part: int) -> dict[str, Value]:
        """Where along the loops of the sum a chunk begins in an operand."""
        order = self.plan.sum
        if order.ranges:
            begin = (chunk - order.firsts[part]) * order.chunk
            return {order.inner[0]: begin + order.ranges[part][0] if operand else begin}
        positions: dict[str, Value] = {}
        rest = inner = chunk
        if order.outer:
            inner, rest = chunk % order.inner_chunks, chunk // order.inner_chunks
        positions[order.inner[0]] = inner * order.chunk
        for side, length in reversed(order.outer):
            positions[side] = rest % length
            rest = rest // length
        return positions

    def _load_box(
        self, tile: TileContext, box: Box, number: int, target: Value, full: Barrier, positions: dict[str, Value]
    ) -> None:
        coordinates = []
        for dim in box.dims:
            start = tile.index(dim.start)
            coordinates.append(start + positions[dim.side] if dim.side in positions else start)
        mask, first = None, 0
        if box.together > 1:
            # The block's part of what all of its cluster get.
            assert self.plan.multicast is not None
            rank, mask = cluster_rank(), self.plan.multicast.mask
            if box.by_rows:
                coordinates[-2] = coordinates[-2] + rank * box.map.box[-2]
                target = offset(target, rank * box.map.box_bytes)
            else:
                first = rank * (box.panels // box.together)
                coordinates[-1] = coordinates[-1] + first * box.map.box[-1]
                target = offset(target, first * box.panel_bytes)
        for panel in range(box.panels if mask is None or box.by_rows else box.panels // box.together):
            place = [*coordinates[:-1], coordinates[-1] + box.map.box[-1] * panel]
            part = offset(target, panel * box.panel_bytes)
            tma.load_tile(part, self.task.tensor_map(number), full, place, mask, box.cache)

    def _constant(self, operand: int) -> bool:
        """Whether nobody writes an operand while the kernel runs; A's ranges count if TMA loads them."""
        parts = range(max(1, len(self.plan.ranges))) if not operand else range(1)
        boxes = [self._views()[self.plan.box(operand, part)] for part in parts]
        return all(box is None or box.window.constant for box in boxes)

    def _views(self) -> tuple[Box | None, ...]:
        assert self.plan.boxes is not None
        return self.plan.boxes
