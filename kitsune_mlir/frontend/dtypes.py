"""Types that decompositions compute in, and the ends of their ranges."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["CASTS", "NARROW", "widened", "worst_of"]

NARROW = (torch.bfloat16, torch.float16)
CASTS = (torch.ops.aten._to_copy.default, torch.ops.prims.convert_element_type.default)
"""Operators that give elements another type."""


def widened(x: Tensor) -> Tensor:
    """`x` in the type that torch's kernels compute in: f32 for bf16 and f16."""
    return x.to(torch.float32) if x.dtype in NARROW else x


def worst_of(dtype: torch.dtype, largest: bool) -> Any:
    """The number of a type that is never the largest (or smallest) beside another one."""
    if dtype == torch.bool:
        return not largest
    if dtype.is_floating_point:
        return float("-inf") if largest else float("inf")
    info = torch.iinfo(dtype)
    return info.min if largest else info.max
