"""A joined tensor that a chain of products reads and something else, too: made before the chain, which stays one stage."""

import pytest
import torch
from torch import Tensor

import kitsune_mlir
from bench.sweeps import Function
from test.numerics.compare import exact, problems
from test.programs.compiled import planned_for_gpu


def leading(x: Tensor, y: Tensor, v: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """A layer's input is joined, and a factor of its weight's gradient."""
    joined = torch.cat([x * 2, y], 1)
    return torch.relu(joined @ v) @ w, joined.t() @ g


def between(x: Tensor, y: Tensor, v: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """The same amid the layers: the gradient reads the parts, and one chain joins them in registers."""
    hidden = torch.cat([torch.relu(torch.relu(x @ w) @ w), y], 1)
    return torch.relu(torch.relu(hidden @ v) @ w) @ w, hidden.t() @ g


def returned(x: Tensor, y: Tensor, v: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """The same, and it is a result."""
    hidden = torch.cat([torch.relu(torch.relu(x @ w) @ w), y], 1)
    return torch.relu(torch.relu(hidden @ v) @ w) @ w, hidden


def inside(x: Tensor, y: Tensor, v: Tensor, w: Tensor, g: Tensor) -> Tensor:
    """Nothing else reads it."""
    return torch.relu(torch.cat([x, y], 1) @ v) @ w


def inputs(rows: int) -> tuple[Tensor, ...]:
    shapes = (rows, 64), (rows, 64), (128, 64), (64, 64), (rows, 64)
    return tuple((torch.randn(*shape) * 0.2).to(torch.bfloat16) for shape in shapes)


@pytest.mark.rotated(1)
@pytest.mark.parametrize(("run", "chains"), [(leading, 1), (between, 1), (returned, 2), (inside, 1)])
def test_products_stay_on_tensor_cores(run, chains: int) -> None:
    summary = kitsune_mlir.compile(Function(run), inputs(65_536), target="sm_90a").summary
    engines = [one["engine"] for one in summary["engines"]]
    assert "generic" not in engines and engines.count("chain") == chains, engines
    assert not summary["slow"]


@pytest.mark.rotated(1)
@pytest.mark.parametrize("run", [leading, between, returned, inside])
def test_against_float64(run) -> None:
    model, args = Function(run), inputs(1_029)
    assert problems(planned_for_gpu(model, *args)(*args), exact(model, args), model(*args)) == []
