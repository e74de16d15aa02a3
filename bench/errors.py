"""How far results are from exact ones, and how far they may be: not more than twice as far as eager PyTorch's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

__all__ = ["LEAST", "is_right", "relative_error", "tensors_of"]

LEAST = {"f32": 1e-5, "bf16": 1e-2}
"""Errors, ‖out - exact‖ / ‖exact‖, that are right whatever eager's own is."""


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors of a result."""
    if isinstance(value, Tensor):
        return [value]
    values = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
    return [tensor for one in values for tensor in tensors_of(one)]


def relative_error(found: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """The largest ‖found - exact‖ / ‖exact‖ of tensors of floating-point numbers."""
    pairs = [(f.double(), e) for f, e in zip(found, exact, strict=True) if e.is_floating_point() and e.numel()]
    return max((float((f - e).norm() / e.norm().clamp(min=1e-30)) for f, e in pairs), default=0.0)


def is_right(error: float, eager_error: float, dtype: str) -> bool:
    """Whether an error is small enough beside eager's own."""
    return error <= max(2 * eager_error, LEAST[dtype])
