"""`as_strided_scatter`: what becomes of a write through `as_strided` without writes; its gradient has one, too."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["STRIDING", "is_row_major"]

aten = torch.ops.aten


def is_row_major(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether elements lie in the order of their indices, one beside the other; strides of dimensions of one say nothing."""
    step = 1
    for extent, apart in zip(reversed(size), reversed(stride), strict=True):
        if extent != 1 and apart != step:
            return False
        step *= extent
    return True


def _as_strided_scatter(
    x: Tensor, source: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """`x` with `source` at the places that `x.as_strided(size, stride, storage_offset)` shows."""
    sizes = (*x.shape, *size, *stride, storage_offset, x.storage_offset())
    if any(isinstance(n, torch.SymInt) for n in sizes) or not x.is_contiguous():
        return NotImplemented
    first = 0 if storage_offset is None else int(storage_offset - x.storage_offset())
    if first == 0 and math.prod(size) == x.numel() and is_row_major(size, stride):
        return source.reshape(x.shape)
    place = torch.full((), first, dtype=torch.int64, device=x.device)
    for extent, apart in zip(size, stride, strict=True):
        place = place.unsqueeze(-1) + torch.arange(extent, device=x.device) * apart
    return x.reshape(-1).index_put((place.reshape(-1),), source.reshape(-1)).reshape(x.shape)


STRIDING: dict[Any, Callable[..., Any]] = {aten.as_strided_scatter.default: _as_strided_scatter}
"""Operator → decomposition."""
