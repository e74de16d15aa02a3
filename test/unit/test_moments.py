"""Means and sums of squares by parts, beside float64's, and what is left whole."""

import math

import pytest
import torch
import torch.nn.functional as F

import kitsune_mlir
from kitsune_mlir.frontend.moments import centred_squares, moments_by_parts

CUT = {
    "two dimensions": ((6, 5, 3000, 4), [0, 2, 3]),
    "one row": ((40000,), [0]),
    "an image of one group": ((2, 1, 64, 28, 28), [3, 4, 2]),
}
WHOLE = {
    "many rows": ((300, 20000), [1]),
    "short rows": ((4, 8192), [1]),
    "columns": ((40960, 7), [0]),
    "a prime number": ((3, 20011), [1]),
    "nothing": ((0, 5), [0]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CUT)
def test_parts_are_as_exact_as_the_whole(name, dtype):
    shape, dims = CUT[name]
    torch.manual_seed(len(name))
    # Far from zero: where squares of the numbers themselves were added, nothing would be left of the variance.
    x = (torch.randn(shape) * 2 + 300).to(dtype)
    found = moments_by_parts(x, dims)
    assert found is not None
    wanted, plain = centred_squares(x.double(), dims), centred_squares(x.float(), dims)
    for got, exact, whole in zip(found, wanted, plain, strict=True):
        assert got.shape == exact.shape and got.dtype == torch.float32
        error, least = (got - exact).abs().max().item(), 1e-6 * exact.abs().max().item()
        assert error <= max(2 * (whole - exact).abs().max().item(), least)


@pytest.mark.parametrize("name", WHOLE)
def test_what_fits_or_cannot_be_cut_stays_whole(name):
    shape, dims = WHOLE[name]
    assert moments_by_parts(torch.zeros(shape), dims) is None


def test_a_norm_of_one_group_is_as_exact_as_torchs():
    x = torch.randn(2, 24, 28, 31) * 2 + 30
    program = kitsune_mlir.compile(lambda x: F.group_norm(x, 1), (x,), target="host")
    wanted = F.group_norm(x.double(), 1)
    error, own = ((found.double() - wanted).abs().max().item() for found in (program(x), F.group_norm(x, 1)))
    assert error <= 2 * own + 1e-6


def test_infinite_and_missing_numbers_are_not_hidden():
    x = torch.randn(3, 40000)
    x[1, 5], x[2, 7] = math.inf, math.nan
    mean, squares = moments_by_parts(x, [1])
    assert mean[0].isfinite() and squares[0].isfinite()
    assert mean[1].isinf() and squares[1].isnan() and mean[2].isnan() and squares[2].isnan()
