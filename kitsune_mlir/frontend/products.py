"""Products of many rows by one matrix, two-dimensional whatever the rows' layout, and by a matrix of each row's group.

PyTorch repeats the matrix for a batch where the rows are not contiguous: a product for each of them, and a copy of the matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decompositions

__all__ = ["bmm", "grouped", "linear", "matmul", "mm"]

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


def _of_bytes(product: Any) -> Callable[[Tensor, Tensor], Any]:
    """A product of bytes as one of 32-bit integers, which has the same lowest byte: torch-mlir takes bytes to be quantized."""

    def decomposed(a: Tensor, b: Tensor) -> Any:
        if a.dtype not in (torch.int8, torch.uint8):
            return NotImplemented
        return product(a.to(torch.int32), b.to(torch.int32)).to(a.dtype)

    return decomposed


mm, bmm = _of_bytes(aten.mm.default), _of_bytes(aten.bmm.default)


def grouped(
    x: Tensor, weights: Tensor, ends: Tensor | None = None, bias: Tensor | None = None, out_dtype: torch.dtype | None = None
) -> Any:
    """`aten._grouped_mm` of rows x [t, k] by weights [e, k, n]: group e are the rows before its end that no group before has.

    Where groups end is known at run time only: every row by every weight, and of these products each row's own. Rows behind the
    last end, which PyTorch leaves unset, count as the last group's.
    """
    if bias is not None or weights.ndim != 3:
        return NotImplemented
    dtype = out_dtype or x.dtype
    if x.ndim == 3:
        return aten.bmm(x, weights).to(dtype)
    if ends is None:
        return NotImplemented
    count, rows = weights.shape[0], torch.arange(x.shape[0], device=x.device)
    group = (rows[:, None] >= ends[None, :-1]).sum(1)
    products = aten.bmm(x.expand(count, *x.shape), weights)
    return products.reshape(count * x.shape[0], -1)[group * x.shape[0] + rows].to(dtype)
