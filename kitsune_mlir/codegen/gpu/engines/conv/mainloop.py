"""The main loop of a convolution: two rings of stages, for the image and for the weight, filled by TMA, read by wgmma.

Both rings run on over all tiles that a block has of the task. With one stage of the image go `ConvPlan.steps` stages of the
weight, each of `Geometry.weight_taps` taps. A piece of a tile is a range of the image's stages.

Exact f32 factors are halved between (`contraction.tf32x3`): a stage's rests are written behind it, and then announced.
"""

from __future__ import annotations

import itertools
import math

from kitsune_mlir.codegen.gpu.contraction.split_k import Pieces
from kitsune_mlir.codegen.gpu.contraction.tf32x3 import write_parts
from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_, if_all, sync_warp
from kitsune_mlir.codegen.gpu.emit.memory import offset
from kitsune_mlir.codegen.gpu.emit.value import Value, constant, i32, maximum
from kitsune_mlir.codegen.gpu.engines.conv.plan import HALVERS, PAIRED_ROWS, ConvPlan
from kitsune_mlir.codegen.gpu.interface.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.sm90 import tma, wgmma
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Barrier, Ring, Slot, fence_async_shared

__all__ = ["Stages"]


class Stages:
    """Both rings of a task, while its code is emitted."""

    def __init__(self, plan: ConvPlan, task: TaskContext):
        self.plan, self.task = plan, task
        geometry = plan.geometry
        self.images = Ring(task.barrier_base, geometry.image_stages)
        self.weights = Ring(offset(task.barrier_base, Ring.bytes(geometry.image_stages)), geometry.weight_stages)

    def small_parts(self, ring: Ring, stage: Value) -> Barrier:
        """Tells that the rests of an image's or a weight's stage are there too."""
        first = 2 * (self.images.stages + self.weights.stages) + (self.images.stages if ring is self.weights else 0)
        return Barrier(offset(self.task.barrier_base, (stage + first) * Barrier.BYTES))

    def _ready(self, ring: Ring, slot: Slot) -> None:
        """Wait until a stage can be multiplied."""
        (self.small_parts(ring, slot.stage) if self.plan.exact else ring.full(slot.stage)).wait(slot.parity)

    def range(self, piece: Value) -> tuple[Value, Value]:
        """The first stage of the image that a piece takes, and how many."""
        begin, end = map(i32, Pieces(self.plan, self.task).chunks(piece, self.plan.images))
        return begin, i32(self.plan.images) if self.plan.split is None else end - begin

    # --- the producers ---------------------------------------------------------------------------------------------------

    def load_images(self, tile: TileContext, piece: Value, *state: Value) -> list[Value]:
        """One thread loads what a piece reads of the image, after the waits; `state` is where it is in the ring."""
        plan = self.plan
        tile.poll_by_thread()
        begin, count = self.range(piece)
        starts = []
        for axis in plan.conv.axes:
            start = i32(-axis.low)
            for part in axis.starts:
                start = start + tile.index(part)
            starts.append(start)
        if plan.merged:  # the map counts pixels of the result
            starts[-1] = starts[-1] // plan.conv.axes[-1].stride

        def load(number: Value, *state: Value) -> list[Value]:
            slot = Slot(*state)
            self.images.empty(slot.stage).wait(slot.parity)
            number = begin + number
            chunk, tap = number // plan.taps_apart, number % plan.taps_apart
            place = [start + shift for start, shift in zip(starts, self._distances(tap), strict=True)]
            target = self._pixels(slot)
            full = self.images.full(slot.stage)
            full.arrive_and_expect(plan.image_map.box_bytes)
            tma.load_tile(target, self.task.tensor_map(0), full, [*place, chunk * plan.problem.chunk])
            return self.images.next(slot).values

        return for_(0, count, 1, load, state)

    def load_weights(self, tile: TileContext, piece: Value, *state: Value) -> list[Value]:
        """One thread loads what a piece reads of the weight; `state` is where it is in the ring.

        An argument's weight is loaded before the image is there; one that a task of this program makes is waited for.
        """
        plan, geometry = self.plan, self.plan.geometry
        if plan.conv.weight.buffer.role != "input":
            tile.poll_by_thread()
        begin, count = self.range(piece)
        weight = plan.conv.weight
        feature = tile.index(weight.offsets[0])
        if plan.conv.grouped:
            feature = feature * weight.buffer.shape[1] + tile.index(weight.offsets[1])
        rows = [feature // PAIRED_ROWS, i32(0), i32(0)] if plan.paired else [feature]
        stages = math.prod(plan.problem.taps) // geometry.weight_taps  # for each chunk of channels

        def load(step: Value, *state: Value) -> list[Value]:
            slot = Slot(*state)
            self.weights.empty(slot.stage).wait(slot.parity)
            step = begin * plan.steps + step
            target = self._features(slot)
            full = self.weights.full(slot.stage)
            full.arrive_and_expect(plan.weight_map.box_bytes)
            place = [step % stages * geometry.weight_taps, *rows, step // stages * plan.problem.chunk]
            tma.load_tile(target, self.task.tensor_map(1), full, place)
            return self.weights.next(slot).values

        return for_(0, count * plan.steps, 1, load, state)

    def _distances(self, tap: Value) -> list[Value]:
        """How far the image's elements of a tap that has a stage of its own are from the first tap's."""
        if self.plan.taps_apart == 1:
            return [i32(0) for _ in self.plan.problem.taps]
        distances: list[Value] = []
        for count, dilation in zip(reversed(self.plan.problem.taps), reversed(self.plan.problem.dilations), strict=True):
            distances.append(tap % count * dilation if count > 1 else i32(0))
            tap = tap // count if count > 1 else tap
        return distances[::-1]

    def halve(self, tile: TileContext, piece: Value, *state: Value) -> list[Value]:
        """Two warps compute the rests of what a piece reads; `state` is where they are in both rings."""
        geometry, task = self.plan.geometry, self.task

        def rests(ring: Ring, slot: Slot, start: Value, bytes: int) -> Slot:
            ring.full(slot.stage).wait(slot.parity)
            write_parts(start, bytes // 2, task.thread - (128 - HALVERS), HALVERS)
            fence_async_shared()
            sync_warp()
            if_(task.thread % 32 == 0, self.small_parts(ring, slot.stage).arrive)
            return ring.next(slot)

        def weight(_: Value, *state: Value) -> list[Value]:
            slot = Slot(*state)
            return rests(self.weights, slot, self._features(slot), geometry.weight_bytes).values

        def image(_: Value, *state: Value) -> list[Value]:
            slot = Slot(*state[:2])
            after = rests(self.images, slot, self._pixels(slot), geometry.image_bytes)
            return [*after.values, *for_(0, self.plan.steps, 1, weight, list(state[2:]))]

        return for_(0, self.range(piece)[1], 1, image, list(state))

    # --- the consumers ---------------------------------------------------------------------------------------------------

    def start(self) -> list[Value]:
        """Where a consumer is in both rings at the beginning."""
        return [*self.images.consumer_start().values, *self.weights.consumer_start().values]

    def product(self, group: Value, piece: Value, state: list[Value]) -> tuple[list[Value], list[Value]]:
        """A warpgroup's part of a piece: its accumulators, complete, and the new state."""
        plan = self.plan
        zeros = [constant(0.0, "f32")] * (plan.geometry.columns // 2)
        if plan.exact:
            return self._exact_product(group, piece, state, zeros)

        def image(number: Value, *carried: Value) -> list[Value]:
            now, weight = Slot(*carried[:2]), Slot(*carried[2:4])
            # Read last, and not given back yet: there is nothing of the kind at first.
            before, weight_before = Slot(*carried[4:6]), Slot(*carried[6:8])
            accumulators = list(carried[8:])
            self._ready(self.images, now)
            for step in range(plan.steps):
                accumulators = self._multiply(accumulators, group, now, weight, step)
                wgmma.wait(plan.geometry.weight_taps, [])
                exists = number > 0 if step == 0 else None
                self._release(self.weights, weight_before, exists)
                if step == 0:
                    self._release(self.images, before, exists)
                weight_before, weight = weight, self.weights.next(weight)
            return [*self.images.next(now).values, *weight.values, *now.values, *weight_before.values, *accumulators]

        # Every piece has a stage. Said so that the compiler sees it: where the loop could be passed by, the accumulators are
        # set behind it too, between products and their wait, and ptxas serialises wgmma.
        count = maximum(self.range(piece)[1], 1)
        done = for_(0, count, 1, image, [*state, *state, *zeros])
        accumulators = wgmma.wait(0, done[8:])
        self._release(self.images, Slot(*done[4:6]), None)
        self._release(self.weights, Slot(*done[6:8]), None)
        return accumulators, done[:4]

    def _exact_product(
        self, group: Value, piece: Value, state: list[Value], zeros: list[Value]
    ) -> tuple[list[Value], list[Value]]:
        """The same for exact f32: tensor cores cut sums off, so that errors add up; the threads add what a stage of the weight
        gives. Meanwhile the other warpgroup multiplies."""

        def image(_: Value, *carried: Value) -> list[Value]:
            now, weight, sums = Slot(*carried[:2]), Slot(*carried[2:4]), list(carried[4:])
            self._ready(self.images, now)
            for step in range(self.plan.steps):
                part = wgmma.wait(0, self._multiply(None, group, now, weight, step))
                self._release(self.weights, weight, None)
                weight = self.weights.next(weight)
                sums = [total + more for total, more in zip(sums, part, strict=True)]
            self._release(self.images, now, None)
            return [*self.images.next(now).values, *weight.values, *sums]

        done = for_(0, maximum(self.range(piece)[1], 1), 1, image, [*state, *zeros])
        return done[4:], done[:4]

    def _multiply(
        self, accumulators: list[Value] | None, group: Value, image: Slot, weight: Slot, step: int
    ) -> list[Value]:  # fmt: skip
        """Start the products of one stage of the weight: one group of instructions a tap, of an exact one three."""
        plan, geometry = self.plan, self.plan.geometry
        self._ready(self.weights, weight)
        rows, pixels = self._features(weight), self._pixels(image)
        feature, column = (group * 64, 0) if geometry.by_features else (0, group * geometry.columns)
        # Of exact factors the weight's rest, the image's rest, both: small sums are cut off at lower bits.
        rests = [(geometry.weight_bytes // 2, 0), (0, geometry.image_bytes // 2), (0, 0)][-plan.problem.products :]
        first = True
        for (behind, beyond), number in itertools.product(rests, range(geometry.weight_taps)):
            # A row that is no multiple of 8 is fine: the swizzle goes by addresses, and stages start at its period.
            shift = self._shift(step * geometry.weight_taps + number) * plan.image_tile.swizzle
            a = wgmma.SharedOperand(plan.weight_tile, rows, row=feature, distance=number * plan.weight_tile.bytes + behind)
            b = wgmma.SharedOperand(plan.image_tile, pixels, row=column, distance=shift + beyond)
            accumulators = wgmma.multiply(accumulators, a, b, geometry.columns, plan.kind, plan.problem.steps, fence=first)
            first = False
        assert accumulators is not None
        return accumulators

    def _shift(self, tap: int) -> int:
        """Rows from what the first tap reads of a stage to what tap number `tap` reads."""
        if self.plan.taps_together == 1:
            return 0
        problem = self.plan.problem
        places = list(itertools.product(*map(range, problem.taps)))[tap]
        parts = zip(places, problem.dilations, self.plan.geometry.pitches, strict=True)
        return sum(place * dilation * pitch for place, dilation, pitch in parts)

    def _release(self, ring: Ring, slot: Slot, condition: Value | None) -> None:
        """The warpgroup has read a stage. One thread speaks for it: `wgmma.wait` is for the instruction as a whole."""
        if_all([self.task.thread % 128 == 0, condition], ring.empty(slot.stage).arrive)

    def _pixels(self, slot: Slot) -> Value:
        """Where a stage of the image starts."""
        return offset(self.task.shared, slot.stage * self.plan.geometry.image_bytes)

    def _features(self, slot: Slot) -> Value:
        """Where a stage of the weight starts."""
        geometry = self.plan.geometry
        behind = offset(self.task.shared, geometry.image_stages * geometry.image_bytes)
        return offset(behind, slot.stage * geometry.weight_bytes)
