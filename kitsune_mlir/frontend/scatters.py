"""Scatters as `index_add`, which adds rows by many tasks side by side: torch-mlir writes one index for each element instead."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

__all__ = ["SCATTERS"]

aten = torch.ops.aten


def _scatter_add(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """Rows, where one index is expanded along all other dimensions (PyG's way); else elements, by their place in memory."""
    if x.ndim == 0 or index.numel() == 0:
        return NotImplemented
    dim %= x.ndim
    source = source[tuple(slice(0, size) for size in index.shape)]
    if (rows := _rows(x, dim, index)) is not None:
        return torch.index_add(x, dim, rows, source)
    strides = [math.prod(x.shape[d + 1 :]) for d in range(x.ndim)]
    place = index * strides[dim]
    for d in range(x.ndim):
        if d != dim:
            steps = torch.arange(index.shape[d], device=index.device) * strides[d]
            place = place + steps.reshape([-1 if each == d else 1 for each in range(x.ndim)])
    return torch.index_add(x.reshape(-1), 0, place.reshape(-1), source.reshape(-1)).reshape(x.shape)


def _rows(x: Tensor, dim: int, index: Tensor) -> Tensor | None:
    """The one index that is expanded along all other dimensions; None where they have indices of their own."""
    others = [d for d in range(x.ndim) if d != dim]
    if any(index.shape[d] != x.shape[d] or (index.stride(d) != 0 and x.shape[d] != 1) for d in others):
        return None
    for d in reversed(others):
        index = index.select(d, 0)
    return index


def _scatter_reduce(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    """Sums and means of floats; the others are torch-mlir's."""
    if reduce not in ("sum", "mean") or not x.dtype.is_floating_point or x.ndim == 0 or index.numel() == 0:
        return NotImplemented
    if reduce == "sum" and include_self:
        return torch.scatter_add(x, dim, index, source)
    dim %= x.ndim
    if (rows := _rows(x, dim, index)) is not None:
        ones = torch.ones_like(rows, dtype=torch.float32)
        none = torch.zeros([x.shape[dim]], dtype=torch.float32, device=x.device)
        hits = torch.index_add(none, 0, rows, ones).reshape([-1 if d == dim else 1 for d in range(x.ndim)])
    else:
        ones = torch.ones_like(index, dtype=torch.float32)
        hits = torch.scatter_add(torch.zeros_like(x, dtype=torch.float32), dim, index, ones)
    wide = x.to(torch.float32) if x.dtype in (torch.bfloat16, torch.float16) else x
    start = wide if include_self else torch.where(hits > 0, 0.0, wide)
    total = torch.scatter_add(start, dim, index, source.to(wide.dtype))
    if reduce == "mean":
        total = total / torch.clamp(hits + float(include_self), min=1.0)
    return total.to(x.dtype)


SCATTERS: dict[Any, Any] = {aten.scatter_add.default: _scatter_add, aten.scatter_reduce.two: _scatter_reduce}
"""By operator, for the table of decompositions."""
