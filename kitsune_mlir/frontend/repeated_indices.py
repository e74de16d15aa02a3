"""Gathers by one index for whole rows, which graph libraries spread over the columns: rows are read, by a number each.

Such a gather is the gradient of a sum of messages by `scatter_add`; its index would be a tensor of its own in memory, of eight
bytes an element.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["GATHERS"]

aten = torch.ops.aten


def _gather(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Any:
    """`index_select` where all elements beside each other along the other dimensions have the same index.

    Args:
        x, dim, index, sparse_grad: as of `torch.gather`.
    """
    if x.ndim < 2 or sparse_grad or index.ndim != x.ndim:
        return NotImplemented
    dim %= x.ndim
    others = [d for d in range(x.ndim) if d != dim]
    if not all(index.shape[d] == x.shape[d] and (index.shape[d] == 1 or index.stride(d) == 0) for d in others):
        return NotImplemented
    if all(index.shape[d] == 1 for d in others) or not index.numel():
        return NotImplemented
    for d in reversed(others):
        index = index.select(d, 0)
    return x.index_select(dim, index)


GATHERS: dict[Any, Any] = {aten.gather.default: _gather}
"""By operator, for the table of decompositions."""
