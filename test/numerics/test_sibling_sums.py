"""Two sums down the columns of one tensor, as a normalization's gradients are, which one stage makes."""

import pytest
import torch
from torch import Tensor

from bench.sweeps import Function
from test.numerics.compare import exact, problems
from test.programs.compiled import planned_for_gpu


def gradients(tangent: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of a normalization of rows: its bias, what is made of that, and its weight."""
    bias = tangent.sum((0, 1), dtype=torch.float32)
    normal = (x.float() - mean) * rstd
    return bias.to(x.dtype), (weight - 0.1 * bias).to(x.dtype), (tangent.float() * normal).sum((0, 1)).to(x.dtype)


@pytest.mark.parametrize(("batch", "rows", "columns", "dtype"), [
    (64, 197, 384, torch.bfloat16), (129, 31, 136, torch.float32), (1, 7001, 1000, torch.bfloat16),
])  # fmt: skip
def test_against_float64(batch: int, rows: int, columns: int, dtype: torch.dtype) -> None:
    tangent, x = (torch.randn(batch, rows, columns).to(dtype) for _ in range(2))
    mean, rstd = torch.randn(batch, rows, 1) * 0.1, torch.rand(batch, rows, 1) + 0.5
    args, model = (tangent, x, mean, rstd, torch.randn(columns)), Function(gradients)
    program = planned_for_gpu(model, *args)
    assert problems(program(*args), exact(model, args), model(*args)) == []
    assert len(program.summary["stages"]) == 1, "the tangent is read once"
