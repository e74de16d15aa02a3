"""The moving warpgroup of a chain of wide layers: weights come panel by panel for each pass, rows by TMA."""

from __future__ import annotations

import functools

from kitsune_mlir.codegen.gpu.contraction.axes import ROW
from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_
from kitsune_mlir.codegen.gpu.emit.memory import Cache, offset
from kitsune_mlir.codegen.gpu.emit.value import Value, i32
from kitsune_mlir.codegen.gpu.engines.chain.core.panels import Source
from kitsune_mlir.codegen.gpu.engines.chain.core.warpgroups import Producer as ChainProducer
from kitsune_mlir.codegen.gpu.engines.chain.wide.plan import PANEL, PANEL_BYTES, WARP_COLS, Pass, WidePlan, weight_tile
from kitsune_mlir.codegen.gpu.interface.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.sm90 import tma
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Barrier
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Slot as RingSlot

__all__ = ["Producer"]


class Producer(ChainProducer):
    """Emits the moving warpgroup of a task."""

    def __init__(self, plan: WidePlan, task: TaskContext):
        super().__init__(plan, task)
        self.plan = plan

    def weights(self) -> None:
        self.stream(self._tile_weights)

    def _tile_weights(self, slot: RingSlot) -> RingSlot:
        for layer in self.plan.layers:
            for part, map_ in zip(layer.passes, layer.maps, strict=True):
                step = functools.partial(self._weight_panel, part, map_)
                slot = RingSlot(*for_(0, layer.panels + (layer.tail > 0), 1, step, slot.values))
        return slot

    def _weight_panel(self, part: Pass, map_: int, panel: Value, stage: Value, parity: Value) -> list[Value]:
        """Bring a pass's columns of one panel of a weight's sum."""
        tile = weight_tile(part)

        def load(start: Value, full: Barrier) -> None:
            for pair in range(4):
                place = [part.first // WARP_COLS, 0, pair, 0, panel * PANEL]
                target = offset(start, pair * (tile.bytes // 4))
                tma.load_tile(target, self.task.tensor_map(map_), full, place, cache=Cache.KEEP)

        return self.bring(RingSlot(stage, parity), tile.bytes, load).values

    def rows(self, group: Value, lane: Value) -> None:
        plan, rows = self.plan, self.plan.rows
        first = rows.all_of(self.task, group)

        def panel(tile: TileContext, count: Value, source: Source, map_: int, number: Value, load: Value) -> Value:
            slot = plan.place(load)
            rows.empty(self.task, group, slot).wait(plan.parity(load, count) ^ 1)
            full = rows.full(self.task, group, slot)
            full.arrive_and_expect(PANEL_BYTES)
            start = next((tile.index(dim.start) for dim in source.window.dims if dim.side == ROW), i32(0))
            place = [start + group * plan.group_rows, number * PANEL]
            tma.load_tile(offset(first, slot * PANEL_BYTES), self.task.tensor_map(map_), full, place)
            return load + 1

        def loads(tile: TileContext, count: Value) -> None:
            load = i32(0)
            for _ in range(plan.loads // plan.layers[0].panels):
                for source, map_ in plan.sources:
                    step = functools.partial(panel, tile, count, source, map_)
                    load = for_(0, source.length // PANEL, 1, step, [load])[0]

        def tile(tile: TileContext, count: Value) -> Value:
            tile.resolve()
            if self.task.view.waits:
                tile.poll_by_warp(lane)
            if_(lane == 0, lambda: loads(tile, count))
            return count + 1

        self.task.for_each_tile(tile, [i32(0)])
