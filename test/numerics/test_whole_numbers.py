"""Integers, bytes and truth values at the ends of their ranges, and quotients that are rounded down: as PyTorch has them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import kitsune_mlir
from test.numerics.gradients import HOST
from test.programs.compiled import planned_for_gpu

TRUTH, OTHER = torch.tensor([[True, False, True, False]]), torch.tensor([[True, True, False, False]])
NUMBERS = torch.tensor([[-128, -56, 127, 0, -1, 44, 1]])
LARGE = torch.tensor([(1 << 63) - 1, 1 - (1 << 63), 1 << 62, -7, 7, 0])


def as_eager(function: Callable[..., Any], *args: Tensor, planned: bool = False) -> None:
    """All results, their types too, bit by bit; nan is nan."""
    run = planned_for_gpu(function, *args) if planned else kitsune_mlir.compile(function, args, target="host", options=HOST)
    for got, wanted in zip(tree_leaves(run(*args)), tree_leaves(function(*args)), strict=True):
        assert got.dtype == wanted.dtype
        torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("planned", (False, True), ids=("host", "gpu"))
def test_truth_values(planned: bool) -> None:
    def several(x: Tensor, y: Tensor) -> Any:
        return (
            torch.clamp_min(x, y), torch.clamp_max(x, y), torch.maximum(x, y), x + True, x + False, x < -1, x >= -1, x > 0,
            x == 1, x.sum(1, dtype=torch.bool), x.to(torch.complex64), x.to(torch.float32),
        )  # fmt: skip

    as_eager(several, TRUTH, OTHER, planned=planned)


@pytest.mark.parametrize("dtype", (torch.uint8, torch.int8, torch.int16, torch.int32), ids=str)
@pytest.mark.parametrize("number", (-1, 200, 300, 1 << 15, (1 << 33) + 7))
def test_numbers_that_a_type_does_not_have(dtype: torch.dtype, number: int) -> None:
    """Their last bits count."""
    several = (operator.lt, operator.ge, operator.eq, operator.ne, operator.add, operator.sub, operator.mul)
    kept = number % (1 << torch.iinfo(dtype).bits)
    divided = (operator.floordiv, operator.mod) if kept else ()  # by zero PyTorch raises an error
    as_eager(lambda x: [op(x, number) for op in (*several, *divided)], NUMBERS.to(dtype))


@pytest.mark.parametrize("dtype", (torch.uint8, torch.int8, torch.bool, torch.int16), ids=str)
def test_results_in_small_types(dtype: torch.dtype) -> None:
    x = torch.randint(-100, 100, (3, 5))
    as_eager(lambda x: (x.sum(1, dtype=dtype), x.sum(dtype=dtype), x.prod(1, dtype=dtype), x.prod(dtype=dtype)), x)


def test_bytes_as_complex_numbers() -> None:
    as_eager(lambda x: x.to(torch.complex64), NUMBERS.to(torch.uint8))


@pytest.mark.parametrize("dtype", (torch.uint8, torch.int32), ids=str)
def test_a_sum_of_products_keeps_its_type(dtype: torch.dtype) -> None:
    as_eager(torch.addbmm, *(torch.randint(0, 4, shape).to(dtype) for shape in ((2, 3), (5, 2, 7), (5, 7, 3))))


@pytest.mark.parametrize("dtype", (torch.uint8, torch.int8, torch.int32, torch.int64), ids=str)
@pytest.mark.parametrize("planned", (False, True), ids=("host", "gpu"))
def test_shifts_by_all_bits(dtype: torch.dtype, planned: bool) -> None:
    """And by more, or by less than none."""
    bits = torch.iinfo(dtype).bits
    by = [0, 1, bits - 2, bits - 1, bits, bits + 1, 100, *([-1, -bits] if dtype.is_signed else [])]
    x, by = torch.meshgrid(torch.tensor([1, 5, 127, 0, -1, -128]).to(dtype), torch.tensor(by).to(dtype), indexing="ij")
    as_eager(
        lambda x, n: (torch.bitwise_left_shift(x, n), torch.bitwise_right_shift(x, n)),
        *(t.contiguous() for t in (x, by)),
        planned=planned,
    )


@pytest.mark.parametrize("dtype", (torch.uint8, torch.int8, torch.int32, torch.int64), ids=str)
def test_negatives(dtype: torch.dtype) -> None:
    """To the last bit, of what f32 has no number for, too."""
    x = torch.tensor([(1 << 24) + 1, -(1 << 24) - 3, (1 << 31) - 1, 5, 0, -128, (1 << 53) + 1, -(1 << 62) - 1]).to(dtype)
    as_eager(lambda x: (-x, x == 16777216.0, x < 2.0**53, x >= 0.5), x)
    as_eager(torch.neg, x, planned=True)


@pytest.mark.parametrize("planned", (False, True), ids=("host", "gpu"))
def test_quotients_of_large_integers(planned: bool) -> None:
    x, y = torch.meshgrid(LARGE, torch.tensor([7, -5, 1, (1 << 53) + 1, -3]), indexing="ij")
    as_eager(lambda x, y: (x // y, torch.div(x, y, rounding_mode="floor")), x.contiguous(), y.contiguous(), planned=planned)


@pytest.mark.parametrize("planned", (False, True), ids=("host", "gpu"))
def test_floats_rounded_down(planned: bool) -> None:
    """By what is not a power of two a quotient that is rounded may be above what it should be rounded down to."""
    special = torch.tensor([5.0, -5, 6, 1, -1, 1e10, 0, -0.0, 7, -1e-8, torch.inf, -torch.inf, torch.nan, 0.3])
    x, y = torch.meshgrid(special, torch.tensor([0.1, -0.1, 0.2, 2, torch.inf, -torch.inf, 0, torch.nan, 3]), indexing="ij")
    as_eager(lambda x, y: (x // y, x // 0.1, x // 2), x.contiguous(), y.contiguous(), planned=planned)
    as_eager(lambda x, y: torch.div(x, y, rounding_mode="floor"), x.double(), y.double())


def test_what_is_close() -> None:
    x = torch.tensor([torch.inf, -torch.inf, torch.nan, 1, 1 + 1e-6, 0, 2])
    x, y = (t.contiguous() for t in torch.meshgrid(x, x, indexing="ij"))
    as_eager(lambda x, y: (x.isclose(y), x.isclose(y, equal_nan=True), x.isclose(y, rtol=0, atol=0)), x, y)
    as_eager(lambda x, y: x.isclose(y, rtol=0.5), torch.arange(5), torch.tensor([1, 1, 4, 4, 4]))
