"""Where the elements that are not zero are, as many as a model says: the k-th is where the count of them so far becomes k."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["POSITIONS"]

aten = torch.ops.aten


def _nonzero_static(x: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    count = x.numel()
    if not (count and size and x.ndim):
        return torch.full((size, x.ndim), fill_value, dtype=torch.int64, device=x.device)
    so_far = torch.cumsum((x != 0).reshape(-1).to(torch.int64), 0)
    place = torch.searchsorted(so_far, torch.arange(1, size + 1, device=x.device))
    steps = [math.prod(x.shape[dim + 1 :]) for dim in range(x.ndim)]
    columns = [torch.div(place, step, rounding_mode="floor") % n for step, n in zip(steps, x.shape, strict=True)]
    return torch.where((place < count).unsqueeze(1), torch.stack(columns, 1), fill_value)


POSITIONS: dict[Any, Callable[..., Any]] = {aten.nonzero_static.default: _nonzero_static}
"""Operator → decomposition."""
