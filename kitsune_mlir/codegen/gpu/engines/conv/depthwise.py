"""The `depthwise` engine: convolutions whose every channel has a weight of its own, channels innermost.

Nothing is multiplied that tensor cores could share, so threads do it: an item is a few neighbouring channels (16 bytes) of some
pixels along the last dimension. Its loads are whole vectors, each of which serves all pixels of the item that see it; what is
beyond the image is not read, and counts as zero. A thread's items have the same channels where that is possible, so that their
weights stay in registers. Rows of pixels that tiles and items share come from the caches.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import ClassVar

from kitsune_mlir.codegen.gpu.emit.control_flow import for_
from kitsune_mlir.codegen.gpu.emit.convert import unpack_values
from kitsune_mlir.codegen.gpu.emit.inline_ptx import fresh
from kitsune_mlir.codegen.gpu.emit.memory import load, offset
from kitsune_mlir.codegen.gpu.emit.value import Value, bitcast, cast, constant, i32, i64, select, unpack
from kitsune_mlir.codegen.gpu.emit.vectors import load_elements, store_elements
from kitsune_mlir.codegen.gpu.engines.conv import stage_tiles
from kitsune_mlir.codegen.gpu.engines.conv.epilogue_eval import Block, Sides, Steps, guarded, neighbours_align
from kitsune_mlir.codegen.gpu.engines.conv.match import CHANNEL, Convolution, match
from kitsune_mlir.codegen.gpu.engines.conv.tiles import FEW_TAPS, depthwise_run
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.codegen.gpu.interface.engine import Engine
from kitsune_mlir.codegen.gpu.interface.offer import Candidate, Offer
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions, Plan
from kitsune_mlir.codegen.gpu.interface.tile_index import delinearize
from kitsune_mlir.codegen.gpu.interface.traits import Traits
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.dialects.sizes import element_bytes
from kitsune_mlir.dialects.tile_records import Load, Store, TaskView
from kitsune_mlir.machine.rates import ENGINES
from kitsune_mlir.machine.target import Target

__all__ = ["DepthwiseEngine"]

THREADS = 256
REGISTERS = 128
VECTOR_BYTES = 16
MOST_KEPT = 40
"""Registers for a thread's weights, as they are in memory."""


@dataclasses.dataclass(frozen=True)
class DepthwisePlan:
    """What the engine decided.

    Attributes:
        conv: the body.
        width: channels of an item.
        run: its pixels along the image's last dimension.
    """

    conv: Convolution
    width: int
    run: int

    @property
    def groups(self) -> int:
        """Items side by side along the channels."""
        return self.conv.features // self.width

    @property
    def counts(self) -> tuple[int, ...]:
        """Items along each dimension of the image."""
        *outer, last = (axis.size for axis in self.conv.axes)
        return (*outer, -(-last // self.run))


class DepthwiseEngine(Engine):
    """See the module's docstring."""

    name: ClassVar[str] = "depthwise"
    traits: ClassVar[Traits] = Traits(ENGINES["depthwise"])

    def offer(self, candidate: Candidate, machine: Target, options: KernelOptions) -> Offer | Decline:
        return stage_tiles.offer(self.name, candidate, machine, depthwise=True)

    def plan(self, task: TaskView, options: KernelOptions) -> Plan | Decline:
        try:
            conv = match(task, depthwise=True)
        except MatchFailure as reason:
            return Decline(self.name, str(reason))
        items = task.tiles * conv.features * math.prod(axis.size for axis in conv.axes)
        width = _width(conv)
        found = DepthwisePlan(conv, width, depthwise_run(conv.axes[-1].size, conv.taps, items // width, options.workers))
        return Plan(
            engine=self.name,
            task=task,
            threads=THREADS,
            registers=REGISTERS,
            streaming=True,
            parameters={
                "tile": [*(axis.size for axis in conv.axes), conv.features],
                "item": [found.run, width],
                "taps": [axis.taps for axis in conv.axes],
            },
            private=found,
        )

    def emit_tile(self, plan: Plan, tile: TileContext) -> None:
        tile.wait()
        _Tile(plan.private, tile).run()
        # Without posts nobody waits for this tile inside of the kernel, and warps may run ahead.
        if plan.task.posts:
            tile.finish()


def _width(conv: Convolution) -> int:
    """Channels that one access takes."""
    records = [conv.image, conv.weight]
    width = VECTOR_BYTES // element_bytes(conv.image.buffer.element)
    while width > 1:
        whole = conv.features % width == 0 and all(record.buffer.strides[-1] == 1 for record in records)
        if whole and all(neighbours_align(record, width) for record in records):
            return width
        width //= 2
    return 1


class _Tile(Steps):
    """Emits one tile."""

    def __init__(self, plan: DepthwisePlan, tile: TileContext):
        super().__init__(plan.conv, tile, count=plan.width)
        self.plan = plan
        self.size = element_bytes(plan.conv.image.buffer.element)
        self.weight = self.start(plan.conv.weight)
        self.starts = [
            functools.reduce(lambda a, b: a + b, [i32(-axis.low), *map(tile.index, axis.starts)]) for axis in plan.conv.axes
        ]
        self.image = tile.pointer(plan.conv.image.buffer)
        self.places: list[Value] = []
        self.channel: Value = i32(0)
        self.totals: Block = []

    def run(self) -> None:
        """All items, dealt out to the threads."""
        plan, task = self.plan, self.tile.task
        count = plan.groups * math.prod(plan.counts)
        words = plan.conv.taps * plan.width * self.size // 4
        crossed = any(self._crosses(store) for store in plan.conv.task.stores)
        if task.threads % plan.groups == 0 and words <= MOST_KEPT and not crossed:
            self.channel = task.thread % plan.groups * plan.width
            kept = [self._raw(self._weight(tap)) for tap in range(plan.conv.taps)]
        else:
            kept = None

        def item(number: Value) -> None:
            # Neighbouring threads have neighbouring channels or, where results have pixels innermost, neighbouring pixels.
            extents = (plan.groups, *plan.counts) if crossed else (*plan.counts, plan.groups)
            places = [*delinearize(number, extents)]
            group = places.pop(0 if crossed else -1)
            self._item(places, group * plan.width, kept)

        for_(task.thread, count, task.threads, item)

    # --- one item --------------------------------------------------------------------------------------------------------

    def _item(self, places: list[Value], channel: Value, kept: list[list[Value]] | None) -> None:
        plan, axes = self.plan, self.plan.conv.axes
        self.channel, self.known = channel, {}
        first = places[-1] * plan.run
        last = axes[-1]
        zero = constant(0.0, "f32")
        totals = [[zero] * plan.width for _ in range(plan.run)]

        def add_line(outer: Value | int, taps: Sequence[Value | int], totals: list[Block]) -> list[Block]:
            """What the taps of one line of the image add."""
            line, exists = self._line(places[:-1], taps)
            seen: dict[int, list[Value]] = {}
            for tap in range(last.taps):
                number = outer * last.taps + tap
                if kept is None or isinstance(number, Value):
                    raw = self._raw(self._weight(number))
                else:
                    raw = [fresh(word) if str(word.type) == "i32" else word for word in kept[number]]
                weight = self._values(raw)
                for pixel in range(plan.run):
                    column = pixel * last.stride + tap * last.dilation
                    if column not in seen:
                        seen[column] = self._pixels(line, exists, self.starts[-1] + first * last.stride + column)
                    totals[pixel] = [t + x * w for t, x, w in zip(totals[pixel], seen[column], weight, strict=True)]
            return totals

        extents = [axis.taps for axis in axes[:-1]]
        if kept is None and plan.conv.taps > FEW_TAPS:
            # A loop: unrolled, loads of all lines come first, and 5 x 5 taps spill 700 bytes.
            def step(outer: Value, *flat: Value) -> list[Value]:
                blocks = [list(flat[n : n + plan.width]) for n in range(0, len(flat), plan.width)]
                return [value for block in add_line(outer, delinearize(outer, extents), blocks) for value in block]

            flat = for_(0, math.prod(extents), 1, step, [value for block in totals for value in block])
            totals = [flat[n : n + plan.width] for n in range(0, len(flat), plan.width)]
        else:
            for outer, taps in enumerate(itertools.product(*map(range, extents))):
                totals = add_line(outer, taps, totals)
        self._store(places[:-1], first, totals)

    def _line(self, places: Sequence[Value], taps: Sequence[Value | int]) -> tuple[Value, Value | None]:
        """Elements from the image's first to a line of pixels, and whether there is such a line."""
        total: Value = self.tile.index(self.plan.conv.image.offsets[-1]) + self.channel
        exists: Value | None = None
        buffer = self.plan.conv.image.buffer
        for dim, (axis, place, tap) in enumerate(zip(self.plan.conv.axes, places, taps, strict=False)):
            at = self.starts[dim] + place * axis.stride + tap * axis.dilation
            at, exists = _within(at, buffer.shape[dim], axis.padded, exists)
            total = total + at * buffer.strides[dim]
        return total, exists

    def _pixels(self, line: Value, exists: Value | None, column: Value) -> list[Value]:
        """A vector of the image; zeros where there is none."""
        buffer, axis = self.plan.conv.image.buffer, self.plan.conv.axes[-1]
        dim = len(self.plan.conv.axes) - 1
        column, exists = _within(column, buffer.shape[dim], axis.padded, exists, axis.size % self.plan.run != 0)
        raw = self._raw(offset(self.image, i64(line + column * buffer.strides[dim]) * self.size))
        if exists is not None:
            raw = [
                select(exists, word, constant(0, word.type) if str(word.type) == "i32" else constant(0.0, word.type))
                for word in raw
            ]
        return self._values(raw)

    def _weight(self, tap: Value | int) -> Value:
        """Pointer to a vector of the weight."""
        buffer = self.plan.conv.weight.buffer
        place, rest = 0, tap
        for extent, stride in zip(reversed(buffer.shape[:-1]), reversed(buffer.strides[:-1]), strict=True):
            place, rest = place + rest % extent * stride, rest // extent
        return offset(offset(self.weight, place * self.size), i64(self.channel) * self.size)

    def _raw(self, pointer: Value) -> list[Value]:
        """What an item's vector at `pointer` is in registers: words, or one element where it is less than a word."""
        constant_ = self.plan.conv.image.buffer.role == "input" and self.plan.conv.weight.buffer.role == "input"
        words = self.plan.width * self.size // 4
        if words == 0:
            return [load(pointer, self.plan.conv.dtype, self.size, constant_)]
        if words == 1:
            return [load(pointer, "i32", None, constant_)]
        return unpack(load(pointer, f"vector<{words}xi32>", None, constant_))

    def _values(self, raw: list[Value]) -> list[Value]:
        if str(raw[0].type) != "i32":
            return [cast(raw[0], "f32")]
        return unpack_values(raw, self.plan.conv.dtype) if self.size == 2 else [bitcast(word, "f32") for word in raw]

    # --- what follows ----------------------------------------------------------------------------------------------------

    def _store(self, outer: Sequence[Value], first: Value, totals: list[Block]) -> None:
        last, stores = self.plan.conv.axes[-1], self.conv.task.stores
        across: dict[int, list[Block]] = {number: [] for number, store in enumerate(stores) if self._crosses(store)}
        for pixel, sums in enumerate(totals):
            self.places, self.totals = [*outer, first + pixel], sums
            self.next_pixels()
            for number, blocks in across.items():
                tensor = stores[number].tensor
                blocks.append(self.evaluate(tensor, self.conv.body.value_sides(tensor)))

            def write() -> None:
                for number, store in enumerate(stores):
                    if number not in across:
                        sides = self.conv.body.value_sides(store.tensor)
                        self._write(store, sides, self.evaluate(store.tensor, sides))

            guarded(write, self.places[-1] < last.size if pixel and last.size % self.plan.run else None)
        self.places = [*outer, first]
        for number, blocks in across.items():
            self._write_across(stores[number], blocks)

    def _crosses(self, store: Store) -> bool:
        """Whether pixels, not channels, are neighbours in what is stored, so that an item stores its pixels of each channel."""
        last, run = len(self.conv.axes) - 1, self.plan.run
        strides = self.strides(store, self.conv.body.value_sides(store.tensor))
        return strides.get(last) == 1 and strides.get(CHANNEL, 1) != 1 and self.conv.axes[-1].size % run == 0

    def _write_across(self, store: Store, blocks: list[Block]) -> None:
        """Store an item's pixels, channel by channel."""
        strides, dtype = self.strides(store, self.conv.body.value_sides(store.tensor)), str(store.buffer.element)
        size, together = element_bytes(store.buffer.element), self.plan.run
        while together > 1 and not neighbours_align(store, together):
            together //= 2
        place = self.start(store)
        for dim, at in enumerate(self.places):
            if dim in strides:
                place = offset(place, i64(at * strides[dim]) * size)
        place = offset(place, i64(self.channel * strides[CHANNEL]) * size)
        for n in range(self.plan.width):
            values = [block[n] for block in blocks]
            store_elements(values, offset(place, n * strides[CHANNEL] * size), dtype, min(16, together * size))

    def sums(self) -> Block:
        return self.totals

    def read(self, load: Load, sides: Sides) -> Block:
        strides = self.strides(load, sides)
        constant_ = load.buffer.role == "input"
        return self._access(
            load,
            strides,
            lambda place, count, align: load_elements(place, str(load.buffer.element), count, None, align, constant_),
        )

    def _write(self, store: Store, sides: Sides, block: Block) -> None:
        strides, dtype = self.strides(store, sides), str(store.buffer.element)
        taken = iter(block)
        self._access(
            store,
            strides,
            lambda place, count, align: store_elements([next(taken) for _ in range(count)], place, dtype, align) or [],
        )

    def _access(self, record: Load | Store, strides: dict[int, int], access) -> Block:
        """Load or store an item's elements of a tensor at the current pixel: by one access where they are neighbours."""
        size, width = element_bytes(record.buffer.element), self.plan.width
        place = self.start(record)
        for dim, at in enumerate(self.places):
            if dim in strides:
                place = offset(place, i64(at * strides[dim]) * size)
        if CHANNEL not in strides:
            return access(place, 1, size) * width
        place = offset(place, i64(self.channel * strides[CHANNEL]) * size)
        if strides[CHANNEL] == 1:
            together = width
            while together > 1 and not neighbours_align(record, together):
                together //= 2
            return access(place, width, min(16, together * size))
        return [value for n in range(width) for value in access(offset(place, n * strides[CHANNEL] * size), 1, size)]


def _within(at: Value, extent: int, padded: bool, exists: Value | None, ragged: bool = False) -> tuple[Value, Value | None]:
    """An index that may be read, and whether it is the one that was asked for."""
    if not padded and not ragged:
        return at, exists
    inside = at.below(extent)  # as unsigned: what is negative is not either
    return select(inside, at, 0), inside if exists is None else exists & inside
