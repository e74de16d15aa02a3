"""Triangular systems of few unknowns, solved one after the other. A zero on the diagonal gives infinities, as in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["SMALL_MATRICES"]

aten = torch.ops.aten
MOST_UNKNOWNS = 8


def _solve_triangular(a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    n = a.shape[-1]
    if not 0 < n <= MOST_UNKNOWNS or not b.numel() or a.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    if not left:  # X·A = B is Aᵀ·Xᵀ = Bᵀ
        return _solve_triangular(a.mT, b.mT, upper=not upper, unitriangular=unitriangular).mT.clone()
    found: dict[int, Tensor] = {}
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    for i in reversed(range(n)) if upper else range(n):
        row = b[..., i : i + 1, :]
        for j, known in found.items():
            row = row - a[..., i : i + 1, j : j + 1] * known
        found[i] = row if unitriangular else row / a[..., i : i + 1, i : i + 1]
    rows = [found[i].expand(*batch, 1, b.shape[-1]) for i in range(n)]
    return torch.cat(rows, -2)


SMALL_MATRICES: dict[Any, Callable[..., Any]] = {aten.linalg_solve_triangular.default: _solve_triangular}
"""Operator → decomposition."""
