"""Sorts, what is found by sorting, and searches in what is sorted, as operators that torch-mlir has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.frontend.dtypes import worst_of

__all__ = ["ORDERS", "topk"]

aten = torch.ops.aten

PART = 4096
"""Elements of a part of a row of which only the first few are wanted."""


def _last(dtype: torch.dtype, descending: bool) -> Any:
    """What is sorted behind everything."""
    if dtype.is_floating_point and not descending:
        return float("nan")
    return worst_of(dtype, descending)


def _parts(x: Tensor, parts: int, descending: bool) -> tuple[Tensor, Tensor]:
    """Parts of equal length of the last dimension, each sorted, and the places in x of their elements."""
    n = x.shape[-1]
    length = -(-n // parts)
    if parts * length != n:
        x = aten.constant_pad_nd(x, [0, parts * length - n], _last(x.dtype, descending))
    values, places = aten.sort.default(x.reshape(*x.shape[:-1], parts, length), -1, descending)
    return values, places + torch.arange(parts, device=x.device).unsqueeze(-1) * length


def _bisected(bound: Tensor, most: int, holds: Callable[[Tensor], Tensor], start: Tensor | int = 0) -> Tensor:
    """The largest number from `start` to `bound`, at most `most` more than `start`, up to which `holds` is true.

    `holds` is asked for numbers from 1 on, up to `bound`; of more, and below `start` + 1, its answers do not count.
    """
    found: Any = start
    asked = bound.clamp(min=1)
    for bit in reversed(range(most.bit_length())):
        more = found + (1 << bit)
        inside = more <= bound
        found = torch.where(inside & holds(torch.minimum(more, asked)), more, found)
    return found


def sort(x: Tensor, dim: int = -1, descending: bool = False) -> Any:
    """`aten.sort`, stable. torch-mlir has a lowering along the last dimension."""
    dim %= x.ndim
    if x.dtype == torch.bool:
        values, places = sorted_(x.to(torch.int32), dim, descending)
        return values.to(torch.bool), places
    if dim != x.ndim - 1:
        values, places = sorted_(x.movedim(dim, -1), -1, descending)
        return values.movedim(-1, dim), places.movedim(-1, dim)
    return NotImplemented


def sorted_(x: Tensor, dim: int, descending: bool = False) -> tuple[Tensor, Tensor]:
    """`sort`, as an operator that is decomposed again."""
    return aten.sort.default(x, dim, descending)


def _stable(x: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    # Equal elements keep their order in every way that a sort is done.
    return aten.sort.default(x, dim, descending)


def topk(x: Tensor, k: int, dim: int, largest: bool) -> tuple[Tensor, Tensor]:
    """The first k of a sort; of long rows, of the first k of their parts."""
    x = x.movedim(dim, -1)
    n, places = x.shape[-1], None
    if n > PART and k <= PART // 4:
        values, where = _parts(x, -(-n // PART), largest)
        x, places = values[..., :k].flatten(-2), where[..., :k].flatten(-2)
        found, inner = topk(x, k, -1, largest)
        return found.movedim(-1, dim), torch.gather(places, -1, inner).movedim(-1, dim)
    values, where = sorted_(x, -1, largest)
    return values[..., :k].movedim(-1, dim), where[..., :k].movedim(-1, dim)


def _picked(values: Tensor, places: Tensor, dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    return (values, places) if keepdim else (values.squeeze(dim), places.squeeze(dim))


def _kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    if x.ndim == 0:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    dim %= x.ndim
    ordered, places = sorted_(x, dim)
    return _picked(ordered.narrow(dim, k - 1, 1), places.narrow(dim, k - 1, 1), dim, keepdim)


def _median(skips_nan: bool) -> Callable[..., Any]:
    """The lower one of two; NaN where there is any, or of the numbers that are none."""

    def decomposed(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        if x.ndim == 0:
            return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
        dim %= x.ndim
        ordered, places = sorted_(x, dim)
        middle = (x.shape[dim] - 1) // 2
        value, place = ordered.narrow(dim, middle, 1), places.narrow(dim, middle, 1)
        if x.dtype.is_floating_point:
            nan = x != x
            if skips_nan:
                numbers = x.shape[dim] - nan.to(torch.int64).sum(dim, keepdim=True)
                at = torch.div((numbers - 1).clamp(min=0), 2, rounding_mode="floor")
                value, place = torch.gather(ordered, dim, at), torch.gather(places, dim, at)
            else:
                first = torch.argmax(nan.to(torch.int32), dim, keepdim=True)
                any_ = nan.any(dim, keepdim=True)
                value, place = torch.where(any_, float("nan"), value), torch.where(any_, first, place)
        return _picked(value, place, dim, keepdim)

    return decomposed


def _of_all(decomposed: Callable[..., Any]) -> Callable[[Tensor], Tensor]:
    return lambda x: decomposed(x.reshape(-1), 0)[0]


def _mode(x: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The smallest of the numbers that come most often, and its last place."""
    if x.ndim == 0:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    dim %= x.ndim
    ordered, places = (t.movedim(dim, -1) for t in sorted_(x, dim))
    n = x.shape[dim]
    begins = aten.constant_pad_nd(ordered[..., 1:] != ordered[..., :-1], [1, 0], True)
    at = torch.arange(n, device=x.device).expand(ordered.shape)
    start = aten.cummax.default(torch.where(begins, at, 0), -1)[0]
    end = torch.argmax(at - start, -1, keepdim=True)  # of the first of the longest runs
    value, place = (torch.gather(t, -1, end).movedim(-1, dim) for t in (ordered, places))
    return _picked(value, place, dim, keepdim)


def _searchsorted(
    bounds: Tensor,
    values: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """How many bounds are below each value (with `right`: not above it); NaN is above all."""
    if sorter is not None:
        bounds = torch.gather(bounds, -1, sorter)
    after, n, shape = right or side == "right", bounds.shape[-1], values.shape
    if bounds.ndim == 1:
        values = values.reshape(-1)
    if n == 0:
        found = torch.zeros_like(values, dtype=torch.int64)
    else:

        def below(count: Tensor) -> Tensor:
            bound = torch.gather(bounds, -1, count - 1)
            return ~(bound > values) if after else ~(bound >= values)

        most = torch.full((), n, dtype=torch.int64, device=bounds.device).expand(values.shape)
        found = _bisected(most, n, below, torch.zeros_like(values, dtype=torch.int64))
    return found.reshape(shape).to(torch.int32 if out_int32 else torch.int64)


def _searchsorted_number(bounds: Tensor, value: float, **given: Any) -> Tensor:
    return _searchsorted(bounds, torch.full((), value, dtype=bounds.dtype, device=bounds.device), **given)


def _bucketize(values: Tensor, bounds: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    return _searchsorted(bounds, values, out_int32=out_int32, right=right)


ORDERS: dict[Any, Callable[..., Any]] = {
    aten.sort.default: sort,
    aten.sort.stable: _stable,
    aten.kthvalue.default: _kthvalue,
    aten.median.dim: _median(False),
    aten.median.default: _of_all(_median(False)),
    aten.nanmedian.dim: _median(True),
    aten.nanmedian.default: _of_all(_median(True)),
    aten.mode.default: _mode,
    aten.searchsorted.Tensor: _searchsorted,
    aten.searchsorted.Scalar: _searchsorted_number,
    aten.bucketize.Tensor: _bucketize,
}
"""Operator → decomposition."""
