"""Distances of each row from each row behind it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["DISTANCES"]

aten = torch.ops.aten


def _pairs(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Places of the first and of the second row of each pair, and their difference."""
    first, second = torch.triu_indices(x.shape[0], x.shape[0], 1, device=x.device).unbind(0)
    return first, second, x.index_select(0, first) - x.index_select(0, second)


def _pdist(x: Tensor, p: float = 2.0) -> Tensor:
    if x.shape[0] < 2 or not x.shape[1]:
        return NotImplemented
    apart = _pairs(x)[2].abs()
    if p == 0:
        return (apart != 0).to(x.dtype).sum(1)
    if p == 1:
        return apart.sum(1)
    if math.isinf(p):
        return apart.amax(1)
    return (apart * apart).sum(1).sqrt() if p == 2 else (apart**p).sum(1) ** (1 / p)


def _pdist_backward(grad: Tensor, x: Tensor, p: float, distances: Tensor) -> Tensor:
    """Equal rows have no gradient."""
    if x.shape[0] < 2 or not x.shape[1]:
        return NotImplemented
    if p == 0:
        return torch.zeros_like(x)
    first, second, apart = _pairs(x)
    grad, distances = grad.unsqueeze(1), distances.unsqueeze(1)
    size = apart.abs()
    if p == 1:
        slope = torch.sign(apart)
    elif math.isinf(p):
        slope = torch.sign(apart) * (size == distances)
    else:
        share = apart / distances if p == 2 else torch.sign(apart) * (size / distances) ** (p - 1)
        slope = torch.where((distances == 0) | (size == 0), 0.0, share)
    part = grad * slope
    return torch.zeros_like(x).index_add(0, first, part).index_add(0, second, -part)


DISTANCES: dict[Any, Callable[..., Any]] = {
    aten._pdist_forward.default: _pdist,
    aten._pdist_backward.default: _pdist_backward,
}
"""Operator → decomposition."""
