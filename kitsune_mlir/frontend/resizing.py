"""Resizing of lines, images and volumes: nearest, linear and cubic interpolation.

PyTorch computes in f32 where a result lies in its source. Which element that is, is a quotient of whole numbers if the two
agree at every place, which is looked up here: then the compiler knows which results lie side by side in the source.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import torch
import torch._prims_common as utils
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from kitsune_mlir.frontend.dtypes import widened

__all__ = [
    "RESIZING",
    "cubic_elements",
    "distance",
    "elements_at",
    "inner_weight",
    "linear_elements",
    "nearest_element",
    "outer_weight",
]

aten = torch.ops.aten

MOST_DENOMINATOR = 4096


def distance(source: int, target: int, aligned: bool, scale: float | None) -> float:
    """Distance of neighbours of the result in the source."""
    if aligned:
        return (source - 1) / (target - 1) if target > 1 else 0.0
    return 1.0 / scale if scale is not None and scale > 0 else source / target


def _source_places(target: Tensor, ratio: float, aligned: bool) -> Tensor:
    """Where whole numbers of the result lie in the source, as f32."""
    target = target.to(torch.float32)
    return target * ratio if aligned else (target + 0.5) * ratio - 0.5


def _floor(number: Tensor, target: int, ratio: float, doubled: tuple[int, int], places: Callable[[Tensor], Tensor]) -> Tensor:
    """floor(places(i)) for numbers i < `target`, as i64: by whole numbers if `(2 ratio i + a ratio + b) / 2` has the same.

    Args:
        doubled: a and b.
    """
    if isinstance(ratio, torch.SymFloat) or isinstance(target, torch.SymInt):
        return places(number).floor().to(torch.int64)
    exact = Fraction(ratio).limit_denominator(MOST_DENOMINATOR)
    p, q = exact.numerator, exact.denominator
    first, shift = doubled[0] * p + doubled[1] * q, 0
    if first < 0:  # dividends that are not negative: quotients and remainders of those are cheap
        shift = -(first // (2 * q))
        first += 2 * q * shift
    factor = [2 * p, first, 2 * q]
    common = math.gcd(*factor)
    a, b, c = (part // common for part in factor)
    with _disable_current_modes():
        here = torch.arange(target)
        same = torch.equal(places(here).floor().to(torch.int64), torch.div(here * a + b, c, rounding_mode="trunc") - shift)
    if not same:
        return places(number).floor().to(torch.int64)
    found = number * a + b if a != 1 or b else number
    found = torch.div(found, c, rounding_mode="trunc") if c != 1 else found
    return found - shift if shift else found


def elements_at(x: Tensor, places: Sequence[Tensor]) -> Tensor:
    """Elements of the last dimensions, at the outer product of some places."""
    rank = len(places)
    index = [place.reshape([-1] + [1] * (rank - 1 - n)) for n, place in enumerate(places)]
    return aten._unsafe_index(x, [None] * (x.ndim - rank) + index)


def _in_order_of(x: Tensor, made: Tensor) -> Tensor:
    return made.contiguous(memory_format=utils.suggest_memory_format(x))


def nearest_element(number: Tensor, source: int, target: int, scale: float | None, exact: bool) -> Tensor:
    """The element of the source that results are."""
    ratio, half = distance(source, target, False, scale), 0.5 if exact else 0.0
    place = functools.partial(_nearest_places, ratio=ratio, half=half)
    return _floor(number, target, ratio, (1 if exact else 0, 0), place).clamp(max=source - 1)


def linear_elements(
    number: Tensor, source: int, target: int, scale: float | None, aligned: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The two elements of the source that results lie between, and how far from the first one, of 1."""
    ratio = distance(source, target, aligned, scale)
    place = functools.partial(_source_places, ratio=ratio, aligned=aligned)
    low = _floor(number, target, ratio, (0, 0) if aligned else (1, -1), place).clamp(min=0)
    part = place(number).clamp(min=0.0) - low
    return low, (low + 1).clamp(max=source - 1), part.clamp(0.0, 1.0)


def cubic_elements(
    number: Tensor, source: int, target: int, scale: float | None, aligned: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """The four elements of the source around results, those beyond the ends being the outermost ones, and their weights."""
    ratio = distance(source, target, aligned, scale)
    place = functools.partial(_source_places, ratio=ratio, aligned=aligned)
    low = _floor(number, target, ratio, (0, 0) if aligned else (1, -1), place)
    t = (place(number) - low).clamp(0.0, 1.0)
    elements = [(low + step).clamp(0, source - 1) for step in (-1, 0, 1, 2)]
    return elements, [outer_weight(t + 1), inner_weight(t), inner_weight(1 - t), outer_weight(2 - t)]


def _nearest(exact: bool) -> Callable[..., Tensor]:
    def resized(x: Tensor, size: Sequence[int], scales: Sequence[float | None]) -> Tensor:
        places = []
        for source, target, scale in zip(x.shape[2:], size, scales, strict=True):
            places.append(nearest_element(torch.arange(target, device=x.device), source, target, scale, exact))
        return _in_order_of(x, elements_at(x, places))

    return resized


def _nearest_places(target: Tensor, ratio: float, half: float) -> Tensor:
    return (target.to(torch.float32) + half) * ratio


def _linear(x: Tensor, size: Sequence[int], scales: Sequence[float | None], aligned: bool) -> Tensor:
    wide, pairs, parts = widened(x), [], []
    for source, target, scale in zip(x.shape[2:], size, scales, strict=True):
        number = torch.arange(target, device=x.device)
        low, high, part = linear_elements(number, source, target, scale, aligned)
        pairs.append((low, high))
        parts.append(part.reshape([-1] + [1] * (x.ndim - 3 - len(parts))))
    ends = [elements_at(wide, corner) for corner in itertools.product(*pairs)]
    for part in reversed(parts):
        ends = [low + (high - low) * part for low, high in zip(ends[::2], ends[1::2], strict=True)]
    return _in_order_of(x, ends[0]).to(x.dtype)


def inner_weight(t: Tensor) -> Tensor:
    """Of a source at a distance of at most 1."""
    return ((-0.75 + 2) * t - (-0.75 + 3)) * t * t + 1


def outer_weight(t: Tensor) -> Tensor:
    """Of one at a distance from 1 to 2."""
    return ((-0.75 * t + 5 * 0.75) * t - 8 * 0.75) * t + 4 * 0.75


def _cubic(x: Tensor, size: Sequence[int], scales: Sequence[float | None], aligned: bool) -> Tensor:
    wide, places, weights = widened(x), [], []
    for source, target, scale in zip(x.shape[2:], size, scales, strict=True):
        found = cubic_elements(torch.arange(target, device=x.device), source, target, scale, aligned)
        places.append(found[0])
        weights.append(found[1])
    rows = []
    for row in places[0]:
        taken = [elements_at(wide, (row, column)) * weight for column, weight in zip(places[1], weights[1], strict=True)]
        rows.append(functools.reduce(torch.add, taken))
    made = functools.reduce(torch.add, (row * w.unsqueeze(1) for row, w in zip(rows, weights[0], strict=True)))
    return _in_order_of(x, made).to(x.dtype)


def _for_sizes(function: Callable[..., Tensor], aligns: bool) -> Callable[..., Any]:
    """With output sizes, then the scale of each dimension."""

    def decomposed(x: Tensor, size: Sequence[int], *rest: Any) -> Any:
        if not x.dtype.is_floating_point:
            return NotImplemented
        aligned, scales = (rest[:1], rest[1:]) if aligns else ((), rest)
        scales = [*scales, *[None] * (x.ndim - 2 - len(scales))]
        return function(x, size, scales, *aligned)

    return decomposed


def _for_factors(function: Callable[..., Tensor], aligns: bool) -> Callable[..., Any]:
    """With output sizes or factors, whichever is given."""

    def decomposed(x: Tensor, size: Sequence[int] | None, *rest: Any) -> Any:
        if not x.dtype.is_floating_point:
            return NotImplemented
        aligned, factors = rest[:-1] if aligns else (), rest[-1] if rest else None
        if size is None:
            size = [int(extent * factor) for extent, factor in zip(x.shape[2:], factors or (), strict=True)]
        return function(x, size, factors or [None] * (x.ndim - 2), *aligned)

    return decomposed


_KINDS: list[tuple[str, Callable[..., Tensor], bool]] = [
    *((f"upsample_nearest{rank}d", _nearest(exact=False), False) for rank in (1, 2, 3)),
    *((f"_upsample_nearest_exact{rank}d", _nearest(exact=True), False) for rank in (1, 2, 3)),
    *((f"upsample_{name}d", _linear, True) for name in ("linear1", "bilinear2", "trilinear3")),
    ("upsample_bicubic2d", _cubic, True),
]

RESIZING: dict[Any, Callable[..., Any]] = {
    getattr(getattr(aten, name), overload): wrap(function, aligns)
    for name, function, aligns in _KINDS
    for overload, wrap in (("default", _for_sizes), ("vec", _for_factors))
}
"""Operator → decomposition."""
