"""The main loop of a convolution: two rings of stages, for the image and for the weight, filled by TMA, read by wgmma.

Stages of a ring are numbered over all tiles that a block has of the task. A *step* is one stage of the weight: one tap, `chunk`
channels. `taps_together` steps read the same stage of the image. A piece of a tile is a range of the image's stages.
"""

from __future__ import annotations

import dataclasses
import math

from kitsune_mlir.codegen.gpu import tma, wgmma
from kitsune_mlir.codegen.gpu.barriers import Barrier, Ring
from kitsune_mlir.codegen.gpu.builder import for_, if_
from kitsune_mlir.codegen.gpu.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.conv_plan import PAIRED_ROWS, ConvPlan
from kitsune_mlir.codegen.gpu.memory import offset
from kitsune_mlir.codegen.gpu.mma_split import Pieces
from kitsune_mlir.codegen.gpu.value import Value, i32

__all__ = ["Stages"]


@dataclasses.dataclass(frozen=True)
class _Stage:
    """One stage of a ring, by its number in the block's sequence."""

    ring: Ring
    number: Value

    @property
    def index(self) -> Value:
        return self.number % self.ring.stages

    @property
    def parity(self) -> Value:
        return self.number // self.ring.stages & 1

    def wait_full(self) -> None:
        self.ring.full(self.index).wait(self.parity)

    def wait_empty(self) -> None:
        self.ring.empty(self.index).wait(self.parity ^ 1)

    def fill(self, bytes: int) -> Barrier:
        """The barrier for a load of `bytes` into the stage."""
        full = self.ring.full(self.index)
        full.arrive_and_expect(bytes)
        return full


class Stages:
    """Both rings of a task, while its code is emitted."""

    def __init__(self, plan: ConvPlan, task: TaskContext):
        self.plan, self.task = plan, task
        geometry = plan.geometry
        self.images = Ring(task.barrier_base, geometry.image_stages)
        self.weights = Ring(offset(task.barrier_base, Ring.bytes(geometry.image_stages)), geometry.weight_stages)

    # --- the producers ---------------------------------------------------------------------------------------------------

    def range(self, piece: Value) -> tuple[Value, Value]:
        """The first stage of the image that a piece takes, and how many."""
        begin, end = map(i32, Pieces(self.plan, self.task).chunks(piece, self.plan.images))
        return begin, i32(self.plan.images) if self.plan.split is None else end - begin

    def load_images(self, tile: TileContext, piece: Value, done: Value) -> None:
        """One thread loads what a piece reads of the image, after the waits; `done` stages were used before."""
        plan = self.plan
        for wait in self.task.view.waits:
            tile.poll(wait)
        begin, count = self.range(piece)
        starts = []
        for axis in plan.conv.axes:
            start = i32(-axis.low)
            for part in axis.starts:
                start = start + tile.index(part)
            starts.append(start)

        def load(number: Value) -> None:
            stage = _Stage(self.images, done + number)
            stage.wait_empty()
            number = begin + number
            chunk, tap = number // plan.taps_apart, number % plan.taps_apart
            place = [start + shift for start, shift in zip(starts, self._taps(tap, plan.taps_apart), strict=True)]
            target = offset(self.task.shared, stage.index * plan.geometry.image_bytes)
            full = stage.fill(plan.image_map.box_bytes)
            tma.load_tile(target, self.task.tensor_map(0), full, [*place, chunk * plan.problem.chunk])

        for_(0, count, 1, load)

    def load_weights(self, tile: TileContext, piece: Value, done: Value) -> None:
        """One thread loads what a piece reads of the weight."""
        plan = self.plan
        together, taps = plan.taps_together, math.prod(plan.problem.taps)
        begin, count = self.range(piece)
        feature = tile.index(plan.conv.weight.offsets[0])
        rows = [feature // PAIRED_ROWS, i32(0), i32(0)] if plan.paired else [feature]

        def load(step: Value) -> None:
            stage = _Stage(self.weights, done * together + step)
            stage.wait_empty()
            step = begin * together + step
            target = offset(self._weights_start(), stage.index * plan.geometry.weight_bytes)
            full = stage.fill(plan.weight_map.box_bytes)
            place = [*rows, step % taps, step // taps * plan.problem.chunk]
            tma.load_tile(target, self.task.tensor_map(1), full, place)

        for_(0, count * together, 1, load)

    def _taps(self, tap: Value, apart: int) -> list[Value]:
        """The distance of a tap from the first, in elements of the image along each dimension."""
        if apart == 1:
            return [i32(0) for _ in self.plan.problem.taps]
        return [place * dilation for place, dilation in zip(self._places(tap), self.plan.problem.dilations, strict=True)]

    def _places(self, tap: Value) -> list[Value]:
        """A tap's number along each dimension."""
        places: list[Value] = []
        for count in reversed(self.plan.problem.taps):
            places.append(tap % count if count > 1 else i32(0))
            tap = tap // count if count > 1 else tap
        return places[::-1]

    # --- the consumers ---------------------------------------------------------------------------------------------------

    def product(self, group: Value, piece: Value, done: Value) -> list[Value]:
        """A warpgroup's part of a piece: its accumulators, complete."""
        steps = self.range(piece)[1] * self.plan.taps_together
        accumulators = self._multiply(None, group, done, i32(0))

        def step(number: Value, *carried: Value) -> list[Value]:
            started = self._multiply(list(carried), group, done, number)
            wgmma.wait(1, [])
            self._release(done, number - 1)
            return started

        if self.plan.images * self.plan.taps_together > 1:
            accumulators = for_(1, steps, 1, step, accumulators)
        accumulators = wgmma.wait(0, accumulators)
        self._release(done, steps - 1)
        return accumulators

    def _multiply(self, accumulators: list[Value] | None, group: Value, done: Value, step: Value) -> list[Value]:
        plan, geometry = self.plan, self.plan.geometry
        weight = _Stage(self.weights, done * plan.taps_together + step)
        image = _Stage(self.images, done + step // plan.taps_together)
        image.wait_full()
        weight.wait_full()
        shift = i32(0)
        if plan.taps_together > 1:
            places = self._places(step % plan.taps_together)
            for place, dilation, pitch in zip(places, plan.problem.dilations, geometry.pitches, strict=True):
                shift = shift + place * (dilation * pitch)
        if not geometry.by_features:
            shift = shift + group * geometry.columns
        a = wgmma.SharedOperand(
            plan.weight_tile,
            offset(self._weights_start(), weight.index * geometry.weight_bytes),
            row=group * 64 if geometry.by_features else 0,
        )
        # A row that is no multiple of 8 is fine: the swizzle goes by addresses, and stages start at multiples of its period.
        b = wgmma.SharedOperand(plan.image_tile, offset(self.task.shared, image.index * geometry.image_bytes), row=shift)
        return wgmma.multiply(accumulators, a, b, geometry.columns, plan.conv.dtype, plan.problem.chunk // 16)

    def _release(self, done: Value, step: Value) -> None:
        """The warpgroup has done a step. One thread speaks for it: `wgmma.wait` is for the instruction as a whole."""
        plan = self.plan
        weight = _Stage(self.weights, done * plan.taps_together + step)
        image = _Stage(self.images, done + step // plan.taps_together)

        def release() -> None:
            self.weights.empty(weight.index).arrive()
            if plan.taps_together == 1:
                self.images.empty(image.index).arrive()
            else:
                if_(step % plan.taps_together == plan.taps_together - 1, self.images.empty(image.index).arrive)

        if_(self.task.thread % 128 == 0, release)

    def _weights_start(self) -> Value:
        return offset(self.task.shared, self.plan.geometry.image_stages * self.plan.geometry.image_bytes)
