"""Hurwitz's zeta function."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.frontend.special.functions import BERNOULLI, is_whole, of_floats

__all__ = ["ZETA"]

aten = torch.ops.aten
LARGE = 1e6
"""Exponents are no larger where they are factors: powers are 0 or infinite before."""


def _sum(s: Tensor, q: Tensor) -> Tensor:
    """Σ (q + k)⁻ˢ over k ≥ 0, s > 1 and q > 0: some terms, and the rest by Euler and Maclaurin (NIST 25.11.5), as in Cephes.

    What the formula lacks is small where the rest is not: a rest of more than 1e-7 of the whole has s < 3·q.
    """
    terms, count = (10, len(BERNOULLI)) if q.dtype == torch.float64 else (6, 6)
    total = torch.pow(q, -s)
    for k in range(1, terms):
        total = total + torch.pow(q + k, -s)
    w = q + terms
    factor = torch.clamp(s, max=LARGE)
    power = torch.pow(w, -s)
    total = total + torch.pow(w, 1 - s) / (s - 1) + power / 2
    term = factor * power / w
    for j, number in enumerate(BERNOULLI[:count], 1):
        total = total + term * (number / math.factorial(2 * j))
        term = term * ((factor + (2 * j - 1)) / w) * ((factor + 2 * j) / w)
    return total


def _zeta(s: Tensor, q: Tensor) -> Tensor:
    """Below 0 the terms of negative numbers are those of a function at the fraction of -q, without the ones behind -q."""
    s, q = torch.broadcast_tensors(s, q)
    negative = q < 0
    fraction = torch.where(negative, -q - torch.floor(-q), 0.5)
    behind = _sum(s, torch.where(negative, 1 - q, 1.0))
    turned = _sum(s, fraction) - behind
    odd = s - 2 * torch.floor(s / 2) == 1
    below = torch.where(odd, -turned, turned) + _sum(s, 1 - fraction)
    found = torch.where(negative, torch.where(is_whole(s), below, math.nan), _sum(s, torch.where(negative, 1.0, q)))
    found = torch.where((q <= 0) & is_whole(q), math.inf, found)
    return torch.where(s < 1, math.nan, torch.where(s == 1, math.inf, found))


def _of_numbers(s: Any, q: Any) -> Tensor:
    like = s if isinstance(s, Tensor) else q
    dtype = like.dtype if like.dtype.is_floating_point else torch.get_default_dtype()
    both = (v if isinstance(v, Tensor) else torch.full((), v, dtype=dtype, device=like.device) for v in (s, q))
    return of_floats(_zeta)(*both)


ZETA: dict[Any, Callable[..., Any]] = {
    aten.special_zeta.default: of_floats(_zeta),
    aten.special_zeta.other_scalar: _of_numbers,
    aten.special_zeta.self_scalar: _of_numbers,
}
"""Operator → decomposition."""
