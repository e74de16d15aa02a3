"""What was decided about a chain: the records that the planner makes and the emitters read."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from kitsune_mlir.codegen.gpu.emit.value import Value
from kitsune_mlir.codegen.gpu.engines.chain.core.body import Chain
from kitsune_mlir.codegen.gpu.engines.chain.core.liveness import Order
from kitsune_mlir.codegen.gpu.engines.chain.core.panels import Source, Weight, WeightPanel
from kitsune_mlir.codegen.gpu.engines.chain.core.places import Places
from kitsune_mlir.codegen.gpu.interface.context import TaskContext
from kitsune_mlir.codegen.gpu.interface.window import Window
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Barrier
from kitsune_mlir.dialects.tile_records import Load, Store
from kitsune_mlir.machine.shared_tile import SharedTile

__all__ = ["GROUP_ROWS", "ChainPlan", "Output", "RingPlan", "RowsPlan", "Slot", "Stage", "Vector"]

GROUP_ROWS = 64
"""Rows of one wgmma, and of a warpgroup: with two of them ptxas copies registers between their products (C7517)."""


@dataclasses.dataclass(frozen=True)
class Stage:
    """What one stage of the ring holds at a time: consecutive panels of one layer, with their places in the stage."""

    layer: int
    panels: tuple[tuple[WeightPanel, int], ...]

    @property
    def box_bytes(self) -> int:
        """Bytes that TMA reports."""
        return sum(panel.tile.bytes for panel, _ in self.panels)


@dataclasses.dataclass(frozen=True)
class Slot(Places):
    """A source's places: one for each warpgroup, or two if the next tile's rows come while this one's are read.

    Attributes:
        source: what they hold.
        maps: numbers of the tensor maps, a panel each.
        last: number of the last product that reads it.
        read: element-wise steps read it too, so it is released at the end of the tile.
    """

    source: Source
    maps: tuple[int, ...]
    last: int
    read: bool

    def place(self, count: Value) -> Value:
        """The place of tile `count` of a block."""
        return count % self.depth

    def parity(self, count: Value) -> Value:
        """Parity of "full" for that tile."""
        return count // self.depth & 1

    def empty(self, task: TaskContext, group: Value, place: Value | int) -> Barrier:
        # By the place's number, which is there already: "full" and "empty" of a place are used one after the other.
        return self._barrier(task, self.barrier, group * self.depth + place + self.depth * self.groups)


@dataclasses.dataclass(frozen=True)
class Vector:
    """Numbers along the columns (a bias, a gain) in shared memory from `offset` on, padded with zeros.

    `short` ones lie there as they are, of 16 bits; others as f32.
    """

    load: Load
    window: Window
    length: int
    offset: int
    short: bool

    @property
    def bytes(self) -> int:
        """Bytes of a number."""
        return 2 if self.short else 4


@dataclasses.dataclass(frozen=True)
class Output:
    """A store, and how TMA does it.

    Attributes:
        store: what and where.
        map: number of the tensor map; None if threads store.
        tile: layout of the staging space: one panel of columns of all rows of a warpgroup.
        wide: threads store pieces of 16 bytes.
    """

    store: Store
    map: int | None
    tile: SharedTile | None
    wide: bool = False


@dataclasses.dataclass(frozen=True)
class RowsPlan:
    """What everybody who reads and writes rows has to know.

    Attributes:
        chain, order: the body, and the times of its tensors.
        groups: computing warpgroups that have rows.
        vectors: by `load_key`.
        outputs: one a store.
        run: columns side by side that a lane has: 2, as tensor cores leave them, or 8, where the weights' columns are permuted.
    """

    chain: Chain
    order: Order
    groups: int
    vectors: dict[tuple, Vector]
    outputs: tuple[Output, ...]
    run: ClassVar[int] = 2

    @property
    def group_rows(self) -> int:
        """Rows of one warpgroup."""
        return GROUP_ROWS

    @property
    def covered(self) -> bool:
        """Whether the warpgroups' rows are exactly the tile's."""
        return self.group_rows * self.groups == self.chain.rows


@dataclasses.dataclass(frozen=True)
class RingPlan(RowsPlan):
    """What streams weights has a ring, which lies first in shared memory, and whose mbarriers are the task's first.

    Attributes:
        stages: of the ring; 0 without one.
        stage_bytes: of one.
    """

    stages: int
    stage_bytes: int


@dataclasses.dataclass(frozen=True)
class ChainPlan(RingPlan):
    """What the engine decided.

    Attributes:
        weights: of the layers.
        resident: offset of each layer's weight in shared memory; None where it streams.
        sequence: what streams through the ring for a tile.
        slots: places of sources.
        held: rows that are read into registers, a tile ahead, and stay there for the whole tile.
        staging: offset of the staging space, of which each warpgroup has `staging_bytes`, for so many panels: `staged`.
        turns: for each layer, whether the warpgroups take turns at the tensor cores.
        weight_maps: numbers of the tensor maps of each layer's panels.
        resident_barrier: number of the mbarrier that resident weights report to.
        halves: the warpgroups may have different tiles.
        bits: offset of what is kept as bits (`Order.compared`).
    """

    weights: tuple[Weight, ...]
    resident: tuple[int | None, ...]
    sequence: tuple[Stage, ...]
    slots: tuple[Slot, ...]
    held: tuple[Load, ...]
    staging: int
    staging_bytes: int
    staged: int
    turns: tuple[bool, ...]
    weight_maps: tuple[tuple[int, ...], ...]
    resident_barrier: int
    halves: bool
    bits: int
