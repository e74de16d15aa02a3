"""The loading warps of the `gemv` engine: a ring of stages in shared memory, filled by TMA.

One warp loads weights, another activations, each stage of the ring through a barrier of its own. Weights depend on nothing:
their warp goes on as far as the ring is free, from tile to tile and from task to task, while the other one waits for what other
tiles have to finish first. It keeps only a window of bytes under way: what it asks for beyond that comes no sooner, and queues
up in front of the few bytes that other blocks are waiting for. A stage is filled by a few boxes, which the lanes of the warp
start side by side.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from kitsune_mlir.codegen.gpu.contraction.axes import COL
from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_, lane_id, sync_warp
from kitsune_mlir.codegen.gpu.emit.memory import Cache, offset
from kitsune_mlir.codegen.gpu.emit.value import Value, i1, i32, minimum, select
from kitsune_mlir.codegen.gpu.engines.gemv.plan import GemvPlan, Source
from kitsune_mlir.codegen.gpu.interface.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.sm90 import tma
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Barrier, Ring, Slot
from kitsune_mlir.machine.shared_tile import PANEL_BYTES

__all__ = ["ActivationStream", "Stages", "WeightStream", "number_waits"]


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
        """The ring's barriers; "full" is for the weights."""
        return Ring(self.task.barrier_base, self.plan.geometry.stages)

    def loaded(self, slot: Slot) -> Barrier:
        """The barrier of a stage's activations."""
        start = offset(self.task.barrier_base, Ring.bytes(self.plan.geometry.stages))
        return Barrier(offset(start, slot.stage * Barrier.BYTES))

    def weights(self, slot: Slot) -> Value:
        """Pointer to a stage's weights."""
        return offset(self.task.shared, slot.stage * self.plan.geometry.slot_bytes)

    def activations(self, slot: Slot) -> Value:
        """Pointer to a stage's activations."""
        return offset(self.weights(slot), self.plan.geometry.weights_bytes)

    def wait(self, slot: Slot) -> None:
        """Wait until a stage is full. Who has, has also seen all that the task's tile waits for."""
        self.ring.full(slot.stage).wait(slot.parity)
        self.loaded(slot).wait(slot.parity)

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
        waits = tuple(wait.constant for wait in task.view.waits)
        numbers.append(known.setdefault(waits, len(known) + 1) if waits and None not in waits else 0)
    return numbers


class _Stream:
    """A loading warp's code for one task."""

    def __init__(self, stages: Stages):
        self.stages = stages
        self.plan, self.task, self.ring = stages.plan, stages.task, stages.ring
        self.geometry = stages.plan.geometry
        self.lane = lane_id(self.task.thread)

    def _load(
        self, tile: TileContext, target: Value, map: int, source: Source, moved: dict[str, Value], full: Barrier, cache: Cache
    ) -> None:
        """Start one copy; `moved` is how far from the tile's start, by side, "" for the sum."""
        tma.load_tile(target, self.task.tensor_map(map), full, source.places(tile, moved), cache=cache)


class WeightStream(_Stream):
    """The weights of one task."""

    def run(self, slot: Slot) -> Slot:
        """Load those of all tiles that the block has of the task, from the stage `slot` on; the stage after them."""

        def tile(tile: TileContext, *carried: Value) -> list[Value]:
            tile.resolve()
            if self.plan.weights_wait:
                tile.poll_by_warp(self.lane)

            def stage(number: Value, *carried: Value) -> list[Value]:
                return self._stage(tile, number, Slot(*carried)).values

            return for_(0, self.geometry.passes * self.geometry.chunks, 1, stage, carried)

        return Slot(*self.task.for_each_tile(tile, slot.values))

    def _stage(self, tile: TileContext, number: Value, slot: Slot) -> Slot:
        """Take a stage and start the copies of its weights; the slot after it."""
        geometry = self.geometry
        column, chunk = number // geometry.chunks * geometry.pass_cols, number % geometry.chunks
        columns = minimum(geometry.cols - column, geometry.pass_cols)
        boxes = (columns + (geometry.box_cols - 1)) // geometry.box_cols
        full, stage = self.ring.full(slot.stage), self.stages.weights(slot)
        lines = boxes * (geometry.products * geometry.box_cols)
        self.ring.empty(slot.stage).wait(slot.parity)
        self._keep_window(number, slot)
        if_(self.lane == 0, lambda: full.arrive_and_expect(lines * (geometry.panels * PANEL_BYTES)))
        sync_warp()
        for place, source in enumerate(self.plan.weights):

            def copy(index: Value, place: int = place, source: Source = source) -> None:
                panel, box = index % geometry.panels, index // geometry.panels
                line = panel * geometry.lines + box * geometry.box_cols + place * geometry.pass_cols
                moved = {COL: column + box * geometry.box_cols, "": chunk * geometry.chunk + panel * geometry.panel}
                self._load(tile, offset(stage, line * PANEL_BYTES), place, source, moved, full, Cache.STREAM)

            for_(self.lane, boxes * geometry.panels, 32, copy)
        return self.ring.next(slot)

    def _keep_window(self, number: Value, slot: Slot) -> None:
        """Wait until the weights have come that were asked for a window before those of `slot`, stage `number` of a tile."""
        stages = self.geometry.stages
        window = select(number < stages, i32(self.geometry.first_window), i32(self.geometry.window))
        # With as many stages under way as there are, this waits for what the place's last user has waited for.
        same_lap = slot.stage >= window
        stage = select(same_lap, slot.stage - window, slot.stage + (stages - window))
        # A consumer's parity is the opposite of the producer's; before the first lap a fresh barrier passes parity 1.
        self.ring.full(stage).wait(select(same_lap, slot.parity ^ 1, slot.parity))


class ActivationStream(_Stream):
    """The activations of one task, behind its waits.

    Args:
        stages: of the task.
        waits: number of the task's set of waits (`number_waits`).
    """

    def __init__(self, stages: Stages, waits: int = 0):
        super().__init__(stages)
        self.waits = waits

    def run(self, slot: Slot, seen: Value) -> tuple[Slot, Value]:
        """Load those of all tiles that the block has of the task.

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
        if self.task.view.waits:
            if_(i1(True) if not self.waits else seen != self.waits, lambda: tile.poll_by_warp(self.lane))
            seen = i32(self.waits)

        def stage_(number: Value, *carried: Value) -> list[Value]:
            return self._stage(tile, number, Slot(*carried)).values

        return [*for_(0, self.geometry.passes * self.geometry.chunks, 1, stage_, [stage, parity]), seen]

    def _stage(self, tile: TileContext, number: Value, slot: Slot) -> Slot:
        """Start the copies of a stage's activations; the slot after it."""
        geometry, full = self.geometry, self.stages.loaded(slot)
        base, chunk = self.stages.activations(slot), number % geometry.chunks
        self.ring.empty(slot.stage).wait(slot.parity)
        if_(self.lane == 0, lambda: full.arrive_and_expect(geometry.rows * geometry.panels * PANEL_BYTES))
        sync_warp()

        def copy(index: Value) -> None:
            panel = index * geometry.input_panels
            moved = {"": chunk * geometry.chunk + panel * geometry.panel}
            target = offset(base, panel * geometry.activations_panel)
            self._load(tile, target, geometry.products, self.plan.input, moved, full, Cache.KEEP)

        for_(self.lane, geometry.panels // geometry.input_panels, 32, copy)
        return self.ring.next(slot)
