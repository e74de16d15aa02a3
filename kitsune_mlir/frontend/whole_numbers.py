"""Numbers beside tensors of integers and truth values, which torch-mlir takes for others, or ends the process at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["WHOLE_NUMBERS", "of_bytes"]

aten = torch.ops.aten
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def _in_range(value: Any, dtype: torch.dtype) -> Any:
    """A whole number beside a tensor, as elements of the type that both have: PyTorch keeps its last bits. Others stay."""
    if isinstance(value, bool | float | complex | Tensor) or dtype not in _INTEGERS:
        return value
    lowest, span = torch.iinfo(dtype).min, 1 << torch.iinfo(dtype).bits
    return (value - lowest) % span + lowest


def of_bytes(op: Any) -> Callable[..., Any]:
    """Arithmetic of bytes, in 32 bits: torch-mlir crashes on numbers beside tensors of these types, and on extremes of all."""

    def decomposed(*args: Any, **given: Any) -> Tensor:
        dtype = torch.result_type(*args) if len(args) == 2 else args[0].dtype
        own = [_in_range(value, dtype) for value in args]
        if dtype not in (torch.uint8, torch.int8):
            return NotImplemented if own == list(args) else op(*own, **given)
        wide = [v.to(torch.int32) if isinstance(v, Tensor) else v for v in own]
        return op(*wide, **given).to(dtype)

    return decomposed


def _compared(op: Any) -> Callable[..., Any]:
    """Floats beside a whole number: where the floats are constants, torch-mlir folds `<` and `>` to what lies in memory.
    Truth values beside one, which it takes for 0 and -1, integers beside one that they cannot be, and beside a float, which it
    compares in f64, PyTorch in the type that a sum would have."""

    def decomposed(x: Tensor, y: Any) -> Tensor:
        if x.dtype.is_floating_point:
            return op(x, float(y)) if isinstance(y, int) else NotImplemented
        kind = torch.result_type(x, y)
        own = _in_range(y, kind)
        same = kind.is_complex or (x.dtype == kind and own == y)
        return NotImplemented if same else op(x.to(kind), own)

    return decomposed


def _neg(x: Tensor) -> Tensor:
    """torch-mlir's goes through f32, which has 24 bits."""
    return NotImplemented if x.dtype.is_floating_point or x.dtype.is_complex else x * -1


_BYTES = (
    aten.mul.Tensor,
    aten.mul.Scalar,
    aten.sub.Tensor,
    aten.sub.Scalar,
    aten.rsub.Scalar,
    aten.remainder.Scalar,
    aten.remainder.Scalar_Tensor,
)


_COMPARISONS = (aten.lt.Scalar, aten.le.Scalar, aten.gt.Scalar, aten.ge.Scalar, aten.eq.Scalar, aten.ne.Scalar)

WHOLE_NUMBERS: dict[Any, Callable[..., Any]] = {
    **{op: of_bytes(op) for op in _BYTES},
    **{op: _compared(op) for op in _COMPARISONS},
    aten.neg.default: _neg,
}
"""Operator → decomposition."""
