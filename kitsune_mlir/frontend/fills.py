"""Operators that make tensors out of a number or of nothing; torch 2.11's decompositions leave more of them than 2.13's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["FILLS"]

aten = torch.ops.aten


def _full(size: Sequence[int], value: Any, *, dtype: torch.dtype | None = None, device: Any = None, **layout: Any) -> Tensor:
    """Kept whole but for its number: torch would make it memory and a fill of it, of which torch-mlir lowers one only."""
    fitting = _as_held(value, dtype)
    if type(fitting) is type(value):
        return NotImplemented
    return aten.full.default(size, fitting, dtype=dtype, device=device)


def _as_held(value: Any, dtype: torch.dtype | None) -> Any:
    """A number as a tensor of a type holds it: torch-mlir would cut 2 down to a bit, 0."""
    if dtype is torch.bool:
        return bool(value)
    return int(value) if dtype is not None and not dtype.is_floating_point and not dtype.is_complex else value


def _scalar_tensor(value: Any, *, dtype: torch.dtype | None = None, device: Any = None, **layout: Any) -> Tensor:
    dtype = dtype or torch.get_default_dtype()
    return aten.full.default([], _as_held(value, dtype), dtype=dtype, device=device)


def _empty_strided(
    size: Sequence[int], stride: Sequence[int], *, dtype: Any = None, device: Any = None, **layout: Any
) -> Tensor:
    """Strides are no part of a value here; zeros, because some bits must be there until somebody writes."""
    dtype = dtype or torch.get_default_dtype()
    return aten.full.default(size, _as_held(0, dtype), dtype=dtype, device=device)


def _new_empty_strided(
    x: Tensor, size: Sequence[int], stride: Sequence[int], *, dtype: Any = None, device: Any = None, **layout: Any
) -> Tensor:
    return _empty_strided(size, stride, dtype=dtype or x.dtype, device=device or x.device)


FILLS: dict[Any, Callable[..., Any]] = {
    aten.full.default: _full,
    aten.scalar_tensor.default: _scalar_tensor,
    aten.empty_strided.default: _empty_strided,
    aten.new_empty_strided.default: _new_empty_strided,
}
"""Operator → decomposition to `aten.full`, which torch-mlir lowers."""
