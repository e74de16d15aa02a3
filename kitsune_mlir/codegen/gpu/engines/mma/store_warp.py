"""The storing role of a product: one thread that stores what the consumers staged, and posts when a tile is in memory.

Consumers hand over slices of results (`mma.epilogue` stages them) through a ring of slots each, and tiles that they stored
themselves through a ring of announcements. So they go on with the next tile while this one is on its way.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from kitsune_mlir.codegen.gpu.contraction.axes import COL, ROW
from kitsune_mlir.codegen.gpu.contraction.split_k import Pieces
from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_
from kitsune_mlir.codegen.gpu.emit.memory import offset
from kitsune_mlir.codegen.gpu.emit.value import Value
from kitsune_mlir.codegen.gpu.engines.mma.plan import MmaPlan
from kitsune_mlir.codegen.gpu.engines.mma.rasterize import ordered
from kitsune_mlir.codegen.gpu.engines.mma.tma_epilogue import SLOTS, Result
from kitsune_mlir.codegen.gpu.interface.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.interface.operands import cache_of
from kitsune_mlir.codegen.gpu.sm90 import tma
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Barrier, Ring, Slot, fence_async

__all__ = ["StoreRing", "Storer"]


@dataclasses.dataclass(frozen=True)
class StoreRing:
    """Where consumers and the storing thread meet."""

    plan: MmaPlan
    task: TaskContext

    def ring(self, group: Value | int) -> Ring:
        """Slots of staged slices of a warpgroup."""
        start = offset(self.task.barrier_base, self.plan.stage_barriers * Barrier.BYTES)
        return Ring(offset(start, group * Ring.bytes(SLOTS)), SLOTS)

    def announcements(self) -> Ring:
        """Tiles whose direct stores the consumers have made."""
        staged = self.plan.geometry.groups * Ring.bytes(SLOTS) if self.plan.results else 0
        return Ring(offset(self.task.barrier_base, self.plan.stage_barriers * Barrier.BYTES + staged), SLOTS)

    def pointer(self, group: Value | int, slot: Value) -> Value:
        """A slot's slice in shared memory."""
        bytes = self.plan.slot_bytes
        start = offset(self.task.shared, self.plan.stages * self.plan.stage_bytes)
        return offset(offset(start, group * (SLOTS * bytes)), slot * bytes)


class Storer:
    """Emits the role; see the module's docstring."""

    def __init__(self, plan: MmaPlan, task: TaskContext):
        self.plan, self.task, self.handover = plan, task, StoreRing(plan, task)

    @property
    def needed(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.plan.results or self.task.view.posts)

    def start(self) -> list[Value]:
        """Where the thread begins in the rings of slices and of announcements."""
        return [*self.handover.ring(0).consumer_start().values, *self.handover.announcements().consumer_start().values]

    def run(self, state: Sequence[Value]) -> list[Value]:
        """All tiles of the block; one thread. Where it is in the rings, before and (returned) afterwards."""

        def step(tile: TileContext, piece: Value, *state: Value) -> list[Value]:
            tile = ordered(tile)
            tile.resolve()
            split = self.plan.split
            if split is None:
                return self._tile(tile, None, *state)
            if not split.whole:
                return self._tile(tile, piece, *state)
            whole, part = (functools.partial(self._tile, tile, one, *state) for one in (None, piece))
            return if_(Pieces(self.plan, self.task).alone(piece), whole, part, ["i32"] * len(state))

        # No wait at the end: shared memory has been read, and who reads the results in this kernel waits for the posts.
        return self.task.for_each_piece(step, state)

    def _tile(self, tile: TileContext, piece: Value | None, *state: Value) -> list[Value]:
        """Store a tile, or this block's part of one of whose pieces it had `piece`."""
        slot, told = Slot(*state[:2]), Slot(*state[2:])
        posts = bool(self.task.view.posts)
        if self.plan.results:
            read = not posts
            slot = self._store(tile, slot, read) if piece is None else self._store_shares(tile, piece, slot, read)
        if self.plan.announces:
            ring = self.handover.announcements()
            ring.full(told.stage).wait(told.parity)
            ring.empty(told.stage).arrive()
            told = ring.next(told)
        if posts:
            fence_async()
            tile.post(1 if piece is None or self.plan.split is None else self.plan.split.pieces)
        return [*slot.values, *told.values]

    def _store(self, tile: TileContext, slot: Slot, read: bool) -> Slot:
        """Store all slices of a tile; with `read` return when shared memory has been read, else when all is written."""
        groups = self.plan.geometry.groups
        rings = [self.handover.ring(group) for group in range(groups)]
        last: tuple[int, Slot] | None = None
        for piece in range(self.plan.geometry.width // self.plan.slice):
            for index, result in enumerate(self.plan.results):
                for group in range(groups):
                    rings[group].full(slot.stage).wait(slot.parity)
                    place = self._place(tile, result, group, piece * self.plan.slice)
                    number = self.plan.load_maps + index
                    source, cache = self.handover.pointer(group, slot.stage), cache_of(result.window.buffer)
                    tma.store_tile(self.task.tensor_map(number), source, place, cache)
                    tma.commit()
                    if last is not None:
                        tma.wait(1, read=True)
                        rings[last[0]].empty(last[1].stage).arrive()
                    last = group, slot
                slot = rings[0].next(slot)
        assert last is not None
        tma.wait(0, read=read)
        rings[last[0]].empty(last[1].stage).arrive()
        return slot

    def _store_shares(self, tile: TileContext, piece: Value, slot: Slot, read: bool) -> Slot:
        """The same for the shares of the columns that the block adds up."""
        assert self.plan.split is not None

        def share(number: Value, *state: Value) -> list[Value]:
            slot = Slot(*state)
            for index, result in enumerate(self.plan.results):
                for group in range(self.plan.geometry.groups):
                    ring = self.handover.ring(group)
                    ring.full(slot.stage).wait(slot.parity)
                    place = self._place(tile, result, group, number * self.plan.share)
                    source = self.handover.pointer(group, slot.stage)
                    tma.store_tile(self.task.tensor_map(self.plan.load_maps + index), source, place)
                    tma.commit()
                    tma.wait(0, read=True)
                    ring.empty(slot.stage).arrive()
                slot = ring.next(slot)
            return slot.values

        slot = Slot(*for_(piece, self.plan.shares, self.plan.split.pieces, share, slot.values))
        tma.wait(0, read=read)
        return slot

    def _place(self, tile: TileContext, result: Result, group: int, col: Value | int) -> list[Value]:
        geometry = self.plan.geometry
        moved = {ROW: 64 * group if geometry.by_rows else 0, COL: col + geometry.part * group}
        return [tile.index(dim.start) + moved.get(dim.side, 0) for dim in result.window.dims]
