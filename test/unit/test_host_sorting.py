"""Sorts on the host: merges of rows, with what belongs to their elements."""

import pytest
import torch

import kitsune_mlir
from bench.sweeps import Function


@pytest.mark.rotated(4)
@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_values_and_places(dim, dtype):
    torch.manual_seed(dim)
    x = (torch.randn(3, 7, 101) * 3).to(dtype)
    if dtype.is_floating_point:
        x.view(-1)[::29], x.view(-1)[::31], x.view(-1)[::41] = float("nan"), float("-inf"), -0.0

    def both(x):
        return *x.sort(dim=dim, stable=True), *x.sort(dim=dim, stable=True, descending=True)

    for found, want in zip(kitsune_mlir.compile(Function(both), (x,), target="host")(x), both(x), strict=True):
        torch.testing.assert_close(found, want, rtol=0, atol=0, equal_nan=True)


def test_a_long_row():
    """It takes as many steps as its length times the logarithm of that."""
    x = torch.randint(0, 1000, (100_003,))
    found = kitsune_mlir.compile(Function(lambda x: x.sort(stable=True)), (x,), target="host")(x)
    assert all(map(torch.equal, found, x.sort(stable=True)))
