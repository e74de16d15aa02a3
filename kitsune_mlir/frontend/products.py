"""Products of many rows by one matrix, as two-dimensional products whatever the rows' layout.

PyTorch repeats the matrix for a batch where the rows are not contiguous: a product for each of them, and a copy of the matrix.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._decomp import decompositions

__all__ = ["linear", "matmul"]

aten = torch.ops.aten


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    """`aten.linear`: x [..., k] by weight [n, k] (or [k]), with a bias of n."""
    if weight.ndim != 2 or x.ndim < 1:
        product = aten.matmul(x, weight.t())
        return product if bias is None else product + bias
    rows = x.reshape(-1, x.shape[-1])
    product = aten.mm(rows, weight.t()) if bias is None else aten.addmm(bias, rows, weight.t())
    return product.reshape([*x.shape[:-1], weight.shape[0]])


def matmul(a: Tensor, b: Tensor) -> Any:
    """`aten.matmul`: [..., m, k] by [k, n]; of other shapes as PyTorch has it."""
    if a.ndim < 3 or b.ndim != 2:
        return decompositions.matmul(a, b)
    return aten.mm(a.reshape(-1, a.shape[-1]), b).reshape([*a.shape[:-1], b.shape[1]])
