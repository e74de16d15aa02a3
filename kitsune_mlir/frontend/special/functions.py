"""What special functions have in common: the types that they compute in, and quotients of polynomials."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kitsune_mlir.frontend.dtypes import widened
from kitsune_mlir.frontend.polynomials import polynomial

__all__ = ["BERNOULLI", "Ratio", "is_whole", "of_floats", "ratio"]

Ratio = tuple[Sequence[float], Sequence[float]]
"""Coefficients of a numerator and of a denominator, from those of 1 on."""

BERNOULLI = (
    *(1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798, -174611 / 330),
    *(854513 / 138, -236364091 / 2730),
)
"""B₂, B₄, ..."""


def of_floats(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A decomposition from a function of f32 or f64 tensors of one type; others become such, integers of the default type."""

    @functools.wraps(function)
    def decomposed(*args: Tensor) -> Tensor:
        dtype = torch.result_type(*args) if len(args) == 2 else args[0].dtype
        if dtype.is_complex:
            return NotImplemented
        if not dtype.is_floating_point:
            dtype = torch.get_default_dtype()
        return function(*(widened(a.to(dtype)) for a in args)).to(dtype)

    return decomposed


def ratio(x: Tensor, coefficients: Ratio) -> Tensor:
    """A quotient of polynomials."""
    return polynomial(x, coefficients[0]) / polynomial(x, coefficients[1])


def is_whole(x: Tensor) -> Tensor:
    """Whether elements are integers, infinities included."""
    return torch.floor(x) == x
