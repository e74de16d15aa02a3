"""Quotients rounded down where torch-mlir's are wrong: it rounds the quotient, and that down (5 // 0.1 would be 50), and
divides 64-bit integers as f64 (beyond 2⁵³ the last digits would be lost)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.frontend.dtypes import widened

__all__ = ["floor_division"]


def _of_floats(x: Tensor, y: Tensor) -> Tensor:
    """As PyTorch's kernel: the remainder is exact, and without it the quotient is a whole number but for a rounding."""
    rest = torch.fmod(x, y)
    quotient = (x - rest) / y
    quotient = torch.where((rest != 0) & ((y < 0) != (rest < 0)), quotient - 1, quotient)
    down = torch.floor(quotient)
    down = torch.where(quotient - down > 0.5, down + 1, down)
    plain = x / y
    down = torch.where(quotient == 0, torch.copysign(torch.zeros_like(plain), plain), down)
    return torch.where(y == 0, plain, down)


def _of_integers(x: Tensor, y: Tensor) -> Tensor:
    quotient = torch.div(x, y, rounding_mode="trunc")
    rest = x - quotient * y
    return torch.where((rest != 0) & ((rest < 0) != (y < 0)), quotient - 1, quotient)


def floor_division(otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition of `div` with a rounding mode; `otherwise` has other types and roundings."""

    def decomposed(x: Tensor, y: Any, *, rounding_mode: str | None = None) -> Any:
        kind = torch.result_type(x, y)
        if rounding_mode != "floor" or not (kind.is_floating_point or (kind == torch.int64 and isinstance(y, Tensor))):
            return otherwise(x, y, rounding_mode=rounding_mode)
        y = y if isinstance(y, Tensor) else torch.full((), y, dtype=kind, device=x.device)
        divided = _of_floats if kind.is_floating_point else _of_integers
        return divided(widened(x.to(kind)), widened(y.to(kind))).to(kind)

    return decomposed
