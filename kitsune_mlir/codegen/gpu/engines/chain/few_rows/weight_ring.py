"""Weights of layers for a few rows as pieces that come through a ring in shared memory, for all warps of a block at once.

A piece is some terms of all columns of a layer. TMA brings it long before the warps get there: what is under way at a time is
then the ring, not what fits registers beside sums. The first warp asks for a piece as soon as all warps are done with the one
in its place. On an H200, 128 blocks that all read the same 256 KB take 2.0 us with a ring of 2 pieces of 32 KB, 1.6 with 4,
and 3.4 where rows of a piece are 64 bytes instead of 128; into registers it took 6.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from kitsune_mlir.codegen.gpu.contraction.axes import COL
from kitsune_mlir.codegen.gpu.emit.control_flow import if_, lane_id, sync_warp
from kitsune_mlir.codegen.gpu.emit.memory import offset
from kitsune_mlir.codegen.gpu.emit.value import Value, i32
from kitsune_mlir.codegen.gpu.engines.chain.core.body import SUM
from kitsune_mlir.codegen.gpu.engines.chain.core.panels import matrix_map
from kitsune_mlir.codegen.gpu.interface.context import TaskContext
from kitsune_mlir.codegen.gpu.interface.plan import MapUse
from kitsune_mlir.codegen.gpu.interface.thread_group import ThreadGroup
from kitsune_mlir.codegen.gpu.interface.window import Window
from kitsune_mlir.codegen.gpu.sm90 import tma
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Ring
from kitsune_mlir.codegen.gpu.sm90.tensor_map import TensorMap
from kitsune_mlir.machine.shared_tile import PANEL_COLS, SharedTile

__all__ = ["WeightRing", "WeightStream", "plan_ring"]

LEAST_SLOTS, MOST_SLOTS = 2, 8
MOST_BOX = 256
"""Rows of one box of TMA."""


@dataclasses.dataclass(frozen=True)
class WeightRing:
    """What comes for a tile.

    Attributes:
        slots: places for pieces.
        slot_bytes: of one.
        pieces: (number of the layer, first term), in order.
        terms: of a layer's pieces, by the layer's number.
        maps: TMA's view of each layer's weight, by the layer's number.
        windows: the weights.
    """

    slots: int
    slot_bytes: int
    pieces: tuple[tuple[int, int], ...]
    terms: Mapping[int, int]
    maps: Mapping[int, TensorMap]
    windows: Mapping[int, Window]

    @property
    def bytes(self) -> int:
        """Of shared memory, aligned to 1024."""
        return self.slots * self.slot_bytes

    def barriers(self, warps: int) -> tuple[int, ...]:
        """Arrivals of each mbarrier: "full" of each slot, then "empty" of each."""
        return (1,) * self.slots + (warps,) * self.slots

    @property
    def map_uses(self) -> tuple[MapUse, ...]:
        """The tensor maps, in the order of the layers."""
        return tuple(MapUse(self.windows[number].buffer, self.maps[number]) for number in sorted(self.maps))

    def tile(self, layer: int) -> SharedTile:
        """Where a piece's elements are in its slot."""
        return SharedTile(self.maps[layer].shape[0], self.terms[layer], 2)

    def uses(self, slot: int) -> int:
        """Pieces of a tile that a slot gets."""
        return len(range(slot, len(self.pieces), self.slots))


def plan_ring(weights: Mapping[int, Window], room: int) -> WeightRing | None:
    """A ring for the weights (sides COL and SUM) of some layers in `room` bytes; None where there is none to be had.

    Layers whose weights somebody writes while the kernel runs, or TMA cannot read, are left out.
    """
    maps: dict[int, TensorMap] = {}
    for number, window in weights.items():
        cols = next(dim.extent for dim in window.dims if dim.side == COL)
        if not window.constant or cols % min(cols, MOST_BOX) or any(dim.start != 0 for dim in window.dims):
            continue
        map_ = matrix_map(window, (COL, SUM), (min(cols, MOST_BOX), PANEL_COLS), 2 * PANEL_COLS)
        if isinstance(map_, TensorMap):
            maps[number] = map_
    if not maps:
        return None
    slot_bytes = max(2 * PANEL_COLS * map_.shape[0] for map_ in maps.values())
    fit = {number: slot_bytes // (2 * PANEL_COLS * map_.shape[0]) for number, map_ in maps.items()}
    terms = {number: min(fit[number], -(-map_.shape[1] // PANEL_COLS)) * PANEL_COLS for number, map_ in maps.items()}
    pieces = tuple((number, first) for number in sorted(maps) for first in range(0, maps[number].shape[1], terms[number]))
    slots = min(room // slot_bytes, MOST_SLOTS, len(pieces))
    if slots < min(LEAST_SLOTS, len(pieces)):
        return None
    return WeightRing(slots, slot_bytes, pieces, terms, maps, {number: weights[number] for number in maps})


class WeightStream:
    """Emits what warps do with a ring for one tile.

    Args:
        ring: what comes.
        task: the task; the ring's mbarriers are its own from number `first_barrier` on, its tensor maps the first ones.
        group: the warps that read all pieces.
        shared: pointer to the ring.
        turn: number of the tile among the block's, i32.
    """

    def __init__(self, ring: WeightRing, task: TaskContext, group: ThreadGroup, shared: Value, first_barrier: int, turn: Value):
        self.ring, self.task, self.group, self.shared, self.turn = ring, task, group, shared, turn
        self.barriers = Ring(task.barriers[first_barrier].pointer, ring.slots)
        self.next = 0

    def start(self) -> None:
        """Ask for as many pieces as there is room for. All threads of the group call it."""

        def ask() -> None:
            for number in range(self.ring.slots):
                self._ask(number)

        if_(self.group.thread == 0, ask)

    def piece(self) -> Value:
        """Pointer to the next piece, when it is there."""
        ring, number = self.ring, self.next
        again = number - 1 + ring.slots  # what the first warp has finished last leaves room for this one
        if number and again < len(ring.pieces):
            if_(self.group.thread == 0, lambda: self._ask(again))
        self.barriers.full(number % ring.slots).wait(self._parity(number))
        return self._slot(number)

    def release(self) -> None:
        """The calling warp has read the piece."""
        sync_warp()
        empty = self.barriers.empty(self.next % self.ring.slots)
        if_(lane_id(self.group.thread) == 0, empty.arrive)
        self.next += 1

    def _ask(self, number: int) -> None:
        slot, (layer, first) = number % self.ring.slots, self.ring.pieces[number]
        map_, full = self.ring.maps[layer], self.barriers.full(slot)
        self.barriers.empty(slot).wait(self._parity(number) ^ 1)
        boxes = [
            (column, term)
            for term in range(first, min(first + self.ring.terms[layer], map_.shape[1]), PANEL_COLS)
            for column in range(0, map_.shape[0], map_.box[0])
        ]
        full.arrive_and_expect(len(boxes) * map_.box_bytes)
        source = self.task.tensor_map(sorted(self.ring.maps).index(layer))
        for place, box in enumerate(boxes):
            tma.load_tile(offset(self._slot(number), place * map_.box_bytes), source, full, box)

    def _slot(self, number: int) -> Value:
        return offset(self.shared, number % self.ring.slots * self.ring.slot_bytes)

    def _parity(self, number: int) -> Value:
        """That of the phase in which piece `number` is in its slot."""
        before = number // self.ring.slots
        return i32(before & 1) if self.ring.uses(number % self.ring.slots) % 2 == 0 else (self.turn + before) & 1
