"""The moving warpgroup of a chain: warp 0 streams weights, warps 1 and 2 bring the rows of one computing warpgroup each.

Rows come by TMA, or, where they are gathered or badly aligned, by the 32 lanes of the warp: pieces of 16 bytes (`cp.async`),
of 4, or single elements, into the same swizzled layout. All waits for other tasks are here: what the computing warpgroups do
in a tile follows from a barrier that these warps complete after their waits. (Where no rows come, all tiles wait for the same,
before they overwrite what others read: then the computing warpgroups wait, before their first tile.)
"""

from __future__ import annotations

import functools
import math

from kitsune_mlir.codegen.gpu.contraction.axes import COL, ROW
from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_, shuffle, sync_warp
from kitsune_mlir.codegen.gpu.emit.inline_ptx import fresh, pinned
from kitsune_mlir.codegen.gpu.emit.memory import Cache, copy_async, copy_async_commit, copy_async_wait, load, offset, store
from kitsune_mlir.codegen.gpu.emit.value import Value, cast, i16, i32, i64, minimum, select
from kitsune_mlir.codegen.gpu.engines.chain.core.body import SUM
from kitsune_mlir.codegen.gpu.engines.chain.core.evaluate import Evaluator
from kitsune_mlir.codegen.gpu.engines.chain.core.fragment_index import FragmentIndex
from kitsune_mlir.codegen.gpu.engines.chain.core.operand_reads import Memory, to_integer
from kitsune_mlir.codegen.gpu.engines.chain.core.panels import Panel, Source, Weight, align, swizzled
from kitsune_mlir.codegen.gpu.engines.chain.core.records import ChainPlan, Slot, Stage
from kitsune_mlir.codegen.gpu.engines.chain.core.warpgroups import Producer as ChainProducer
from kitsune_mlir.codegen.gpu.engines.chain.resident.tail_split import TailSplit
from kitsune_mlir.codegen.gpu.interface.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.sm90 import tma
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Barrier, fence_async_shared
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Slot as RingSlot

__all__ = ["Producer"]

UNROLL, DIVIDED = 16, 4
"""Steps that are unrolled: where a row has a power of two of pieces, and where each step needs a division."""


class Producer(ChainProducer):
    """Emits the moving warpgroup of a task."""

    def __init__(self, plan: ChainPlan, task: TaskContext):
        super().__init__(plan, task, moves_rows=bool(plan.slots))
        self.plan = plan

    def weights(self) -> None:
        plan, task = self.plan, self.task
        stay = [(n, place) for n, place in enumerate(plan.resident) if place is not None and not plan.weights[n].why]
        if stay:
            barrier = task.barriers[plan.resident_barrier]
            barrier.arrive_and_expect(sum(panel.tile.bytes for n, _ in stay for panel in plan.weights[n].panels))
            for n, place in stay:
                for number, panel in enumerate(plan.weights[n].panels):
                    self._load_panel(n, number, offset(task.shared, place), barrier)
                    place += panel.bytes
        if plan.sequence:
            self.stream(self._tile_weights)

    def _tile_weights(self, slot: RingSlot) -> RingSlot:
        for part in self.plan.sequence:
            slot = self.bring(slot, part.box_bytes, functools.partial(self._load_stage, part))
        return slot

    def _load_stage(self, part: Stage, start: Value, full: Barrier) -> None:
        panels = self.plan.weights[part.layer].panels
        for panel, place in part.panels:
            self._load_panel(part.layer, panels.index(panel), offset(start, place), full)

    def _load_panel(self, layer: int, number: int, target: Value, barrier: Barrier) -> None:
        """TMA of one panel: one box, or one for each panel of columns of a transposed weight."""
        weight = self.plan.weights[layer]
        panel = weight.panels[number]
        map_ = self.task.tensor_map(self.plan.weight_maps[layer][number])
        start = _constant_start(weight, SUM if weight.transposed else COL)
        if not weight.transposed:
            tma.load_tile(target, map_, barrier, [start, panel.first], cache=Cache.KEEP)
            return
        for across in range(panel.tile.panels):
            place = offset(target, across * panel.tile.panel_bytes)
            tma.load_tile(place, map_, barrier, [start + panel.first, across * panel.tile.panel_cols], cache=Cache.KEEP)

    # --- rows --------------------------------------------------------------------------------------------------------

    def rows(self, group: Value, lane: Value) -> None:
        def tile(tile: TileContext, count: Value) -> Value:
            tile.resolve()
            if self.task.view.waits or self.task.kernel.dependent:
                tile.poll_by_warp(lane)
            copies: dict[Slot, _Copy] = {}
            for slot in self.plan.slots:
                if not slot.source.maps:
                    copies[slot] = _Copy(self.plan, slot.source, tile, group, fresh(lane))
            copied = []
            for slot in self.plan.slots:
                place = slot.place(count)
                full = slot.full(self.task, group, place)
                slot.empty(self.task, group, place).wait(slot.parity(count) ^ 1)
                target = slot.pointer(self.task, group, place)
                if slot.source.maps:
                    if_(lane == 0, functools.partial(self._load_rows, slot, tile, group, target, full))
                else:
                    copies[slot].emit(target)
                    copied.append(full)
            if copied:
                copy_async_commit()
                copy_async_wait(0)
                fence_async_shared()
                sync_warp()
                if_(lane == 0, lambda: [barrier.arrive() for barrier in copied] and None)
            return count + 1

        TailSplit.of(self.task, group, self.plan.halves).for_each_tile(tile, [i32(0)])

    def _load_rows(self, slot: Slot, tile: TileContext, group: Value, target: Value, full: Barrier) -> None:
        source, rows = slot.source, self.plan.group_rows
        full.arrive_and_expect(sum(map_.box_bytes for map_ in source.maps))
        start = next((tile.index(dim.start) for dim in source.window.dims if dim.side == ROW), i32(0))
        for number, panel in enumerate(source.panels):
            tma.load_tile(
                offset(target, source.panel_offset(number, rows)),
                self.task.tensor_map(slot.maps[number]),
                full,
                [start + group * rows, panel.start],
            )


def _constant_start(weight: Weight, side: str) -> int:
    return next((dim.start for dim in weight.window.dims if dim.side == side and isinstance(dim.start, int)), 0)


class _RowOf(Memory):
    """Reads for one row of the tile that a lane chooses."""

    chosen: Value

    def row(self, place: FragmentIndex) -> Value:
        return self.chosen


class _Copy:
    """Copies the rows of a source by the lanes of a warp; 32 rows at a time, whose numbers the lanes hold.

    The numbers are fetched as soon as the object is made: while the slot is still read, not after it is free.
    """

    def __init__(self, plan: ChainPlan, source: Source, tile: TileContext, group: Value, lane: Value):
        self.plan, self.source, self.tile = plan, source, tile
        self.group, self.lane = group, lane
        self.numbers = pinned([self._row_number(first) for first in range(0, plan.group_rows, 32)])
        window = source.window
        self.size = window.bytes
        aligned = window.align((COL,)) if window.stride(COL) == 1 else self.size
        self.piece = max(width for width in (2, 4, 16) if aligned % width == 0)

    def emit(self, target: Value) -> None:
        """Start all copies to `target`; single elements are written at once."""
        start = self.source.window.start(self.tile)
        columns = sum(panel.width for panel in self.source.panels)
        across = columns * self.size // self.piece  # pieces of a row, with those of zeros
        # Which piece a lane has is a constant of each step where the steps are unrolled and their number is a power of two.
        # Else each has a division, and many of them at once more registers than a warp that copies has.
        batch = math.gcd(UNROLL if across & (across - 1) == 0 else DIVIDED, across)
        for block, row in enumerate(self.numbers):

            def step(index: Value | int, first: int = 32 * block, row: Value = row) -> None:
                for number in range(batch):
                    self._piece(start, row, first, across, self.lane + (index + number) * 32, target)

            if batch == across:
                step(0)
            else:
                for_(0, across, batch, step)

    def _row_number(self, first: int) -> Value:
        """The lane's row of 32: its distance from `_start` in rows, i32."""
        row = minimum(self.group * self.plan.group_rows + (self.lane + first), self.plan.chain.rows - 1)
        gather = self.source.gather
        if gather is None:
            return row
        memory = _RowOf(self.plan, self.tile, self.tile.task.shared, self.lane, self.group, {})
        memory.chosen = row
        evaluator = Evaluator(self.plan.chain, memory, self.tile.index, {})
        index = evaluator.inner(gather.op, gather.index, FragmentIndex(0, 0)).at(0)
        return cast(to_integer(index), "i32")

    def _piece(self, start: Value, row: Value, first: int, across: int, number: Value, slot: Value) -> None:
        """Copy piece `number` of a block of 32 rows."""
        window = self.source.window
        local, piece = number // across, number % across
        col = piece * (self.piece // self.size)
        exists = col < self.source.length
        padded = any(panel.start + panel.width > self.source.length for panel in self.source.panels)
        at = i64(shuffle(row, local)) * (window.stride(ROW) * self.size)
        pointer = offset(offset(start, at), i64(select(exists, col, 0) if padded else col) * (window.stride(COL) * self.size))
        target = offset(slot, self._place(local + first, col))
        if self.piece == self.size:
            value = load(pointer, "i16", 2, window.constant)
            store(select(exists, value, i16(0)) if padded else value, target)
        else:
            rest = None
            if window.stride(COL) == 1 and self.source.length * self.size % self.piece:  # the last piece is cut
                rest = minimum((self.source.length - col) * self.size, self.piece)
            copy_async(target, pointer, self.piece, exists if padded else None, rest)

    def _place(self, row: Value, col: Value) -> Value:
        """Byte offset of an element in the slot: full panels have one stride, only the last may be narrower."""
        rows = self.plan.group_rows
        panels: list[Panel] = list(self.source.panels)
        place = swizzled(rows, panels[0].box).offset(row, col % panels[0].box if len(panels) > 1 else col)
        if len(panels) == 1:
            return place
        number = col // panels[0].box
        bytes_ = align(rows * panels[0].box * 2, 1024)
        if panels[-1].box != panels[0].box:
            tail = swizzled(rows, panels[-1].box).offset(row, col - panels[-1].start)
            place = select(number == len(panels) - 1, tail, place)
        return place + number * bytes_
