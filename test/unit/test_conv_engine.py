"""The conv engine without a GPU: what it takes and declines, how tiles lie in shared memory, kernels without spills."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch_mlir import ir

import kitsune_mlir
from kitsune_mlir.codegen.gpu.compile import compile_gpu
from kitsune_mlir.codegen.gpu.engines.conv.depthwise import DepthwiseEngine
from kitsune_mlir.codegen.gpu.engines.conv.engine import ConvEngine
from kitsune_mlir.codegen.gpu.engines.conv.plan import ConvPlan
from kitsune_mlir.codegen.gpu.engines.conv.tiles import (
    Geometry,
    Problem,
    arrange,
    best_arrangement,
    choose_tile,
    cycles,
    depthwise_tile,
)
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions, Plan
from kitsune_mlir.codegen.gpu.kernel import executor
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.tile_reader import ProgramView
from kitsune_mlir.frontend import import_model
from kitsune_mlir.passes.registry import PIPELINE
from kitsune_mlir.passmanager.manager import run_pipeline
from test.emulators.vector import run_kernel
from test.gpu.conv_programs import CASES, Case
from test.rotation import in_turn

SHARED = KernelOptions().shared_bytes
MODULES: list[ir.Module] = []
"""What plans refer to lives as long as its module."""


def lowered(case: Case) -> ir.Module:
    """The tile program of a case."""
    module = import_model(case.model(), case.inputs(), context=new_context()).module
    run_pipeline(module, f"builtin.module({','.join(PIPELINE)})", target="sm_90a")
    MODULES.append(module)
    return module


def program_of(module: ir.Module) -> ir.Operation:
    return next(op.operation for op in module.body.operations if "kitsune.program" in op.attributes)


def planned(case: Case, **limits: Any) -> Plan | Decline:
    """The engine's answer for the last task of a case."""
    module = lowered(case)
    with module.context, ir.Location.unknown():
        view = ProgramView(program_of(module))
        return ConvEngine().plan(view.tasks[-1], KernelOptions(**limits))


@pytest.mark.parametrize(
    "name",
    in_turn(["odd", "odd_channels", "five", "dilated", "stride_odd", "three_images", "first_odd", "half", "one_pixel"], 3)
    + in_turn([f"{name}_{dtype}" for name in ("odd", "long", "stride", "first", "one") for dtype in ("f32", "tf32")], 3),
)
def test_cases_assemble_without_spills(name: str) -> None:
    module = lowered(CASES[name])
    with module.context, ir.Location.unknown():
        code = compile_gpu(module, "main_p0", KernelOptions(**CASES[name].options))
    assert "conv" in {choice.engine for choice in code.engines} <= {"conv", "simt"}
    assert not code.resources.spills and not code.resources.stack_bytes and not code.warnings
    assert "wgmma.mma_async" in code.ptx


@pytest.mark.rotated(3)
@pytest.mark.parametrize(
    "name", ["resnet_56x64_b32", "resnet_28x128_b32", "resnet_7x512_b8", "wide_f32", "wide_tf32", "deep_f32"]
)
def test_wide_tiles_and_pieces_do_not_spill_or_serialise(name: str) -> None:
    module = lowered(CASES[name])
    with module.context, ir.Location.unknown():
        code = compile_gpu(module, "main_p0", KernelOptions(**CASES[name].options))
    assert not code.resources.spills and not code.warnings


def test_f32_is_done_by_three_products_or_in_tf32() -> None:
    case = Case(2, 64, 14, 14, 64, dtype="f32")
    ways = {}
    for precision in ("highest", "high"):
        plan = planned(case, convolution_precision=precision)
        assert isinstance(plan, Plan), plan
        conv: ConvPlan = plan.private
        assert conv.kind == "tf32" and conv.exact == (precision == "highest")
        assert {conv.image_map.dtype, conv.weight_map.dtype} == {"f32" if conv.exact else "tf32"}
        ways[precision] = conv
    geometry = ways["highest"].geometry
    assert geometry.columns <= 128 and geometry.image_bytes >= 2 * ways["highest"].image_map.box_bytes
    assert geometry.weight_bytes == 2 * ways["highest"].weight_map.box_bytes
    assert ways["high"].geometry.weight_bytes == ways["high"].weight_map.box_bytes


@pytest.mark.rotated(1)
@pytest.mark.parametrize("features, last", [(60, True), (64, False)])
def test_wide_tiles_with_much_to_store_do_not_spill(features: int, last: bool) -> None:
    """Features that are not paired, or a result in the usual order, and a residual: scalar accesses, many addresses."""
    module = lowered(Case(32, 64, 56, 56, features, bias=True, relu=True, residual=True, last=last))
    with module.context, ir.Location.unknown():
        code = compile_gpu(module, "main_p0")
    assert not code.resources.spills and not code.warnings


def test_padding_needs_no_stage_of_its_own() -> None:
    plan = planned(Case(2, 64, 14, 14, 64, bias=True, relu=True))
    assert isinstance(plan, Plan), plan
    conv: ConvPlan = plan.private
    assert plan.task.number == 0 and conv.conv.image.buffer.role == "input"
    assert [axis.low for axis in conv.conv.axes] == [0, 1, 1]


def test_strides_are_steps_of_the_tensor_map() -> None:
    plan = planned(Case(2, 64, 14, 14, 64, stride=2))
    assert isinstance(plan, Plan), plan
    conv: ConvPlan = plan.private
    assert not conv.geometry.halo and conv.image_map.steps == (1, 2, 2, 1)
    pixels = math.prod(conv.problem.pixels)
    assert conv.image_map.box_bytes == pixels * 64 * 2


@pytest.mark.parametrize("features", [3, 27, 48, 64, 100])
def test_a_load_fills_its_stage(features: int) -> None:
    """Taps of one stage of the weight lie a whole tile apart, however few features there are."""
    plan = planned(Case(1, 32, 8, 8, features))
    assert isinstance(plan, Plan), plan
    conv: ConvPlan = plan.private
    assert conv.weight_map.box_bytes == conv.geometry.weight_bytes == conv.geometry.weight_taps * conv.weight_tile.bytes
    assert conv.image_map.box_bytes <= conv.geometry.image_bytes


def test_features_are_paired_where_sixteen_divide_them() -> None:
    for features, paired in ((64, True), (48, True), (27, False)):
        plan = planned(Case(1, 64, 8, 8, features))
        assert isinstance(plan, Plan), plan
        assert plan.private.paired is paired


@pytest.mark.parametrize("bias", [False, True])
def test_few_groups_become_one(bias: bool) -> None:
    plan = planned(Case(1, 32, 8, 8, 48, groups=4, bias=bias))
    assert isinstance(plan, Plan), plan
    assert plan.private.conv.channels == 32 and plan.private.conv.features == 48


def test_depthwise_is_for_another_engine() -> None:
    module = lowered(Case(1, 32, 8, 8, 32, groups=32, bias=True))
    with module.context, ir.Location.unknown():
        (task,) = ProgramView(program_of(module)).tasks
        assert task.requested_engine == "depthwise"
        answer, found = ConvEngine().plan(task, KernelOptions()), DepthwiseEngine().plan(task, KernelOptions())
        assert isinstance(answer, Decline) and answer.reason
        assert isinstance(found, Plan) and found.private.width == 8
    module = lowered(Case(1, 32, 8, 8, 32))
    with module.context, ir.Location.unknown():
        (task,) = ProgramView(program_of(module)).tasks
        assert isinstance(DepthwiseEngine().plan(task, KernelOptions()), Decline)


@pytest.mark.parametrize(
    "channels, dtype, width", [(32, "bf16", 8), (20, "bf16", 4), (7, "bf16", 1), (36, "f32", 4), (6, "f16", 2)]
)
def test_depthwise_takes_as_many_channels_as_align(channels: int, dtype: str, width: int) -> None:
    module = lowered(Case(2, channels, 9, 9, channels, groups=channels, dtype=dtype))
    with module.context, ir.Location.unknown():
        plan = DepthwiseEngine().plan(ProgramView(program_of(module)).tasks[-1], KernelOptions())
    assert isinstance(plan, Plan) and plan.private.width == width


@pytest.mark.rotated(2)
@pytest.mark.parametrize(
    "name", ["depthwise_fused", "depthwise_odd", "depthwise_five", "depthwise_inside", "depthwise_f32", "depthwise_56x128_b32"]
)
def test_depthwise_assembles_without_spills(name: str) -> None:
    module = lowered(CASES[name])
    with module.context, ir.Location.unknown():
        code = compile_gpu(module, "main_p0")
    assert {choice.engine for choice in code.engines} == {"depthwise"} and not code.resources.spills
    if CASES[name].channels % 8 == 0:
        assert "ld.global.nc.v4" in code.ptx or "ld.global.v4" in code.ptx


@pytest.mark.parametrize("batch, size, channels", [(1, 112, 32), (32, 56, 128), (1, 14, 512), (3, 1, 7), (1, 1000, 129)])
def test_depthwise_tiles_give_all_threads_work(batch: int, size: int, channels: int) -> None:
    problem = Problem((batch, size, size), (1, 1, 1), (1, 3, 3), (1, 1, 1), channels, channels)
    tile, taken = depthwise_tile(problem, 8, 132)
    assert all(1 <= t <= p for t, p in zip(tile, problem.pixels, strict=True)) and channels % taken == 0
    items = math.prod(problem.pixels) * -(-channels // 8)
    tiles = math.prod(-(-p // t) for p, t in zip(problem.pixels, tile, strict=True)) * (channels // taken)
    assert tiles >= min(132, items // 512)


def test_wide_factors_are_declined() -> None:
    model, inputs = Case(1, 16, 8, 8, 16).model().double(), (torch.randn(1, 16, 8, 8, dtype=torch.float64),)
    module = import_model(model, inputs, context=new_context()).module
    run_pipeline(module, f"builtin.module({','.join(PIPELINE)})", target="sm_90a")
    with module.context, ir.Location.unknown():
        answers = [ConvEngine().plan(task, KernelOptions()) for task in ProgramView(program_of(module)).tasks]
    assert all(isinstance(answer, Decline) for answer in answers)


PROBLEMS = [
    Problem((2, 9, 11), (1, 1, 1), (1, 3, 3), (1, 1, 1), 64, 64),
    Problem((1, 7, 7), (1, 1, 1), (1, 5, 5), (1, 1, 1), 32, 128),
    Problem((3, 6, 5), (1, 1, 1), (1, 3, 3), (1, 2, 2), 16, 100),
    Problem((2, 8, 8), (1, 2, 2), (1, 3, 3), (1, 1, 1), 128, 64),
    Problem((4, 5, 6), (1, 1, 1), (1, 1, 1), (1, 1, 1), 64, 64),
    Problem((1, 9, 11), (1, 1, 1), (1, 3, 3), (1, 1, 1), 64, 64, False, 4, True),
    Problem((2, 7, 7), (1, 1, 1), (1, 3, 3), (1, 1, 1), 12, 128, False, 4),
]


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("halo", [False, True])
def test_every_tap_of_every_pixel_is_in_the_stage(problem: Problem, halo: bool) -> None:
    """The row that tensor cores read for a pixel and a tap is the row that TMA wrote there."""
    geometry = arrange(problem, problem.pixels, min(problem.features, 128), halo, SHARED)
    if isinstance(geometry, str):
        assert halo and (max(problem.strides) > 1 or max(problem.taps) == 1)
        return
    loaded = list(itertools.product(*map(range, geometry.loaded)))
    rows = {element: row for row, element in enumerate(loaded)}
    for tap in itertools.product(*map(range, problem.taps)) if halo else [(0,) * len(problem.taps)]:
        distances = [t * d for t, d in zip(tap, problem.dilations, strict=True)]
        shift = sum(d * pitch for d, pitch in zip(distances, geometry.pitches, strict=True))
        for pixel in itertools.product(*map(range, problem.pixels)):
            column = sum(place * pitch for place, pitch in zip(pixel, geometry.pitches, strict=True))
            assert column < geometry.positions
            assert rows[tuple(p + d for p, d in zip(pixel, distances, strict=True))] == column + shift


def test_stages_fit() -> None:
    for problem in PROBLEMS:
        found = best_arrangement(problem, problem.pixels, min(problem.features, 128), 1, 132, SHARED)
        assert not isinstance(found, str), found
        geometry: Geometry = found[1]
        assert geometry.shared_bytes <= SHARED and geometry.weight_stages >= 2
        assert geometry.image_bytes % 1024 == 0 and geometry.weight_bytes % 1024 == 0
        assert geometry.columns * (1 if geometry.by_features else 2) >= geometry.positions


@pytest.mark.parametrize("batch", [1, 8, 32])
@pytest.mark.parametrize("size, channels", [(56, 64), (28, 128), (14, 256), (7, 512)])
def test_tiles_fill_the_machine(batch: int, size: int, channels: int) -> None:
    problem = Problem((batch, size, size), (1, 1, 1), (1, 3, 3), (1, 1, 1), channels, channels)
    chosen = choose_tile(problem, 132, SHARED)
    assert chosen is not None
    tile, features = chosen
    count = -(-channels // features) * math.prod(-(-w // t) for w, t in zip(problem.pixels, tile, strict=True))
    found = best_arrangement(problem, tile, features, count, 132, SHARED)
    assert not isinstance(found, str) and count * found[2] >= 56


def test_few_tiles_are_cut_into_pieces() -> None:
    plan = planned(CASES["resnet_7x512_b1"])
    assert isinstance(plan, Plan), plan
    assert plan.split is not None and plan.pieces >= 56
    conv: ConvPlan = plan.private
    assert plan.split.bytes == plan.task.tiles * (plan.split.pieces - 1) * 2 * 64 * conv.geometry.columns * 4


def test_a_halo_saves_traffic_where_features_are_few() -> None:
    problem = Problem((1, 7, 56), (1, 1, 1), (1, 3, 3), (1, 1, 1), 64, 64)
    apart, halo = (arrange(problem, problem.pixels, 64, kind, SHARED) for kind in (False, True))
    assert isinstance(apart, Geometry) and isinstance(halo, Geometry)
    assert cycles(problem, halo, 132) < cycles(problem, apart, 132)


class Flat(nn.Module):
    """A depthwise convolution of an image in channels-last memory, its result in the usual order."""

    def __init__(self, channels: int, stride: int):
        super().__init__()
        self.convolution = nn.Conv2d(channels, channels, 3, stride, 1, groups=channels, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.convolution(x).flatten(1)


@pytest.mark.parametrize("height, width, stride, run", [(12, 16, 1, 4), (24, 16, 2, 2), (12, 15, 1, 4)])
def test_depthwise_stores_pixels_side_by_side_where_channels_are_outer(height: int, width: int, stride: int, run: int) -> None:
    torch.manual_seed(0)
    model, x = Flat(16, stride), torch.randn(2, 16, height, width).contiguous(memory_format=torch.channels_last)
    program = kitsune_mlir.compile(model, (x,), target="sm_90a", options={"convolution_precision": "highest"})
    wanted = model(x).detach().numpy()
    out = np.zeros_like(wanted)
    weight, image = model.convolution.weight.detach().permute(2, 3, 0, 1).contiguous(), x.permute(0, 2, 3, 1).contiguous()
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(program.ir("tiles"))
        view = ProgramView(next(op.operation for op in module.body.operations if "kitsune.program" in op.attributes))
        emitted = executor.build(view, view.name, KernelOptions(workers=1))
        assert [choice.plan.engine for choice in emitted.decisions] == ["depthwise"]
        assert emitted.decisions[0].plan.parameters["item"] == [run, 4]
        run_kernel(emitted.module.operation, emitted.manifest, [weight.numpy(), image.numpy()], [out], 2)
    np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-5)
