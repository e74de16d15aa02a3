"""Windows of loads and stores that pass through shared memory: whole, in bulk copies, whatever their rows' lengths.

Rows of 13 bf16 begin at any even address, so threads can read them two bytes at a time only; but a tile of such rows is one
piece of memory. It is brought in by one bulk copy, tiles ahead of its use, and rows are taken apart in shared memory, where
narrow accesses are cheap. Results go the same way back. A long row, which several passes go over, stays there between them.

Bulk copies begin and end at multiples of 16 bytes. A tile that does not is brought in with what lies around it in the same
16 bytes; on the way out, its first and last few bytes are stored by threads.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.control_flow import if_
from kitsune_mlir.codegen.gpu.emit.memory import load, offset, store
from kitsune_mlir.codegen.gpu.emit.value import Value, i32, maximum, minimum, select
from kitsune_mlir.codegen.gpu.engines.simt.affine_index import Linear, add, emit, scale
from kitsune_mlir.codegen.gpu.engines.simt.cluster_rows import Cluster
from kitsune_mlir.codegen.gpu.engines.simt.evaluate import Evaluator
from kitsune_mlir.codegen.gpu.engines.simt.graph import Graph
from kitsune_mlir.codegen.gpu.engines.simt.memory import SharedWindow
from kitsune_mlir.codegen.gpu.interface.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.sm90 import tma
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Barrier, fence_async_shared
from kitsune_mlir.dialects.sizes import element_bytes
from kitsune_mlir.dialects.tile_records import Load, Store

__all__ = ["EDGE", "Pipeline", "StagingSlot", "Staging", "is_contiguous", "stage", "start_of"]

ALIGN = 128
"""Where windows begin in shared memory."""

MOST_PARTS = 8
"""Pieces in which a window comes."""

EDGE = 16
"""Bulk copies begin and end at multiples of this."""


@dataclasses.dataclass(frozen=True)
class StagingSlot:
    """A window's place in a slot.

    Attributes:
        window: the load or store.
        start: bytes from the slot's beginning.
        bytes: size of the window, or of a block's share of it.
        align: what its address in global memory is known to be a multiple of, at most 16.
        again: further tensors that are loads of the same window: a row that is read in several passes is one.
    """

    window: Load | Store
    start: int
    bytes: int
    align: int
    again: tuple[ir.Value, ...] = ()

    @property
    def room(self) -> int:
        """Bytes that it takes in shared memory."""
        return _room(self.bytes, self.align)


@dataclasses.dataclass(frozen=True)
class Staging:
    """What goes through shared memory.

    Attributes:
        loads, stores: windows, each with its place in a slot.
        slots: tiles that are there at a time, the one in work included.
        load_bytes, store_bytes: size of a slot of each kind. There are two slots of stores where tiles follow each other.
        parts: pieces that a slot's loads come in, each with a barrier of its own: work on the first begins while others come.
        part_steps: of the schedule, that a piece is for; `part_elements` of each load.
    """

    loads: tuple[StagingSlot, ...]
    stores: tuple[StagingSlot, ...]
    slots: int
    load_bytes: int
    store_bytes: int
    parts: int = 1
    part_steps: int = 0
    part_elements: int = 0

    def in_parts(self, steps: int, group: int, elements: int) -> Staging:
        """The same, in pieces of whole groups of the schedule's steps, if all loads begin at multiples of 16 bytes.

        Args:
            steps: of the schedule, of `elements` elements each, `group` at a time.
        """
        groups = -(-steps // group)
        each = -(-groups // min(MOST_PARTS, groups))
        if groups < 2 or any(place.align < EDGE for place in self.loads):
            return self
        parts = -(-groups // each)
        return dataclasses.replace(self, parts=parts, part_steps=each * group, part_elements=each * group * elements)

    @property
    def bytes(self) -> int:
        return self.slots * self.load_bytes + min(2, self.slots) * self.store_bytes


def is_contiguous(window: Load | Store) -> bool:
    """Whether a window is one piece of its buffer."""
    partial = False
    for size, extent in zip(reversed(window.sizes), reversed(window.buffer.shape), strict=True):
        if partial and size != 1:
            return False
        partial = partial or size != extent
    return True


def stage(
    graph: Graph, tile: TileContext, loads: Sequence[Load], stores: Sequence[Store], slots: int, share: int | None = None
) -> Staging:
    """Places for some contiguous windows.

    Args:
        tile: any tile (of a probe): alignment is read off the offsets.
        share: elements of each window that a block of a cluster has; None: all.
    """
    evaluator = Evaluator(graph, tile, 1)

    def places(windows: Sequence[Load | Store]) -> tuple[tuple[StagingSlot, ...], int]:
        found: dict[object, StagingSlot] = {}
        end = 0
        for window in windows:
            same = _same(window)
            if same in found:
                assert isinstance(window, Load)
                found[same] = dataclasses.replace(found[same], again=(*found[same].again, window.tensor))
                continue
            size = element_bytes(window.buffer.element)
            align = math.gcd(start_of(evaluator, window).multiple * size, window.buffer.offset, EDGE)
            bytes = (share or math.prod(window.sizes)) * size
            found[same] = StagingSlot(window, end, bytes, align)
            end += _room(bytes, align)
        return tuple(found.values()), end

    (inward, load_bytes), (outward, store_bytes) = places(loads), places(stores)
    return Staging(inward, outward, slots, load_bytes, store_bytes)


def _same(window: Load | Store) -> object:
    """Equal for loads of the same elements."""
    if isinstance(window, Store):
        return window
    return window.buffer.memory, tuple(window.offsets), tuple(window.sizes)


def _room(bytes: int, align: int) -> int:
    return -(-(bytes + EDGE) // ALIGN) * ALIGN if align < EDGE or bytes % EDGE else -(-bytes // ALIGN) * ALIGN


def start_of(evaluator: Evaluator, window: Load | Store) -> Linear:
    """The window's first element in its buffer."""
    total = Linear()
    for start, stride in zip(window.offsets, window.buffer.strides, strict=True):
        total = add(total, scale(evaluator.outer(start), stride))
        assert isinstance(total, Linear)
    return total


class Pipeline:
    """The copies of one task, emitted around the code of its tiles.

    Every thread runs `run`; thread 0 starts the copies. Loads of a tile start `slots - 1` tiles ahead, in the slot that the
    tile before the current one has left.
    """

    def __init__(self, staging: Staging, graph: Graph, task: TaskContext, cluster: Cluster | None = None):
        self.staging, self.graph, self.task, self.cluster = staging, graph, task, cluster
        self.outputs = offset(task.shared, staging.slots * staging.load_bytes)
        self.posts = bool(task.view.posts)

    def run(self, emit, prepare: Callable[[], None] | None = None) -> None:
        """All tiles of the block; `emit(tile, windows, arrive)` emits the work on one, `prepare` what comes before all of it.

        `windows` are by tensor. Where they come in parts, `arrive(step)` waits for what a step of the schedule needs.
        """
        slots, task = self.staging.slots, self.task

        def ahead() -> None:
            for number in range(slots - 1):
                self._load(task.first + task.blocks * number, i32(number))

        if_(task.thread == 0, ahead)
        if prepare is not None:
            prepare()
        if self.cluster is not None and slots > 1:
            self.cluster.meet()

        def body(tile: TileContext, slot: Value, parity: Value, turn: Value) -> list[Value]:
            tile.wait()
            if self.staging.stores and slots == 1:
                # The bulk copy of the tile before may still read what this one writes over.
                if_(task.thread == 0, lambda: tma.wait(0, read=True))
                task.sync()
            free = select(slot == 0, i32(slots - 1), slot - 1)
            if_(task.thread == 0, lambda: self._load(tile.number + task.blocks * (slots - 1), free))
            if self.cluster is not None and slots == 1:  # there is one tile, whose loads are under way
                self.cluster.meet()
            arrive = functools.partial(self._arrive, slot, parity) if self.staging.parts > 1 else None
            if arrive is None and self.staging.loads:
                self._barrier(slot).wait(parity)
            evaluator = Evaluator(self.graph, tile, 1)
            windows = self._windows(evaluator, slot, turn)
            emit(tile, windows, arrive)
            if self.staging.stores:
                self._store_begin()
                self._store(evaluator, windows)
            if self.posts or not self.staging.stores:
                tile.finish()
            following = slot + 1
            wraps = following == slots
            return [select(wraps, i32(0), following), select(wraps, parity ^ 1, parity), turn ^ 1 if slots > 1 else turn]

        task.for_each_tile(body, [i32(0), i32(0), i32(0)])
        if self.staging.stores:
            if_(task.thread == 0, lambda: tma.wait(0))
            task.sync()

    def _barrier(self, slot: Value, part: Value | int = 0) -> Barrier:
        return Barrier(offset(self.task.barrier_base, (slot * self.staging.parts + part) * Barrier.BYTES))

    def _arrive(self, slot: Value, parity: Value, step: Value) -> None:
        """Wait for the part that a step of the schedule needs."""
        self._barrier(slot, step // self.staging.part_steps).wait(parity)

    def _load(self, number: Value, slot: Value) -> None:
        """Start the copies of tile `number`, if there is one; one thread."""
        if not self.staging.loads:
            return

        def start() -> None:
            tile = TileContext(self.task, number)
            tile.poll_by_thread()
            evaluator = Evaluator(self.graph, tile, 1)
            sources = [(place, *self._address(evaluator, place)) for place in self.staging.loads]
            for part in range(self.staging.parts):
                self._load_part(slot, part, sources)

        if_(number < self.task.tiles, start)

    def _load_part(self, slot: Value, part: int, sources: Sequence[tuple[StagingSlot, Value, Value | None]]) -> None:
        """Start the copies of one piece of a tile; `sources` are the addresses that `_address` gives for each load."""
        copies, total = [], i32(0)
        for place, source, shift in sources:
            bytes = self._bytes(place)
            if shift is not None:
                source = offset(source, 0 - shift)
                bytes = shift + bytes
            bytes = (bytes + (EDGE - 1)) & -EDGE
            size = self.staging.part_elements * element_bytes(place.window.buffer.element)
            if self.staging.parts > 1:
                bytes = minimum(maximum(bytes - part * size, 0), size)
            target = offset(self.task.shared, slot * self.staging.load_bytes + place.start + part * size)
            copies.append((target, offset(source, part * size), bytes))
            total = total + bytes
        barrier = self._barrier(slot, part)
        barrier.arrive_and_expect(total)
        for target, source, bytes in copies:
            if part:  # the last block of a cluster may have fewer pieces
                if_(bytes > 0, lambda t=target, s=source, b=bytes: tma.load_span(t, s, b, barrier))
            else:
                tma.load_span(target, source, bytes, barrier)

    def _bytes(self, place: StagingSlot) -> Value:
        """Of a window, or of the block's share of it: the last block of a cluster may have less than the others."""
        if self.cluster is None:
            return i32(place.bytes)
        whole = math.prod(place.window.sizes) * element_bytes(place.window.buffer.element)
        return minimum(i32(place.bytes), whole - self.cluster.rank * place.bytes)

    def _address(self, evaluator: Evaluator, place: StagingSlot) -> tuple[Value, Value | None]:
        """The address of what the block has of a window, and how far it lies behind a multiple of 16 (None: it is one)."""
        buffer = place.window.buffer
        first = start_of(evaluator, place.window)
        if self.cluster is not None:
            first = add(first, self.cluster.first)
        moved = scale(first, element_bytes(buffer.element))
        assert isinstance(moved, Linear)
        start = emit(moved, "i64" if buffer.bytes >= 1 << 31 else "i32")
        shift = None if place.align == EDGE else (i32(emit(moved, "i32")) & (EDGE - 1))
        return offset(evaluator.tile.pointer(buffer), start), shift

    def _windows(self, evaluator: Evaluator, slot: Value, turn: Value) -> dict[ir.Value, SharedWindow]:
        staging, found = self.staging, {}
        for places, base in (
            (staging.loads, offset(self.task.shared, slot * staging.load_bytes)),
            (staging.stores, offset(self.outputs, turn * staging.store_bytes)),
        ):
            for place in places:
                pointer = offset(base, place.start)
                _, shift = self._address(evaluator, place)
                if shift is not None:
                    pointer = offset(pointer, shift)
                if self.cluster is not None:  # indices are those of the whole row
                    pointer = offset(pointer, 0 - self.cluster.rank * place.bytes)
                window = SharedWindow(pointer, place.window.buffer.element, tuple(place.window.sizes), place.align)
                found.update((key, window) for key in (_key(place.window), *place.again))
        return found

    def _store_begin(self) -> None:
        """What the tile wrote to shared memory becomes visible to bulk copies, and the other slot of stores is free."""
        fence_async_shared()
        if self.staging.slots > 1:
            if_(self.task.thread == 0, lambda: tma.wait(0, read=True))
        self.task.sync()

    def _store(self, evaluator: Evaluator, windows: dict) -> None:
        whole = all(place.align == EDGE and place.bytes % EDGE == 0 for place in self.staging.stores)
        thread = self.task.thread
        if whole:

            def copy() -> None:
                for place in self.staging.stores:
                    target, _ = self._address(evaluator, place)
                    tma.store_span(target, windows[_key(place.window)].pointer, place.bytes)
                tma.commit()
                if self.posts:
                    tma.wait(0)

            if_(thread == 0, copy)
            return
        for place in self.staging.stores:
            self._store_ragged(evaluator, place, windows[_key(place.window)].pointer)
        if self.posts:
            if_(thread == 0, lambda: tma.wait(0))

    def _store_ragged(self, evaluator: Evaluator, place: StagingSlot, source: Value) -> None:
        """The multiples of 16 bytes by a bulk copy, what sticks out at both ends by threads."""
        # What sticks out is a multiple of what divides start and length; a thread moves at most eight bytes.
        thread, unit = self.task.thread, math.gcd(place.align, place.bytes, 8)
        target, shift = self._address(evaluator, place)
        head = i32(0) if shift is None else (0 - shift) & (EDGE - 1)
        middle = (i32(place.bytes) - head) & -EDGE
        tail = i32(place.bytes) - head - middle

        def copy() -> None:
            tma.store_span(offset(target, head), offset(source, head), middle)
            tma.commit()

        if_(thread == 0, copy)

        def move(at: Value) -> None:
            store(load(offset(source, at), f"i{8 * unit}"), offset(target, at))

        # Both ends are shorter than 16 bytes: the first 16 threads have the head, the next 16 the tail.
        place_in = (thread % EDGE) * unit
        if_(thread.below(EDGE) & (place_in < head), lambda: move(place_in))
        if_((thread - EDGE).below(EDGE) & (place_in < tail), lambda: move(head + middle + place_in))


def _key(window: Load | Store):
    return window.tensor if isinstance(window, Load) else window
