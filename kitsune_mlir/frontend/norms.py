"""Norms of vectors, and what is made of them: squares and roots where the exponent is one of these, sums in f32.

torch-mlir writes all norms with `pow`, of the elements and of the sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.frontend.dtypes import widened

__all__ = ["NORMS"]

aten = torch.ops.aten


def _norm(x: Tensor, p: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    """`linalg.vector_norm`: (sum of |x|^p)^(1/p), of p = 0 the number of elements that are not 0, of infinities an extreme."""
    dims = [dim] if isinstance(dim, int) else list(dim or ())
    x = x if dtype is None else x.to(dtype)
    if x.ndim == 0 or x.dtype.is_complex or not x.dtype.is_floating_point or x.numel() == 0:
        return NotImplemented
    wide, dims = widened(x), [d % x.ndim for d in dims] or list(range(x.ndim))
    p = 2.0 if p is None else float(p)
    if math.isinf(p):
        found = (torch.amax if p > 0 else torch.amin)(wide.abs(), dims, keepdim)
    elif p == 0:
        found = (wide != 0).to(wide.dtype).sum(dims, keepdim)
    elif p == 1:
        found = wide.abs().sum(dims, keepdim)
    elif p == 2:
        found = (wide * wide).sum(dims, keepdim).sqrt()
    else:
        found = (wide.abs() ** p).sum(dims, keepdim) ** (1 / p)
    return found.to(x.dtype)


def _any_norm(x: Tensor, p: Any = 2, dim: Sequence[int] | None = None, keepdim: bool = False, **given: Any) -> Tensor:
    return aten.linalg_vector_norm(x, 2 if p is None else p, dim or None, keepdim, **given)


def _pairwise_distance(x: Tensor, y: Tensor, p: float = 2, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    return aten.linalg_vector_norm(x - y + eps, p, [-1], keepdim)


def _cosine(x: Tensor, y: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """One pass over both: their product's sum is divided by the norms, not each of their elements."""
    dtype = torch.result_type(x, y)
    shape = torch.broadcast_shapes(x.shape, y.shape)
    if not dtype.is_floating_point or not shape or math.prod(shape) == 0:
        return NotImplemented
    x, y = (widened(v.to(dtype)).expand(shape) for v in (x, y))
    lengths = [(v * v).sum(dim).sqrt().clamp(min=eps) for v in (x, y)]
    return ((x * y).sum(dim) / lengths[0] / lengths[1]).to(dtype)


NORMS: dict[Any, Callable[..., Any]] = {
    aten.linalg_vector_norm.default: _norm,
    aten.norm.Scalar: _any_norm,
    aten.norm.ScalarOpt_dim: _any_norm,
    aten.norm.ScalarOpt_dim_dtype: _any_norm,
    aten.pairwise_distance.default: _pairwise_distance,
    aten.cosine_similarity.default: _cosine,
}
"""Operator → decomposition; one that returns NotImplemented leaves the operator to torch-mlir."""
