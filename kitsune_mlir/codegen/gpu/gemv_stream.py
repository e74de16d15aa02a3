"""The loading warp of the `gemv` engine: a ring of stages in shared memory, filled by TMA.

A stage is filled by a few boxes; the lanes of the warp start them side by side. Weights depend on nothing: as much of them as
the ring holds is under way before the warp waits for what other tiles have to finish first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu import tma
from kitsune_mlir.codegen.gpu.barriers import Barrier, Ring, Slot
from kitsune_mlir.codegen.gpu.builder import for_, if_, lane_id, sync_warp
from kitsune_mlir.codegen.gpu.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.gemv_plan import PANEL, GemvPlan, Source
from kitsune_mlir.codegen.gpu.memory import Cache, offset
from kitsune_mlir.codegen.gpu.mma_match import COL
from kitsune_mlir.codegen.gpu.value import Value, i1, i32, minimum

__all__ = ["Stages", "Stream", "number_waits"]


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

    def weights(self, slot: Slot) -> Value:
        """Pointer to a stage's weights."""
        return offset(self.task.shared, slot.stage * self.plan.geometry.slot_bytes)

    def activations(self, slot: Slot) -> Value:
        """Pointer to a stage's activations."""
        return offset(self.weights(slot), self.plan.geometry.weights_bytes)

    @property
    def sums(self) -> Value:
        """Pointer to the partial sums."""
        geometry = self.plan.geometry
        return offset(self.task.shared, geometry.stages * geometry.slot_bytes)


def number_waits(tasks: Sequence[TaskContext]) -> list[int]:
    """For each task, the number of its set of waits: equal, and not 0, where tasks wait for the same, whatever the tile."""
    known: dict[tuple, int] = {}
    numbers = []
    for task in tasks:
        waits = [(wait.semaphore.first, _constant(wait.lo), _constant(wait.hi), wait.count) for wait in task.view.waits]
        fixed = waits and all(lo is not None and hi is not None for _, lo, hi, _ in waits)
        numbers.append(known.setdefault(tuple(waits), len(known) + 1) if fixed else 0)
    return numbers


def _constant(value: ir.Value) -> int | None:
    op = value.owner
    if isinstance(op, ir.Block) or op.name != "arith.constant":
        return None
    return ir.IntegerAttr(op.attributes["value"]).value


class Stream:
    """The loading warp's code for one task.

    Args:
        stages: of the task.
        waits: number of the task's set of waits (`number_waits`).
    """

    def __init__(self, stages: Stages, waits: int = 0):
        self.stages, self.waits = stages, waits
        self.plan, self.task, self.ring = stages.plan, stages.task, stages.ring
        self.geometry = stages.plan.geometry
        self.lane = lane_id(self.task.thread)

    def run(self, slot: Slot, seen: Value) -> tuple[Slot, Value]:
        """Load all tiles that the block has of the task.

        Args:
            slot: the next stage.
            seen: number of the set of waits that the block waited for last, i32.

        Returns:
            Both after it.
        """
        stage, parity, seen = self.task.for_each_tile(self._tile, [*slot.values, seen])
        return Slot(stage, parity), seen

    def _tile(self, tile: TileContext, stage: Value, parity: Value, seen: Value) -> list[Value]:
        tile.resolve()
        total = self.geometry.passes * self.geometry.chunks
        waits = bool(self.task.view.waits)
        ahead = min(self.geometry.stages, total) if waits and not self.plan.weights_wait else 0
        start = Slot(stage, parity)

        def weights(number: Value, *carried: Value) -> list[Value]:
            return self._weights(tile, number, Slot(*carried)).values

        def activations(number: Value, *carried: Value) -> list[Value]:
            return self._activations(tile, number, Slot(*carried)).values

        def both(number: Value, *carried: Value) -> list[Value]:
            self._weights(tile, number, Slot(*carried))
            return self._activations(tile, number, Slot(*carried)).values

        filled = for_(0, ahead, 1, weights, start.values) if ahead else start.values
        if waits:
            if_(i1(True) if not self.waits else seen != self.waits, lambda: tile.poll_by_warp(self.lane))
            seen = i32(self.waits)
        if ahead:
            for_(0, ahead, 1, activations, start.values)
        if total > ahead:
            filled = for_(ahead, total, 1, both, filled)
        return [*filled, seen]

    def _weights(self, tile: TileContext, number: Value, slot: Slot) -> Slot:
        """Take a stage and start the copies of its weights; the slot after it."""
        geometry = self.geometry
        column, chunk = number // geometry.chunks * geometry.pass_cols, number % geometry.chunks
        columns = minimum(geometry.cols - column, geometry.pass_cols)
        boxes = (columns + (geometry.box_cols - 1)) // geometry.box_cols
        full, stage = self.ring.full(slot.stage), self.stages.weights(slot)
        lines = boxes * (geometry.products * geometry.box_cols)
        self.ring.empty(slot.stage).wait(slot.parity)
        if_(self.lane == 0, lambda: full.expect(lines * (geometry.panels * PANEL)))
        sync_warp()
        for place, source in enumerate(self.plan.weights):

            def copy(index: Value, place: int = place, source: Source = source) -> None:
                panel, box = index % geometry.panels, index // geometry.panels
                line = panel * geometry.lines + box * geometry.box_cols + place * geometry.pass_cols
                moved = {COL: column + box * geometry.box_cols, "": chunk * geometry.chunk + panel * geometry.panel}
                self._load(tile, offset(stage, line * PANEL), place, source, moved, full, Cache.STREAM)

            for_(self.lane, boxes * geometry.panels, 32, copy)
        return self.ring.next(slot)

    def _activations(self, tile: TileContext, number: Value, slot: Slot) -> Slot:
        """Start the copies of a stage's activations; the slot after it.

        Their lane also arrives for the stage, so who finds it full has seen all that the warp waited for.
        """
        geometry, full = self.geometry, self.ring.full(slot.stage)
        base, chunk = self.stages.activations(slot), number % geometry.chunks
        if_(self.lane == 0, lambda: full.arrive_and_expect(geometry.rows * geometry.panels * PANEL))
        sync_warp()

        def copy(index: Value) -> None:
            panel = index * geometry.input_panels
            moved = {"": chunk * geometry.chunk + panel * geometry.panel}
            target = offset(base, panel * geometry.activations_panel)
            self._load(tile, target, geometry.products, self.plan.input, moved, full, Cache.KEEP)

        for_(self.lane, geometry.panels // geometry.input_panels, 32, copy)
        return self.ring.next(slot)

    def _load(
        self, tile: TileContext, target: Value, map: int, source: Source, moved: dict[str, Value], full: Barrier, cache: Cache
    ) -> None:
        """Start one copy; `moved` is how far from the tile's start, by side, "" for the sum."""
        places = [tile.index(dim.start) for dim in source.dims]
        places[-1] = places[-1] + moved[""]
        if COL in moved:
            places[-2] = places[-2] + moved[COL]
        tma.load_tile(target, self.task.tensor_map(map), full, places, cache=cache)
