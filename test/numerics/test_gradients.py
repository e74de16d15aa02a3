"""Gradients of operators against PyTorch in float64, others each turn; `python -m test.numerics.gradient_cases` takes all."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kitsune_mlir
from kitsune_mlir.frontend.gradients.windows import readers
from test.numerics.compare import problems
from test.numerics.gradient_cases import CASES, inputs
from test.numerics.gradients import HOST, calls_of, graph_of, runs_in_pytorch, wrong, wrong_alone
from test.numerics.test_operators import mixed
from test.rotation import in_turn

aten = torch.ops.aten
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
ALL = list(itertools.product(mixed(CASES), TYPES))
KINDS = ("plain", "grouped", "transposed")
MASKS = [(way, mask) for way in KINDS for mask in itertools.product((False, True), repeat=3) if any(mask)]


def case(name: str, dtype: str) -> tuple[Callable[..., Any], list[Any]]:
    """A function and new inputs."""
    function, args = CASES[name][0], inputs(name, TYPES[dtype])
    if not runs_in_pytorch(function, args):
        pytest.skip("PyTorch does not have it in this type")
    return function, args


@pytest.mark.parametrize("name, dtype", in_turn(ALL, 3))
def test_as_autograd_has_them(name: str, dtype: str) -> None:
    """Forward and backward as one graph of AOTAutograd's."""
    found = wrong(*case(name, dtype))
    assert not found, found


@pytest.mark.parametrize("name, dtype", in_turn(ALL, 4))
def test_operators_alone(name: str, dtype: str) -> None:
    """Each operator that PyTorch's own gradient calls."""
    for op, args, named in calls_of(*case(name, dtype)):
        found = wrong_alone(op, args, named)
        assert not found, (op, found)


@pytest.mark.parametrize(("way", "mask"), in_turn(MASKS, 5), ids=str)
def test_masks_of_convolutions(way: str, mask: tuple[bool, ...]) -> None:
    """Only what is asked for is calculated."""
    groups, transposed = (2 if way == "grouped" else 1), way == "transposed"
    x, weight = torch.randn(2, 4, 7, 6), torch.randn(*((4, 6) if transposed else (6, 4 // groups)), 3, 3)
    rest = ([2, 2], [1, 1], [1, 1], transposed, [0, 0], groups)
    grad = torch.randn_like(aten.convolution(x, weight, None, *rest))

    def call(*tensors: Tensor) -> list[Tensor]:
        made = aten.convolution_backward(*tensors, [6], *rest, list(mask))
        return [tensor for tensor, asked in zip(made, mask, strict=True) if asked]

    given = (grad, x, weight)
    got = kitsune_mlir.compile(call, given, target="host", options=HOST)(*given)
    found = problems(got, call(*(t.double() for t in given)), call(*given))
    assert not found, found


def test_counted_rows() -> None:
    """By definition: PyTorch's own counts those of another index here (of the place among all sorted indices)."""
    indices, offsets, table = torch.randint(0, 9, (31,)), torch.tensor([0, 4, 4, 9, 30]), torch.randn(9, 7)
    bag, size = torch.searchsorted(offsets, torch.arange(31), right=True) - 1, torch.tensor([4, 0, 5, 21, 1])
    grad = torch.randn(5, 7)
    count = torch.bincount(indices, minlength=9)
    rows = grad.double()[bag] / size[bag, None] / count[indices, None]
    wanted = torch.zeros(9, 7, dtype=torch.float64).index_add(0, indices, rows)

    def call(grad: Tensor, indices: Tensor, offsets: Tensor) -> Tensor:
        return aten._embedding_bag_backward(grad, indices, offsets, bag, size, size, len(table), True, 1, False, None)

    given = (grad, indices, offsets)
    found = problems(kitsune_mlir.compile(call, given, target="host", options=HOST)(*given), wanted)
    assert not found, found


def test_resizing_is_kept_whole() -> None:
    """Its gradient gathers: nothing is put anywhere by index."""
    x = torch.randn(2, 3, 9, 7)
    for mode in ("nearest", "bilinear", "bicubic"):
        graph = graph_of(lambda x, mode=mode: torch.nn.functional.interpolate(x, (18, 14), mode=mode), (x,))
        names = {str(node.target) for node in graph.graph.nodes if node.op == "call_function"}
        assert not any("put" in name or "scatter" in name for name in names), names


@pytest.mark.parametrize(
    "extent, kernel, stride, padding", [(13, 3, 2, 1), (9, 2, 2, 0), (5, 2, 4, 0), (8, 7, 1, 3), (7, 1, 3, 0)]
)
def test_readers_of_windows(extent: int, kernel: int, stride: int, padding: int) -> None:
    """All results that read an element are among those that are asked."""
    results = (extent + 2 * padding - kernel) // stride + 1

    def window(result: Tensor) -> tuple[Tensor, Tensor]:
        first = result * stride - padding
        return first.clamp(min=0), (first + kernel - 1).clamp(max=extent - 1)

    low, high = window(torch.arange(results))
    element, number, there = readers(results, extent, window).numbers(torch.device("cpu"))
    for n in range(extent):
        asked = {int(r) for r, exists in zip(number[n], there[n], strict=True) if exists}
        assert {r for r in range(results) if low[r] <= n <= high[r]} <= asked
        assert len(asked) == int(there[n].sum())
    assert torch.equal(element.squeeze(1), torch.arange(extent))
