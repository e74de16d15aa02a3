"""Means and variances of columns of 16-bit numbers, which are gone over once."""

import pytest
import torch
from torch import Tensor

from bench.sweeps import Function
from test.programs.compiled import planned_for_gpu


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """As batch normalisation takes them, over all but the channels, which lie innermost."""
    var, mean = torch.var_mean(x.permute(0, 3, 1, 2).float(), [0, 2, 3], correction=0)
    return var, mean


def images(shape: tuple[int, ...], dtype: torch.dtype, mean: float, spread: float) -> Tensor:
    return (torch.randn(shape) * spread + mean).to(dtype)


@pytest.mark.parametrize(("shape", "dtype", "mean", "spread"), [
    ((64, 14, 14, 256), torch.bfloat16, 0.3, 1.0), ((7, 129, 31, 64), torch.float16, -5.0, 0.1),
    ((1, 1000, 17, 40), torch.bfloat16, 1e3, 9.0),
])  # fmt: skip
def test_against_float64(shape: tuple[int, ...], dtype: torch.dtype, mean: float, spread: float) -> None:
    x = images(shape, dtype, mean, spread)
    program = planned_for_gpu(Function(moments), x)
    assert [stage["ops"].get("generic", 0) > 0 for stage in program.summary["stages"]].count(True) <= 2
    for args in (x, images(shape, dtype, -mean, spread)):
        var, found = program(args)
        wide = args.double()
        assert torch.allclose(found.double(), wide.mean((0, 1, 2)), rtol=1e-5, atol=1e-5 * spread)
        assert torch.allclose(var.double(), wide.var((0, 1, 2), correction=0), rtol=1e-4)


def test_equal_numbers_have_no_variance() -> None:
    x = torch.full((64, 14, 14, 64), 137.0).bfloat16()
    x[..., 1::2] = torch.randn(32).bfloat16()
    program = planned_for_gpu(Function(moments), x)
    var, mean = program(x)
    assert torch.equal(var, torch.zeros(64))
    assert torch.allclose(mean, x[0, 0, 0].float())


def test_a_first_number_far_out() -> None:
    x = torch.randn(64, 14, 14, 64).bfloat16()
    x[0, 0, 0] = 1000.0
    var, mean = planned_for_gpu(Function(moments), x)(x)
    wide = x.double()
    assert torch.allclose(mean.double(), wide.mean((0, 1, 2)), atol=1e-3)
    assert torch.allclose(var.double(), wide.var((0, 1, 2), correction=0), rtol=1e-2)
