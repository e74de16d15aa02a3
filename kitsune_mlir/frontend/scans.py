"""Scans, orders and searches along a dimension, as operators that torch-mlir has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["SCANS"]

aten = torch.ops.aten
MOST = 4096
"""Elements of a scan: each result looks at all elements before it."""


def _pairs(x: Tensor, dim: int, what: str) -> tuple[Tensor, Tensor]:
    """For each element along `dim`, as last dimension but one, all elements, as the last; and which are not after it."""
    n = x.shape[dim]
    if n > MOST:
        raise NotImplementedError(f"{what} over {n} elements, {MOST} at most are supported")
    place = torch.arange(n, device=x.device)
    return x.movedim(dim, -1).unsqueeze(-2), place.unsqueeze(0) <= place.unsqueeze(1)


def _extremes(largest: bool) -> Callable[..., Any]:
    """`cummax`, `cummin`: of equal elements the last one counts, and NaN is beyond every number."""

    def decomposed(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        if x.ndim == 0:
            return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
        each, before = _pairs(x, dim, "cummax" if largest else "cummin")
        if x.dtype == torch.bool:
            values, indices = decomposed(x.to(torch.int32), dim)
            return values.to(torch.bool), indices
        real = x.dtype.is_floating_point
        info = torch.finfo(x.dtype) if real else torch.iinfo(x.dtype)
        worst = (float("-inf") if largest else float("inf")) if real else (info.min if largest else info.max)
        masked = torch.where(before, each, worst)
        values = torch.amax(masked, -1) if largest else torch.amin(masked, -1)
        best = each == values.unsqueeze(-1)
        if real:
            nan = ((each != each) & before).any(-1)
            values, best = torch.where(nan, float("nan"), values), torch.where(nan.unsqueeze(-1), each != each, best)
        places = torch.arange(x.shape[dim], device=x.device)
        indices = torch.amax(torch.where(best & before, places, 0), -1)
        return values.movedim(-1, dim), indices.movedim(-1, dim)

    return decomposed


def _logcumsumexp(x: Tensor, dim: int) -> Tensor:
    if x.ndim == 0:
        return x.clone()
    wide = x.to(torch.float32) if x.dtype in (torch.bfloat16, torch.float16) else x
    each, before = _pairs(wide, dim, "logcumsumexp")
    most = torch.amax(torch.where(before, each, float("-inf")), -1, keepdim=True)
    shift = torch.where((most - most) == 0, most, 0.0)  # an infinity is not taken off
    total = torch.where(before, torch.exp(each - shift), 0.0).sum(-1)
    return (torch.log(total) + shift.squeeze(-1)).movedim(-1, dim).to(x.dtype)


def _median(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The lower one of two; NaN where there is any."""
    if x.ndim == 0:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    dim %= x.ndim
    ordered, places = torch.sort(x, dim)
    middle = (x.shape[dim] - 1) // 2
    value, place = ordered.narrow(dim, middle, 1), places.narrow(dim, middle, 1)
    if x.dtype.is_floating_point:
        nan = (x != x).any(dim, keepdim=True)
        first = torch.argmax((x != x).to(torch.int32), dim, keepdim=True)
        value, place = torch.where(nan, float("nan"), value), torch.where(nan, first, place)
    return (value, place) if keepdim else (value.squeeze(dim), place.squeeze(dim))


def _median_of_all(x: Tensor) -> Tensor:
    return _median(x.reshape(-1), 0)[0]


def _searchsorted(
    bounds: Tensor,
    values: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """How many bounds are below each value (with `right`: not above it)."""
    if sorter is not None:
        bounds = torch.gather(bounds, -1, sorter)
    bounds, each = bounds.unsqueeze(-2), values.unsqueeze(-1)
    if values.ndim and bounds.ndim == 2 and values.ndim != 1:
        bounds = bounds.reshape([1] * values.ndim + [-1])
    elif not values.ndim:
        bounds, each = bounds.reshape(-1), each.reshape(1)
    after = right or side == "right"
    below = (bounds <= each) if after else (bounds < each)
    return below.to(torch.int64).sum(-1).to(torch.int32 if out_int32 else torch.int64)


def _searchsorted_number(bounds: Tensor, value: float, **given: Any) -> Tensor:
    return _searchsorted(bounds, torch.full((), value, dtype=bounds.dtype, device=bounds.device), **given)


SCANS: dict[Any, Callable[..., Any]] = {
    aten.cummax.default: _extremes(True),
    aten.cummin.default: _extremes(False),
    aten.logcumsumexp.default: _logcumsumexp,
    aten.median.dim: _median,
    aten.median.default: _median_of_all,
    aten.searchsorted.Tensor: _searchsorted,
    aten.searchsorted.Scalar: _searchsorted_number,
}
"""Operator → decomposition."""
