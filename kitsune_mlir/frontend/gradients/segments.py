"""Gradients of reductions of segments: each row reads its segment's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.frontend.dtypes import widened
from kitsune_mlir.frontend.segments import segment_of

__all__ = ["SEGMENT_GRADIENTS"]

aten = torch.ops.aten


def _backward(
    grad: Tensor,
    output: Tensor,
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    initial: Any = None,
) -> Any:
    found = segment_of(data, lengths, offsets)
    if axis != 0 or found is None:
        return NotImplemented
    segment, count = found
    segments, beside = count.shape[0], [1] * (data.ndim - 1)
    at = segment.clamp(max=segments - 1)
    wide, rows = widened(data), widened(grad)[at]

    def summed(x: Tensor) -> Tensor:
        """What the rows of each row's segment sum up to."""
        zeros = torch.zeros([segments + 1, *x.shape[1:]], dtype=x.dtype, device=x.device)
        return zeros.index_add(0, segment, x)[segment]

    if reduce == "mean":
        rows = rows / count[at].reshape(-1, *beside).to(rows.dtype)
    elif reduce in ("max", "min"):
        # Equal ones share it.
        hit = ((data == output[at]) | (data != data)).to(rows.dtype)
        rows = rows * hit / summed(hit).clamp(min=1)
    elif reduce == "prod":
        rows = rows * _others(wide, segment, segments, summed, 1.0 if initial is None else float(initial))
    return torch.where((segment < segments).reshape(-1, *beside), rows, 0.0).to(data.dtype)


def _others(data: Tensor, segment: Tensor, segments: int, summed: Any, start: float) -> Tensor:
    """The product of all other rows of a row's segment: zeros and NaN are counted, for nothing can be divided by them."""
    zero, nan = data == 0, data != data
    plain = torch.where(zero | nan, 1.0, data)
    into = torch.full([segments + 1, *data.shape[1:]], start, dtype=data.dtype, device=data.device)
    product = into.index_reduce(0, segment, plain, "prod")[segment] / plain
    zeros, nans = (summed(mask.to(data.dtype)) - mask.to(data.dtype) for mask in (zero, nan))
    return torch.where(nans > 0, float("nan"), torch.where(zeros > 0, 0.0, product))


SEGMENT_GRADIENTS: dict[Any, Any] = {aten._segment_reduce_backward.default: _backward}
"""Operator → decomposition; one that returns NotImplemented leaves the operator as it was."""
