"""Gradients that are done some rows at a time are PyTorch's, on the host; what needs all rows at once stays whole."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bench.sweeps import Function
from kitsune_mlir import pipeline

PASS = "kitsune-micro-batches"


def network(x: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """Loss and gradients of two layers, the second of which reads the input again."""
    hidden = torch.relu(x @ v.T)
    joined = torch.cat([hidden, x], 1)
    made = joined @ w.T
    back = (made @ w)[:, : hidden.shape[1]] * (hidden > 0)
    return (made * made).sum() / 2, back.T @ x, back.sum(0), made.T @ joined


def positions(x: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """Each row is known by its number, which counts from the first of all rows."""
    scaled = torch.tanh(x) * torch.arange(x.shape[0], dtype=x.dtype)[:, None] / x.shape[0]
    return scaled.T @ x, scaled.amax(0), scaled.amin(0)


def normalised(x: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """Rows that wait for a sum over all of them, and are summed then."""
    centred = x - torch.tanh(x).sum(0)
    return ((torch.sin(centred) @ v.T).T @ x,)


def read_again(x: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """Rows that are needed before and after a sum over all of them."""
    rows = torch.tanh(x)
    return ((rows - rows.sum(0)).T @ x,)


def returned(x: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """Rows that are a result."""
    rows = torch.tanh(x @ v.T)
    return rows, rows.sum(0)


def parts(function: Callable, batches: int, *args: Tensor) -> tuple[tuple[Tensor, ...], int]:
    """Results, and how many products read `x` or a part of it with the first factor."""
    program = pipeline.compile(Function(function), args, target="host", options={"passes": {PASS: f"batches={batches}"}})
    results = program(*args)
    return results if isinstance(results, tuple) else (results,), program.ir("stages").count("tensor.extract_slice %arg0")


def arguments(rows: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    torch.manual_seed(rows)
    return tuple((torch.randn(*shape) / shape[-1] ** 0.5).to(dtype) for shape in ((rows, 12), (20, 12), (5, 32)))


@pytest.mark.parametrize(("rows", "batches"), [(1, 2), (7, 7), (129, 3), (1000, 8)])
@pytest.mark.parametrize("function", [network, positions, normalised])
def test_gradients(function: Callable, rows: int, batches: int) -> None:
    args = arguments(rows, torch.float32)
    results, slices = parts(function, batches, *args)
    assert bool(slices) == (rows > 1)
    for got, right in zip(results, function(*(arg.double() for arg in args)), strict=True):
        assert (got.double() - right).norm() <= 1e-5 * right.norm()


def test_sums_of_16_bit_rows_are_rounded_once() -> None:
    args = arguments(1000, torch.bfloat16)
    (whole, _), (cut, slices) = parts(network, 1, *args), parts(network, 8, *args)
    assert slices
    for one, other in zip(whole, cut, strict=True):
        assert (one.double() - other.double()).norm() <= 2**-9 * one.double().norm()


@pytest.mark.parametrize("function", [read_again, returned])
def test_all_rows_at_once(function: Callable) -> None:
    args = arguments(129, torch.float32)
    results, slices = parts(function, 3, *args)
    assert not slices
    for got, right in zip(results, function(*(arg.double() for arg in args)), strict=True):
        assert (got.double() - right).norm() <= 1e-5 * right.norm()
