"""What backward passes are rewritten to, planned for a GPU and run on the host: beside float64, on odd sizes."""

import itertools

import pytest
import torch
from torch import Tensor

import kitsune_mlir
from bench.sweeps import Function
from test.numerics.compare import exact, problems
from test.programs.compiled import planned_for_gpu
from test.rotation import in_turn


def outer(x: Tensor, y: Tensor, v: Tensor, w: Tensor, g: Tensor) -> Tensor:
    """A layer of one column, and its input's gradient beside another's."""
    score = torch.tanh(x @ v[:64, :1])
    return score @ v[:64, :1].t() + g @ w.t()


def columns(x: Tensor, y: Tensor, v: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of joined tensors, of which one needs none; of two that overlap."""
    whole = g @ v.t()
    left = torch.relu(whole[:, :64]) @ w
    return left, (torch.tanh(y @ v.t())[:, 16:80] * 2)[:, 8:40]


def joined(x: Tensor, y: Tensor, v: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """A layer of joined tensors and its weight's gradient."""
    both = torch.cat([torch.relu(x @ w), y], 1)
    return torch.relu(both @ v), g.t() @ both


def norm(x: Tensor, y: Tensor, v: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    """A normalisation behind layers, and its gradient."""
    hidden = torch.relu(x @ w) @ w
    wide = hidden if hidden.dtype == torch.float64 else hidden.float()
    centered = wide - wide.mean(-1, keepdim=True)
    scale = torch.rsqrt(centered.square().mean(-1, keepdim=True) + 1e-5)
    unit = centered * scale
    grad = g.to(unit.dtype)
    back = scale * (grad - grad.mean(-1, keepdim=True) - unit * (grad * unit).mean(-1, keepdim=True))
    return (unit + y.to(unit.dtype)).to(x.dtype), back.to(x.dtype) @ w.t(), (grad * unit).sum(0)


CASES = {case.__name__: case for case in (outer, columns, joined, norm)}


def inputs(rows: int) -> tuple[Tensor, ...]:
    shapes = (rows, 64), (rows, 64), (128, 64), (64, 64), (rows, 64)
    return tuple((torch.randn(*shape) * 0.3).to(torch.bfloat16) for shape in shapes)


@pytest.mark.parametrize(("name", "rows"), in_turn([*itertools.product(CASES, [1, 7, 129, 1000])], 4))
def test_against_float64(name: str, rows: int) -> None:
    model, args = Function(CASES[name]), inputs(rows)
    assert problems(planned_for_gpu(model, *args)(*args), exact(model, args), model(*args)) == []


@pytest.mark.rotated(2)
@pytest.mark.parametrize("name", CASES)
def test_products_stay_on_tensor_cores(name: str) -> None:
    program = kitsune_mlir.compile(Function(CASES[name]), inputs(65_536), target="sm_90a")
    engines = [one["engine"] for one in program.summary["engines"]]
    assert "generic" not in engines and not program.summary["slow"], engines
    if name == "norm":
        assert "chain" in engines
        stored = [line for line in program.ir("stages").splitlines() if "kitsune.yield" in line]
        assert not any("tensor<65536x64xf32>" in line for line in stored), stored
