"""The largest and smallest elements with their places: the extreme of the values, then the first position that has it.

torch-mlir's form carries value and position through one loop, which is no reduction that threads could share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["EXTREMA"]

aten = torch.ops.aten
SHORT_ROW = 32
"""Rows of fewer elements are not reduced by themselves on the way to one element of all."""


def _extremes(x: Tensor, dim: int, largest: bool) -> tuple[Tensor, Tensor]:
    """Extreme values along a dimension, which stays as 1, and the first places that hold them (i32)."""
    size = x.shape[dim]
    values = (torch.amax if largest else torch.amin)(x, dim, keepdim=True)
    # NaN counts as the most extreme number, as in torch, and equals nothing, itself included.
    found = (x == values) | (x != x) if x.dtype.is_floating_point else x == values
    shape = [size if d == dim else 1 for d in range(x.ndim)]
    places = torch.arange(size, dtype=torch.int32, device=x.device).reshape(shape)
    behind = size if isinstance(size, int) else torch.iinfo(torch.int32).max  # a symbol would get a value here
    return values, torch.amin(torch.where(found, places, behind), dim, keepdim=True)


def _unknown(x: Tensor) -> bool:
    return x.dtype == torch.bool or x.dtype.is_complex or x.numel() == 0 or x.numel() >= 1 << 31


def _of_all(x: Tensor, largest: bool) -> Tensor:
    """The place of the extreme of all elements: that of its row, and its place in there, so that all is read once."""
    if x.ndim < 2 or x.shape[-1] < SHORT_ROW:
        return _extremes(x.reshape(-1), 0, largest)[1].reshape(()).to(torch.int64)
    length = x.shape[-1]
    values, places = _extremes(x.reshape(-1, length), 1, largest)
    row = _extremes(values.reshape(-1), 0, largest)[1]
    return (row.to(torch.int64) * length + places.reshape(-1).index_select(0, row)).reshape(())


def _arg(largest: bool) -> Callable[..., Any]:
    def decomposed(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        if _unknown(x):
            return NotImplemented
        if dim is None or x.ndim == 0:
            place = _of_all(x, largest)
            return place.reshape([1] * x.ndim) if keepdim else place
        place = _extremes(x, dim % x.ndim, largest)[1].to(torch.int64)
        return place if keepdim else place.squeeze(dim)

    return decomposed


def _with_place(largest: bool) -> Callable[..., Any]:
    def decomposed(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        if _unknown(x) or x.ndim == 0:
            return NotImplemented
        values, places = _extremes(x, dim % x.ndim, largest)
        both = values, places.to(torch.int64)
        return both if keepdim else (both[0].squeeze(dim), both[1].squeeze(dim))

    return decomposed


EXTREMA: dict[Any, Callable[..., Any]] = {
    aten.argmax.default: _arg(True),
    aten.argmin.default: _arg(False),
    aten.max.dim: _with_place(True),
    aten.min.dim: _with_place(False),
}
"""Operator → decomposition."""
