"""A tangent that is stored and added up by columns, as in a layer's backward pass: the whole grid adds, in a fixed order."""

import pytest
import torch
from torch import Tensor

import kitsune_mlir
from bench.sweeps import Function
from test.numerics.compare import exact, problems
from test.programs.compiled import planned_for_gpu


def backward(tangent: Tensor, out: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of a layer with ReLU: what its input gets, its bias, and the tangent itself."""
    mine = tangent * (out > 0)
    return mine @ weight, mine.sum(0), mine


@pytest.mark.parametrize(("rows", "columns"), [(65_536, 256), (100_003, 96)])
def test_the_sum_has_the_whole_grid(rows: int, columns: int) -> None:
    args = torch.randn(rows, columns), torch.randn(rows, columns), torch.randn(columns, 32)
    summary = kitsune_mlir.compile(Function(backward), args, target="sm_90a").summary
    shared = [e["tiles"] * e["pieces"] for e in summary["engines"] if e["engine"] == "simt" and e["pieces"] > 1]
    assert shared and min(shared) >= 132 and not summary["slow"], summary["engines"]


@pytest.mark.parametrize(("rows", "columns", "dtype"), [(20_001, 96, torch.float32), (4_097, 33, torch.bfloat16)])
def test_against_float64(rows: int, columns: int, dtype: torch.dtype) -> None:
    args = tuple(torch.randn(*shape).to(dtype) for shape in ((rows, columns), (rows, columns), (columns, 24)))
    model = Function(backward)
    program = planned_for_gpu(model, *args)
    found = program(*args)
    assert problems(found, exact(model, args), model(*args)) == []
    assert all(torch.equal(a, b) for a, b in zip(found, program(*args), strict=True)), "the order of a sum is fixed"
