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

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.contraction.evaluate import Evaluator, Sides
from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_all
from kitsune_mlir.codegen.gpu.emit.convert import unpack_values
from kitsune_mlir.codegen.gpu.emit.inline_ptx import fresh
from kitsune_mlir.codegen.gpu.emit.memory import load, offset
from kitsune_mlir.codegen.gpu.emit.value import Value, bitcast, cast, constant, i32, i64, select, unpack
from kitsune_mlir.codegen.gpu.emit.vectors import load_elements, store_elements
from kitsune_mlir.codegen.gpu.engines.conv import stage_tiles
from kitsune_mlir.codegen.gpu.engines.conv.match import CHANNEL, Convolution, match
from kitsune_mlir.codegen.gpu.engines.conv.tiles import FEW_TAPS, depthwise_run
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.codegen.gpu.interface.engine import Engine
from kitsune_mlir.codegen.gpu.interface.offer import Candidate, Offer
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions, Plan
from kitsune_mlir.codegen.gpu.interface.tile_index import delinearize
from kitsune_mlir.codegen.gpu.interface.traits import Traits
from kitsune_mlir.codegen.gpu.interface.window import Window
from kitsune_mlir.dialects.sizes import element_bytes, wide_dims
from kitsune_mlir.dialects.tile_records import Load, TaskView
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

    def make_plan(self, task: TaskView, options: KernelOptions) -> Plan:
        conv = match(task, depthwise=True)
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
    size = element_bytes(conv.image.buffer.element)
    width = VECTOR_BYTES // size
    for window in map(_window, (conv.image, conv.weight)):
        width = min(width, window.align((CHANNEL,)) // size if window.stride(CHANNEL) in (0, 1) else 1)
    return math.gcd(width, conv.features)


def _window(load: Load) -> Window:
    """The image or the weight, whose last dimension is the channels."""
    dims = wide_dims(load.sizes)
    return Window.of(load, [CHANNEL if dim == len(load.sizes) - 1 else dim for dim in dims])


class _Tile(Evaluator[int]):
    """Emits one tile; places are numbers of an item's pixels."""

    def __init__(self, plan: DepthwisePlan, tile: TileContext):
        super().__init__(plan.conv.body, tile, [plan.conv.op])
        self.plan = plan
        self.stores = [Window.of(store, self.body.value_sides(store.tensor)) for store in self.body.task.stores]
        self.size = element_bytes(plan.conv.image.buffer.element)
        self.weight = _window(plan.conv.weight).start(tile)
        self.starts = [
            functools.reduce(lambda a, b: a + b, [i32(-axis.low), *map(tile.index, axis.starts)]) for axis in plan.conv.axes
        ]
        self.image = tile.pointer(plan.conv.image.buffer)
        self.places: list[Value] = []
        self.channel: Value = i32(0)
        self.totals: list[list[Value]] = []

    def run(self) -> None:
        """All items, dealt out to the threads."""
        plan, task = self.plan, self.tile.task
        count = plan.groups * math.prod(plan.counts)
        words = plan.conv.taps * plan.width * self.size // 4
        crossed = any(map(self._crosses, self.stores))
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

        def add_line(outer: Value | int, taps: Sequence[Value | int], totals: list[list[Value]]) -> list[list[Value]]:
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

    def _store(self, outer: Sequence[Value], first: Value, totals: list[list[Value]]) -> None:
        last, self.totals = self.plan.conv.axes[-1], totals
        stores = [(window, store.tensor) for window, store in zip(self.stores, self.body.task.stores, strict=True)]
        across: list[list[list[Value]]] = [[] for _ in stores]
        for pixel in range(self.plan.run):
            self.places = [*outer, first + pixel]
            for found, (window, tensor) in zip(across, stores, strict=True):
                if self._crosses(window):
                    found.append(self.evaluate(tensor, pixel))

            def write(pixel: int = pixel) -> None:
                for window, tensor in stores:
                    if not self._crosses(window):
                        self._write(window, self.evaluate(tensor, pixel))

            if_all([self.places[-1] < last.size if pixel and last.size % self.plan.run else None], write)
        self.places = [*outer, first]
        for found, (window, _) in zip(across, stores, strict=True):
            if found:
                self._write_across(window, found)

    def _crosses(self, window: Window) -> bool:
        """Whether pixels, not channels, are neighbours in what is stored, so that an item stores its pixels of each channel."""
        last, run = len(self.plan.conv.axes) - 1, self.plan.run
        return window.stride(last) == 1 and window.stride(CHANNEL) not in (0, 1) and self.plan.conv.axes[-1].size % run == 0

    def _write_across(self, window: Window, found: list[list[Value]]) -> None:
        """Store an item's pixels, channel by channel."""
        align, step = window.align((len(self.plan.conv.axes) - 1,)), window.stride(CHANNEL) * window.bytes
        place = self._start(window)
        for n in range(self.plan.width):
            store_elements([values[n] for values in found], offset(place, n * step), window.dtype, align)

    def where(self, sides: Sides, place: int) -> int | None:
        return place if any(side != CHANNEL for side in sides) else None

    def distinct(self, sides: Sides) -> list[int]:
        return [element if CHANNEL in sides else 0 for element in range(self.plan.width)]

    def sums(self, product: ir.Operation, place: int) -> list[Value]:
        return self.totals[place]

    def read(self, load: Load, sides: Sides, place: int) -> list[Value]:
        window = Window.of(load, sides)
        read = functools.partial(load_elements, dtype=window.dtype, constant=window.constant)
        found = [value for place, count, align in self._accesses(window) for value in read(place, count=count, align=align)]
        return found if window.along(CHANNEL) else found * self.plan.width

    def _write(self, window: Window, values: Sequence[Value]) -> None:
        taken = iter(values)
        for place, count, align in self._accesses(window):
            store_elements([next(taken) for _ in range(count)], place, window.dtype, align)

    def _accesses(self, window: Window) -> list[tuple[Value, int, int]]:
        """Pointers to an item's elements of a tensor at the current pixel, how many are at each, and their alignment."""
        place, width, size = self._start(window), self.plan.width, window.bytes
        if not window.along(CHANNEL):
            return [(place, 1, size)]
        if window.stride(CHANNEL) == 1:
            return [(place, width, window.align((CHANNEL,)))]
        return [(offset(place, n * window.stride(CHANNEL) * size), 1, size) for n in range(width)]

    def _start(self, window: Window) -> Value:
        """Pointer to an item's first element at the current pixel."""
        place = window.start(self.tile)
        for dim, at in [*enumerate(self.places), (CHANNEL, self.channel)]:
            if window.along(dim):
                place = offset(place, i64(at * window.stride(dim)) * window.bytes)
        return place


def _within(at: Value, extent: int, padded: bool, exists: Value | None, ragged: bool = False) -> tuple[Value, Value | None]:
    """An index that may be read, and whether it is the one that was asked for."""
    if not padded and not ragged:
        return at, exists
    inside = at.below(extent)  # as unsigned: what is negative is not either
    return select(inside, at, 0), inside if exists is None else exists & inside
