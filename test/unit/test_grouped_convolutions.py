"""Convolutions in groups: how many lie side by side, tiles of one group, weights that are placed so, what they compute."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_structure
from torch_mlir import ir

import kitsune_mlir
from kitsune_mlir.codegen.gpu.engines.conv.tiles import Problem, choose_tile
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions, Plan
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.passes.layouts.groups import side_by_side
from kitsune_mlir.runtime.results import in_order
from kitsune_mlir.runtime.signature import Signature, Weight
from kitsune_mlir.runtime.signature_check import check_signature
from kitsune_mlir.runtime.structure import structure_text
from kitsune_mlir.runtime.weights import placed
from test.emulators.runner import emulated
from test.gpu.conv_programs import Case, Line
from test.gpu.unassembled import unassembled
from test.unit.test_conv_engine import planned

CONVOLUTION = """
func.func @f(%x: tensor<1x{groups}x{channels}x9x9x{type}>, %w: tensor<{groups}x{features}x{channels}x3x3x{type}>,
             %o: tensor<1x{groups}x{features}x7x7xf32>) -> tensor<1x{groups}x{features}x7x7xf32> {{
  %y = linalg.conv_2d_ngchw_gfchw {{dilations = dense<1> : vector<2xi64>, strides = dense<1> : vector<2xi64>}}
    ins(%x, %w : tensor<1x{groups}x{channels}x9x9x{type}>, tensor<{groups}x{features}x{channels}x3x3x{type}>)
    outs(%o : tensor<1x{groups}x{features}x7x7xf32>) -> tensor<1x{groups}x{features}x7x7xf32>
  return %y : tensor<1x{groups}x{features}x7x7xf32>
}}
"""


@pytest.mark.parametrize(
    "groups, channels, features, type_, wanted",
    [
        (32, 4, 4, "bf16", 16),  # ResNeXt: 64 channels and features
        (32, 32, 32, "bf16", 2),
        (5, 24, 24, "bf16", 1),  # RegNet: five groups are no pairs
        (14, 24, 24, "bf16", 2),
        (16, 48, 48, "bf16", 1),
        (8, 112, 112, "bf16", 1),
        (4, 3, 2, "bf16", None),  # 24 bytes of channels, however many are one
        (4, 4, 2, "f32", 4),
        (16, 1, 2, "bf16", 16),
    ],
)
def test_groups_side_by_side(groups: int, channels: int, features: int, type_: str, wanted: int | None) -> None:
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(CONVOLUTION.format(groups=groups, channels=channels, features=features, type=type_))
        (op,) = [op for op in walk(module.operation) if op.name.startswith("linalg.conv")]
        assert side_by_side(op) == wanted


def test_a_tile_is_of_one_group() -> None:
    problem = Problem((16, 14, 14, 7), (1, 1, 1, 1), (1, 3, 3, 1), (1, 1, 1, 1), 48, 48, group=3)
    chosen = choose_tile(problem, 132, KernelOptions().shared_bytes)
    assert chosen is not None
    tile, features = chosen
    assert tile[3] == 1 and features == 48 and 64 <= tile[0] * tile[1] * tile[2] <= 512
    assert problem.steps == 3  # of 16 channels: what is behind the 48 is not multiplied


@pytest.mark.parametrize(
    "case, channels, features, tasks",
    [
        (Case(2, 128, 14, 14, 128, groups=32, bias=True, relu=True), 64, 64, 1),
        (Case(2, 112, 14, 14, 168, groups=7, stride=2, bias=True, residual=True), 16, 24, 1),
        (Line(2, 96, 1, 129, 96, kernel=8, padding=4, groups=2, bias=True), 48, 48, 2),
    ],
)
def test_what_follows_is_in_the_same_task(case: Case, channels: int, features: int, tasks: int) -> None:
    plan = planned(case)
    assert isinstance(plan, Plan), plan
    found = plan.private.conv
    assert found.grouped and (found.channels, found.features) == (channels, features)
    assert plan.task.number == tasks - 1 and {store.buffer.role for store in plan.task.stores} == {"result"}


MODELS = {
    "two side by side": (lambda: nn.Conv2d(16, 32, 3, padding=1, groups=8), (1, 16, 5, 7)),
    "a line, odd": (lambda: nn.Conv1d(12, 21, 3, padding=1, groups=3, bias=False), (2, 12, 7)),
    "each channel twice": (lambda: nn.Sequential(nn.Conv2d(8, 16, 3, groups=8), nn.ReLU()), (1, 8, 5, 3)),
    "one pixel": (lambda: nn.Conv2d(144, 48, 1, groups=3), (1, 144, 1, 1)),
}


@pytest.mark.rotated(1)
@pytest.mark.parametrize("name", MODELS)
def test_values(name: str) -> None:
    """The GPU's plan, on the processor; then with other weights, changed in place."""
    torch.manual_seed(0)
    make, shape = MODELS[name]
    model, x = make().eval().requires_grad_(False), torch.randn(shape)
    with unassembled():
        program = kitsune_mlir.compile(model, (x,), target="sm_90a", options={"convolution_precision": "highest"})
    assert "conv" in {engine["engine"] for engine in program.summary["engines"]}
    emulated(program)
    for _ in range(2):
        wanted = copy.deepcopy(model).double()(x.double())
        torch.testing.assert_close(program(x).double(), wanted, rtol=1e-5, atol=1e-6)
        for weight in model.parameters():
            weight.mul_(0.5)


@pytest.mark.parametrize("batch, channels", [(8, 12), (1, 30), (3, 7)])
def test_one_pixel_of_odd_channels_is_a_product(batch: int, channels: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(channels, 40, 1), nn.ReLU()).bfloat16().eval().requires_grad_(False)
    x = torch.randn(batch, channels, 1, 1).bfloat16()
    with unassembled():
        program = kitsune_mlir.compile(model, (x,), target="sm_90a")
    assert len(program.summary["stages"]) == 1 and program.summary["stages"][0]["engine"] != "conv"
    torch.testing.assert_close(emulated(program)(x), model(x), rtol=2e-2, atol=1e-2)


WEIGHT = Weight("w", "parameter", (6, 2, 3, 1), "f32", (0, 2, 3, 1), (6, 4, 3, 1), "", (1, 2))


def signature(weight: Weight) -> Signature:
    """Of a program that takes nothing else, and gives nothing."""
    given, made = (structure_text(tree_structure(tree)) for tree in (((), {}), ()))
    return Signature((weight,), (), (), (), (), given, made)


def test_a_weight_is_placed_between_zeros() -> None:
    """Groups of one row, two side by side."""
    weight = torch.randn(6, 2, 3, 1)
    (own,), (kept,) = placed(signature(WEIGHT), {"w": weight}, "cpu")
    whole = torch.as_strided(own, (6, 3, 1, 4), (12, 4, 4, 1), 0)
    wanted = torch.zeros(6, 4, 3, 1)
    wanted[::2, :2], wanted[1::2, 2:] = weight[::2], weight[1::2]
    assert torch.equal(whole, in_order(wanted, (0, 2, 3, 1)).permute(0, 2, 3, 1))
    weight.mul_(2)
    assert kept.stale
    kept.refresh()
    assert torch.equal(whole, 2 * wanted.permute(0, 2, 3, 1))


@pytest.mark.parametrize(
    "wrong",
    [{"beside": (4, 2)}, {"beside": (1, 0)}, {"beside": (1,)}, {"wide": (6, 6, 3, 1)}, {"wide": ()}, {"beside": (1, 4)}],
)
def test_a_package_with_other_groups_is_refused(wrong: dict) -> None:
    check_signature(signature(WEIGHT))
    with pytest.raises(ValueError, match="side by side"):
        check_signature(signature(dataclasses.replace(WEIGHT, **wrong)))
