"""Scans that torch-mlir does not have, along a dimension, as operators that it has.

A scan of any length is one of short groups, a scan of what the groups give, and what comes before each group taken in: so
there are some hundred operations an element however long it is, and three passes over memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.frontend.dtypes import widened
from kitsune_mlir.frontend.running import running

__all__ = ["SCANS"]

aten = torch.ops.aten
GROUP = 32
"""Elements that are scanned together: each result looks at all of them."""
SHORT = 128
"""Elements up to which a scan is one group."""

Parts = tuple[Tensor, ...]


def scan(parts: Parts, neutral: Sequence[float], prefix: Callable[..., Parts], combine: Callable[..., Parts]) -> Parts:
    """Scan tensors along their last dimension.

    Args:
        neutral: of each part, what changes nothing.
        prefix: scans a short last dimension of parts.
        combine: (parts of what comes before, parts of what comes after) -> parts of both.
    """
    n, whole = parts[0].shape[-1], 1
    while -(-n // whole) > SHORT:
        whole *= GROUP
    more = -n % whole  # filled up once, so that groups of groups come out even
    if more:
        parts = tuple(aten.constant_pad_nd(part, [0, more], value) for part, value in zip(parts, neutral, strict=True))
    return tuple(part[..., :n] for part in _even(parts, neutral, prefix, combine))


def _even(parts: Parts, neutral: Sequence[float], prefix: Callable[..., Parts], combine: Callable[..., Parts]) -> Parts:
    """As `scan`, of a length that groups divide on every level."""
    *outer, n = parts[0].shape
    if n <= SHORT:
        return prefix(*parts)
    groups = n // GROUP
    within = prefix(*(part.reshape(*outer, groups, GROUP) for part in parts))
    totals = _even(tuple(part[..., -1] for part in within), neutral, prefix, combine)
    group = torch.arange(groups, device=parts[0].device)
    earlier = (group - 1).clamp(min=0)
    before = tuple(
        torch.where(group == 0, value, torch.gather(total, -1, earlier.expand(total.shape)))
        for total, value in zip(totals, neutral, strict=True)
    )
    both = combine(tuple(part.unsqueeze(-1) for part in before), within)
    return tuple(part.reshape(*outer, n) for part in both)


def _pairs(x: Tensor) -> tuple[Tensor, Tensor]:
    """For each element of the last dimension, which becomes the last but one, all elements, as the last; and which are not
    after it."""
    place = torch.arange(x.shape[-1], device=x.device)
    return x.unsqueeze(-2), place.unsqueeze(0) <= place.unsqueeze(1)


def _extremes(largest: bool) -> Callable[..., Any]:
    """`cummax`, `cummin`: of equal elements the last one counts, and NaN is beyond every number."""
    kind = "max" if largest else "min"

    def decomposed(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        if x.ndim == 0:
            return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
        if x.dtype in (torch.bool, torch.uint8):
            values, indices = decomposed(x.to(torch.int32), dim)
            return values.to(x.dtype), indices
        dim %= x.ndim
        values = running(x, dim, kind)
        # An element that is as large as any before it has the last place of all these.
        best = x == values
        if x.dtype.is_floating_point:
            best = best | (x != x)
        places = torch.arange(x.shape[dim], device=x.device).reshape([-1 if d == dim else 1 for d in range(x.ndim)])
        return values, running(torch.where(best, places, 0), dim, "max")

    return decomposed


def _finite(x: Tensor) -> Tensor:
    """What is taken off exponents: no infinity."""
    return torch.where((x - x) == 0, x, 0.0)


def _log_prefix(most: Tensor, total: Tensor) -> Parts:
    each, before = _pairs(most)
    largest = torch.amax(torch.where(before, each, float("-inf")), -1)
    weights = torch.exp(_finite(each) - _finite(largest).unsqueeze(-1))
    weights = torch.where(each == float("-inf"), 0.0, weights)
    return largest, torch.where(before, weights * total.unsqueeze(-2), 0.0).sum(-1)


def _log_combine(before: Parts, after: Parts) -> Parts:
    (old, few), (new, more) = before, after
    largest = torch.maximum(old, new)
    shift = _finite(largest)

    def scaled(most: Tensor, total: Tensor) -> Tensor:
        return torch.where(most == float("-inf"), 0.0, total * torch.exp(_finite(most) - shift))

    return largest, scaled(old, few) + scaled(new, more)


def _logcumsumexp(x: Tensor, dim: int) -> Tensor:
    if x.ndim == 0:
        return x.clone()
    moved = widened(x).movedim(dim, -1)
    # An element is its own largest exponent, and once that; an infinity is not taken off.
    total = torch.where(moved == float("-inf"), 0.0, torch.exp(moved - _finite(moved)))
    most, total = scan((moved, total), (float("-inf"), 0.0), _log_prefix, _log_combine)
    return (torch.log(total) + _finite(most)).movedim(-1, dim).to(x.dtype)


SCANS: dict[Any, Callable[..., Any]] = {
    aten.cummax.default: _extremes(True),
    aten.cummin.default: _extremes(False),
    aten.logcumsumexp.default: _logcumsumexp,
}
"""Operator → decomposition."""
