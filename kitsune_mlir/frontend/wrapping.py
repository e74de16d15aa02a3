"""Tensors that go on at the other end: circular padding, and rolls along several dimensions. Each element is read once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.frontend.resizing import elements_at

__all__ = ["WRAPPING"]

aten = torch.ops.aten


def _wrapped(x: Tensor, low: dict[int, int], extents: Sequence[int]) -> Tensor:
    """Of each dimension `extents` elements, from `low` before its beginning on; at most once around."""
    first = min(low)
    places = []
    for dim in range(first, x.ndim):
        place = torch.arange(extents[dim], device=x.device) - low.get(dim, 0)
        if dim in low:
            size = x.shape[dim]
            after = torch.where(place >= size, place - size, place)
            place = torch.where(place < 0, place + size, after)
        places.append(place)
    return elements_at(x, places)


def _pad_circular(x: Tensor, pad: Sequence[int]) -> Tensor:
    low: dict[int, int] = {}
    for number, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        dim = x.ndim - 1 - number
        left = x.shape[dim] + min(before, 0) + min(after, 0)
        if left < max(before, after, 1):
            return NotImplemented
        if left < x.shape[dim]:  # what is cut off is not gone on with
            x = x.narrow(dim, max(-before, 0), left)
        low[dim] = max(before, 0)
    extents = [extent + low.get(dim, 0) for dim, extent in enumerate(x.shape)]
    for number, after in enumerate(pad[1::2]):
        extents[x.ndim - 1 - number] += max(after, 0)
    return _wrapped(x, low, extents) if low else x.clone()


def _roll(x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    """torch-mlir slices beyond the end where a shift is a multiple of the size."""
    if not dims:
        return _roll(x.reshape(-1), shifts, [0]).reshape(x.shape) if x.numel() else x.clone()
    amounts: dict[int, int] = {}
    for shift, dim in zip(shifts, dims, strict=True):
        amounts[dim % x.ndim] = amounts.get(dim % x.ndim, 0) + shift
    amounts = {dim: shift % x.shape[dim] for dim, shift in amounts.items() if x.shape[dim]}
    moved = {dim: shift for dim, shift in amounts.items() if shift}
    if not moved or not x.numel():
        return x.clone()
    if len(moved) > 1:
        return _wrapped(x, moved, x.shape)
    ((dim, shift),) = moved.items()
    first = x.shape[dim] - shift
    return torch.cat([x.narrow(dim, first, shift), x.narrow(dim, 0, first)], dim)


WRAPPING: dict[Any, Callable[..., Any]] = {aten._pad_circular.default: _pad_circular, aten.roll.default: _roll}
"""Operator → decomposition."""
