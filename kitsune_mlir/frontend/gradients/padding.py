"""Gradients of padding by mirror images and by copies of what is outermost: what was padded is added to where it came from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.frontend.dtypes import widened

__all__ = ["PADDING_GRADIENTS"]

aten = torch.ops.aten


def _placed(part: Tensor, dim: int, before: int, size: int) -> Tensor:
    """A part of a dimension of `size`, with zeros beside it."""
    amounts = [before, size - before - part.shape[dim]]
    return aten.constant_pad_nd(part, [*[0, 0] * (part.ndim - 1 - dim), *amounts]) if any(amounts) else part


def _mirrored(grad: Tensor, dim: int, before: int, after: int) -> Tensor:
    size = grad.shape[dim] - before - after
    out = grad.narrow(dim, before, size)
    if before:
        out = out + _placed(grad.narrow(dim, 0, before).flip(dim), dim, 1, size)
    if after:
        out = out + _placed(grad.narrow(dim, before + size, after).flip(dim), dim, size - 1 - after, size)
    return out


def _repeated(grad: Tensor, dim: int, before: int, after: int) -> Tensor:
    size = grad.shape[dim] - before - after
    if size == 1:
        return grad.sum(dim, keepdim=True)
    parts = [
        grad.narrow(dim, 0, before + 1).sum(dim, keepdim=True),
        grad.narrow(dim, before + 1, size - 2),
        grad.narrow(dim, before + size - 1, after + 1).sum(dim, keepdim=True),
    ]
    return torch.cat([part for part in parts if part.shape[dim]], dim)


def _of(added: Callable[[Tensor, int, int, int], Tensor]) -> Callable[..., Any]:
    """Dimension by dimension; one that is cropped gets zeros where nothing was read."""

    def decomposed(grad: Tensor, x: Tensor, padding: Sequence[int]) -> Any:
        out = widened(grad)
        for number, (before, after) in enumerate(zip(padding[::2], padding[1::2], strict=True)):
            dim = x.ndim - 1 - number
            left = x.shape[dim] + min(before, 0) + min(after, 0)
            if left < 1 or (added is _mirrored and left <= max(before, after)):
                return NotImplemented  # what is cropped on one side is seen on the other one
            out = added(out, dim, max(before, 0), max(after, 0))
            out = _placed(out, dim, max(-before, 0), x.shape[dim])
        return out.to(x.dtype)

    return decomposed


PADDING_GRADIENTS: dict[Any, Callable[..., Any]] = {
    **{getattr(aten, f"reflection_pad{rank}d_backward").default: _of(_mirrored) for rank in (1, 2, 3)},
    **{getattr(aten, f"replication_pad{rank}d_backward").default: _of(_repeated) for rank in (1, 2, 3)},
}
"""Operator → decomposition; one that returns NotImplemented leaves the operator as it was."""
