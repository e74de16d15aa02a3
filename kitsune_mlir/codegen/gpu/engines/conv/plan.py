"""Planning a convolution: its tile in shared memory, TMA's views of image and weight, the rings of stages."""

from __future__ import annotations

import dataclasses
import math

from kitsune_mlir.codegen.gpu.engines.conv.match import Convolution, match
from kitsune_mlir.codegen.gpu.engines.conv.tiles import Geometry, Problem, best_arrangement
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions, MapUse, Plan
from kitsune_mlir.codegen.gpu.interface.split import Split
from kitsune_mlir.codegen.gpu.interface.window import multiple_of
from kitsune_mlir.codegen.gpu.sm90 import wgmma
from kitsune_mlir.codegen.gpu.sm90.tensor_map import TensorMap
from kitsune_mlir.codegen.gpu.sm90.warp_specialize import SHARED_REGISTERS, THREADS
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.dialects.sizes import element_bytes
from kitsune_mlir.dialects.tile_records import TaskView
from kitsune_mlir.errors import CompileError
from kitsune_mlir.machine.shared_tile import SharedTile

__all__ = ["HALVERS", "PAIRED_ROWS", "ConvPlan", "make_plan"]

HALVERS = 64
"""Threads that compute the rests of exact factors: the producer's upper warps."""
PAIRED_ROWS = 16
"""Rows of the product whose order is changed so that a thread's two rows, 8 apart, are neighbouring features."""


@dataclasses.dataclass(frozen=True)
class ConvPlan:
    """What the engine decided.

    Attributes:
        conv: the body.
        problem: its tile, as the whole of a convolution (`Problem.merged`).
        merged: the taps of the image's last dimension are channels.
        geometry: how the tile lies in shared memory.
        paired: row 16b + 8h + l of the product is feature 16b + 2l + h; else rows are features.
        image_map, weight_map: one box a stage.
        split: pieces of the sum that different blocks do, or None.
    """

    conv: Convolution
    problem: Problem
    merged: bool
    geometry: Geometry
    paired: bool
    image_map: TensorMap
    weight_map: TensorMap
    split: Split | None = None

    @property
    def partial_bytes(self) -> int:
        """One warpgroup's accumulators."""
        return self.geometry.partial_bytes

    @property
    def image_tile(self) -> SharedTile:
        """A stage of the image: rows are pixels, columns channels."""
        problem = self.problem
        rows = -(-self.geometry.image_bytes // problem.copies // problem.row_bytes // 8) * 8
        return SharedTile(rows, problem.chunk, problem.element_bytes, problem.row_bytes)

    @property
    def weight_tile(self) -> SharedTile:
        """One tap of a stage of the weight: rows are features, columns channels."""
        problem = self.problem
        return SharedTile(self.geometry.weight_rows, problem.chunk, problem.element_bytes, problem.row_bytes)

    @property
    def kind(self) -> str:
        """What tensor cores multiply."""
        return "tf32" if self.conv.dtype == "f32" else self.conv.dtype

    @property
    def exact(self) -> bool:
        """Whether f32 factors are multiplied as sums of two numbers."""
        return self.problem.exact

    @property
    def taps_apart(self) -> int:
        """Taps that have a stage of the image of their own."""
        return 1 if self.geometry.halo else math.prod(self.problem.taps)

    @property
    def taps_together(self) -> int:
        """Taps that read one stage of the image."""
        return math.prod(self.problem.taps) if self.geometry.halo else 1

    @property
    def steps(self) -> int:
        """Stages of the weight that go with one of the image."""
        return self.taps_together // self.geometry.weight_taps

    @property
    def images(self) -> int:
        """Stages of the image that a tile takes."""
        return self.problem.chunks * self.taps_apart


def make_plan(engine: str, task: TaskView, options: KernelOptions) -> Plan:
    """Plan a task.

    Raises:
        MatchFailure: it is no convolution, or nothing for tensor cores or TMA.
    """
    if options.chip != "sm_90a":
        raise MatchFailure(f"wgmma needs sm_90a, not {options.chip}")
    plan = _decide(match(task), options)
    geometry = plan.geometry
    uses = (MapUse(plan.conv.image.buffer, plan.image_map), MapUse(plan.conv.weight.buffer, plan.weight_map))
    barriers: tuple[int, ...] = ()
    for stages in (geometry.image_stages, geometry.weight_stages):
        barriers += (1,) * stages + (2,) * stages
    if plan.exact:
        barriers += (HALVERS // 32,) * (geometry.image_stages + geometry.weight_stages)
    return Plan(
        engine=engine,
        task=task,
        shared_bytes=geometry.shared_bytes,
        threads=THREADS,
        registers=SHARED_REGISTERS,
        barriers=barriers,
        tensor_maps=uses,
        async_reads=any(use.buffer.role != "input" for use in uses),
        parameters={
            "tile": [*plan.problem.pixels, plan.problem.features],
            "instruction": f"m64n{geometry.columns}k{wgmma.STEP_BYTES // plan.problem.element_bytes} {plan.kind}"
            + ", three times" * plan.exact,
            "image": "once for all taps" if geometry.halo else "once for each tap",
            "stages": [geometry.image_stages, geometry.weight_stages],
            "pieces": plan.split.pieces if plan.split else 1,
        },
        split=plan.split,
        private=plan,
    )


def _decide(conv: Convolution, options: KernelOptions) -> ConvPlan:
    axes = conv.axes
    wide = conv.dtype == "f32"
    original = Problem(
        tuple(axis.size for axis in axes),
        tuple(axis.stride for axis in axes),
        tuple(axis.taps for axis in axes),
        tuple(axis.dilation for axis in axes),
        conv.channels,
        conv.features,
        not axes[-1].padded,
        4 if wide else 2,
        wide and options.convolution_precision == "highest",
    )
    problem = original.merged()
    tiles = conv.task.tiles
    found = best_arrangement(problem, problem.pixels, conv.features, tiles, options.workers, options.shared_bytes)
    if isinstance(found, str):
        raise MatchFailure(found)
    _, geometry, pieces = found
    sharers = tiles * geometry.groups
    split = Split(pieces, sharers * (pieces - 1) * geometry.partial_bytes, sharers, sharers) if pieces > 1 else None
    feature = 1 if conv.grouped else 0  # the weight's dimension
    features, first = conv.weight.buffer.shape[feature], conv.weight.offsets[feature]
    paired = features % PAIRED_ROWS == 0 and multiple_of(first) % PAIRED_ROWS == 0
    try:
        maps = _image_map(conv, problem, geometry), _weight_map(conv, problem, geometry, paired)
        return ConvPlan(conv, problem, problem is not original, geometry, paired, *maps, split)
    except CompileError as error:
        raise MatchFailure(str(error)) from error


def _image_map(conv: Convolution, problem: Problem, geometry: Geometry) -> TensorMap:
    buffer = conv.image.buffer
    strides = tuple(stride * element_bytes(buffer.element) for stride in buffer.strides[:-1])
    shape, row = buffer.shape, problem.row_bytes
    dtype = _map_type(conv, problem)
    if problem.channels != conv.channels:  # overlapping runs of all taps, one for each pixel of the result
        axis = conv.axes[-1]
        runs = (shape[-2] - axis.taps) // axis.stride + 1
        shape, strides = (*shape[:-2], runs, problem.channels), (*strides[:-1], strides[-1] * axis.stride)
    if geometry.halo:
        return TensorMap(dtype, shape, strides, (*geometry.loaded, problem.chunk), row)
    box = tuple((size - 1) * stride + 1 for size, stride in zip(problem.pixels, problem.strides, strict=True))
    steps = (*problem.strides, 1) if max(problem.strides) > 1 else ()
    return TensorMap(dtype, shape, strides, (*box, problem.chunk), row, steps=steps)


def _weight_map(conv: Convolution, problem: Problem, geometry: Geometry, paired: bool) -> TensorMap:
    """Taps by features by channels; with the features of a block of 16 as 2 x 8, the odd ones after the even ones.

    Features are those of all groups: rows behind a group's last one are the next one's, and their products are dropped.
    """
    features, channels = math.prod(conv.weight.buffer.shape[: 2 if conv.grouped else 1]), problem.channels
    taps = math.prod(problem.taps)
    dtype = _map_type(conv, problem)
    tap = problem.element_bytes * channels
    row = tap * taps
    rows = geometry.weight_rows  # zeros where there are fewer features
    if not paired:
        box = (geometry.weight_taps, rows, problem.chunk)
        return TensorMap(dtype, (taps, features, channels), (tap, row), box, problem.row_bytes)
    return TensorMap(
        dtype,
        (taps, features // PAIRED_ROWS, 2, PAIRED_ROWS // 2, channels),
        (tap, PAIRED_ROWS * row, row, 2 * row),
        (geometry.weight_taps, rows // PAIRED_ROWS, 2, PAIRED_ROWS // 2, problem.chunk),
        problem.row_bytes,
    )


def _map_type(conv: Convolution, problem: Problem) -> str:
    """The type that TMA moves: it rounds f32 to tf32 where that is all that tensor cores get."""
    return "tf32" if conv.dtype == "f32" and not problem.exact else conv.dtype
