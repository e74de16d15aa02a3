"""Gradients of distances between all pairs of rows, and of weights given by direction and length."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.frontend.dtypes import widened

__all__ = ["NORM_GRADIENTS"]

aten = torch.ops.aten


def _distances(grad: Tensor, x1: Tensor, x2: Tensor, p: float, distances: Tensor) -> Tensor:
    """Of x1 [..., P, M] beside x2 [..., R, M]; grad and distances [..., P, R]."""
    apart = widened(x1).unsqueeze(-2) - widened(x2).unsqueeze(-3)
    grad, length = widened(grad).unsqueeze(-1), widened(distances).unsqueeze(-1)
    if p == 0:
        out = torch.zeros_like(apart) * grad
    elif p == 1:
        out = grad * torch.sign(apart)
    elif p == 2:
        out = grad * apart / length
    elif math.isinf(p):
        out = torch.where(apart.abs() == length, grad * torch.sign(apart), 0.0)
    else:
        out = grad * torch.sign(apart) * (apart.abs() / length) ** (p - 1)
        if p < 1:
            out = torch.where(apart == 0, 0.0, out)
    if p > 1 or 0 < p < 1:
        out = torch.where(length == 0, 0.0, out)
    return out.sum(-2).to(x1.dtype)


def _weight_norm(grad: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Of v and g in `v · g / norms`, where norms are those of v over all dimensions but one."""
    grad, direction, length, norms = (widened(t) for t in (grad, v, g, norms))
    others = [d for d in range(v.ndim) if d != dim % v.ndim]
    norms = norms.reshape([v.shape[d] if d not in others else 1 for d in range(v.ndim)])
    length = length.reshape(norms.shape)
    along = (grad * direction).sum(others, keepdim=True)
    of_v = length / norms * (grad - direction * (along / (norms * norms)))
    return of_v.to(v.dtype), (along / norms).reshape(g.shape).to(g.dtype)


def _shrunk(grad: Tensor, x: Tensor, limit: Any) -> Tensor:
    return torch.where((x >= -limit) & (x <= limit), 0.0, grad).to(grad.dtype)


NORM_GRADIENTS: dict[Any, Any] = {
    aten._cdist_backward.default: _distances,
    aten._weight_norm_interface_backward.default: _weight_norm,
    aten.hardshrink_backward.default: _shrunk,
    aten.softshrink_backward.default: _shrunk,
}
"""Operator → decomposition."""
