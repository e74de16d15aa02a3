"""Gradients of bags of embeddings: each index adds its bag's gradient to the row of the table that it read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.frontend.dtypes import widened
from kitsune_mlir.frontend.embedding_bags import MAX, MEAN, bag_of

__all__ = ["BAG_GRADIENTS"]

aten = torch.ops.aten


def _of_table(
    grad: Tensor,
    indices: Tensor,
    bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    """grad [bags, width]; bag: of each index; maximum_indices [bags, width]: the rows that were largest."""
    wide = widened(grad)
    into = torch.zeros([num_weights, grad.shape[1]], dtype=wide.dtype, device=grad.device)
    if not indices.numel():
        return into.to(grad.dtype)
    if mode == MAX:
        source = torch.where((bag_size > 0).unsqueeze(1), wide, 0.0)
        return into.scatter_add(0, maximum_indices.to(torch.int64).clamp(min=0), source).to(grad.dtype)
    if mode == MEAN:
        wide = wide / bag_size.clamp(min=1).unsqueeze(1).to(wide.dtype)
    rows = wide[bag]
    if per_sample_weights is not None:
        rows = rows * widened(per_sample_weights).unsqueeze(1)
    if scale_grad_by_freq:
        ones = torch.ones_like(indices, dtype=wide.dtype)
        count = torch.zeros([num_weights], dtype=wide.dtype, device=grad.device).index_add(0, indices, ones)
        rows = rows / count[indices].unsqueeze(1)
    if padding_idx >= 0:
        rows = torch.where((indices != padding_idx).unsqueeze(1), rows, 0.0)
    return into.index_add(0, indices, rows).to(grad.dtype)


def _backward(
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Any:
    if sparse:
        return NotImplemented
    if not bag.numel():  # PyTorch's own forward leaves it out where it does not need it
        bag = bag_of(offsets[: grad.shape[0]], indices)
    rest = (num_weights, scale_grad_by_freq, mode, per_sample_weights, padding_idx)
    return _of_table(grad, indices, bag, bag_size, maximum_indices, *rest)


def _of_factors(
    grad: Tensor, weight: Tensor, indices: Tensor, offsets: Tensor, bag: Tensor, mode: int, padding_idx: int = -1
) -> Tensor:
    """Of `per_sample_weights`: each row's product with its bag's gradient."""
    if not bag.numel() and indices.numel():
        bag = bag_of(offsets[: grad.shape[0]], indices)
    out = (widened(grad)[bag] * widened(weight)[indices]).sum(1)
    out = torch.where(indices != padding_idx, out, 0.0) if padding_idx >= 0 else out
    return out.to(grad.dtype)


BAG_GRADIENTS: dict[Any, Any] = {
    aten._embedding_bag_backward.default: _backward,
    aten._embedding_bag_dense_backward.default: _of_table,
    aten._embedding_bag_per_sample_weights_backward.default: _of_factors,
}
"""Operator → decomposition; one that returns NotImplemented leaves the operator as it was."""
