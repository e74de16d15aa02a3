"""Reductions of segments: rows side by side, so many each; the first dimension only."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.frontend.dtypes import widened

__all__ = ["SEGMENTS", "segment_of"]

aten = torch.ops.aten
_START = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": float("-inf"), "min": float("inf")}
REDUCTIONS = {"sum": "sum", "mean": "sum", "prod": "prod", "max": "amax", "min": "amin"}


def segment_of(data: Tensor, lengths: Tensor | None, offsets: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """The segment of each row (one too many for rows behind the last segment), and how many rows each has."""
    given = lengths if offsets is None else offsets
    if given is None or given.ndim != 1 or not data.numel() or not given.numel():
        return None
    if offsets is None:
        assert lengths is not None
        ends, count = lengths.cumsum(0), lengths
    else:
        ends, count = offsets[1:], offsets[1:] - offsets[:-1]
    if not ends.numel():
        return None
    rows = torch.arange(data.shape[0], device=data.device).to(ends.dtype)
    return torch.searchsorted(ends, rows, right=True), count


def _reduced(
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Any = None,
) -> Any:
    found = segment_of(data, lengths, offsets)
    if axis != 0 or found is None or indices is not None or not data.dtype.is_floating_point:
        return NotImplemented
    segment, count = found
    wide = widened(data)
    start = _START[reduce] if initial is None else float(initial)
    into = torch.full([count.shape[0] + 1, *data.shape[1:]], start, dtype=wide.dtype, device=data.device)
    if reduce == "sum" or reduce == "mean":
        out = into.index_add(0, segment, wide)
    else:
        out = into.index_reduce(0, segment, wide, REDUCTIONS[reduce])
    out = out[:-1]
    if reduce == "mean":
        count = count.reshape([-1] + [1] * (data.ndim - 1)).to(out.dtype)
        nothing = float("nan") if initial is None else start
        out = torch.where(count == 0, nothing, out / count)
    return out.to(data.dtype)


SEGMENTS: dict[Any, Any] = {aten.segment_reduce.default: _reduced}
"""Operator → decomposition; one that returns NotImplemented leaves the operator as it was."""
