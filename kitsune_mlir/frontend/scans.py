"""Scans that torch-mlir does not have, along a dimension, as `kitsune::running`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.frontend.dtypes import widened
from kitsune_mlir.frontend.running import running

__all__ = ["SCANS"]

aten = torch.ops.aten


def _extremes(largest: bool) -> Callable[..., Any]:
    """`cummax`, `cummin`: of equal elements the last one counts, and NaN is beyond every number."""
    kind = "max" if largest else "min"

    def decomposed(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        if x.ndim == 0:
            return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
        if x.dtype in (torch.bool, torch.uint8):
            values, indices = decomposed(x.to(torch.int32), dim)
            return values.to(x.dtype), indices
        dim %= x.ndim
        values = running(x, dim, kind)
        # An element that is as large as any before it has the last place of all these.
        best = x == values
        if x.dtype.is_floating_point:
            best = best | (x != x)
        places = torch.arange(x.shape[dim], device=x.device).reshape([-1 if d == dim else 1 for d in range(x.ndim)])
        return values, running(torch.where(best, places, 0), dim, "max")

    return decomposed


def _logcumsumexp(x: Tensor, dim: int) -> Tensor:
    if x.ndim == 0:
        return x.clone()
    return running(widened(x), dim % x.ndim, "logaddexp").to(x.dtype)


SCANS: dict[Any, Callable[..., Any]] = {
    aten.cummax.default: _extremes(True),
    aten.cummin.default: _extremes(False),
    aten.logcumsumexp.default: _logcumsumexp,
}
"""Operator → decomposition."""
