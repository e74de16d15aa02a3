"""Images and volumes read at points of a grid: the elements that a point lies between, and their weights."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.frontend.dtypes import widened
from kitsune_mlir.frontend.resizing import inner_weight, outer_weight

__all__ = ["CUBIC", "GRIDS", "LINEAR", "NEAREST", "Taps", "taps_of"]

aten = torch.ops.aten
LINEAR, NEAREST, CUBIC = 0, 1, 2
ZEROS, BORDER, REFLECTION = 0, 1, 2
"""As ATen numbers them."""
A = -0.75
"""Of the cubic weights."""


@dataclasses.dataclass(frozen=True)
class Taps:
    """One of the elements along a dimension that points lie between.

    Attributes:
        element: its number, of an element that there is.
        inside: whether there is one; else it counts as 0.
        weight: of it.
        slope: of its weight, by the grid's number.
    """

    element: Tensor
    inside: Tensor
    weight: Tensor
    slope: Tensor


def taps_of(grid: Tensor, extents: Sequence[int], mode: int, padding: int, aligned: bool) -> list[list[Taps]]:
    """For each dimension of an image the elements that the points of a grid [..., rank] lie between along it."""
    rank = len(extents)
    return [_along(grid[..., rank - 1 - dim], extent, mode, padding, aligned) for dim, extent in enumerate(extents)]


def _along(number: Tensor, extent: int, mode: int, padding: int, aligned: bool) -> list[Taps]:
    scale = (extent - 1) / 2 if aligned else extent / 2
    place = (number + 1) * scale if aligned else ((number + 1) * extent - 1) / 2
    if mode == CUBIC:
        low = place.floor()
        t = place - low
        weights = [outer_weight(t + 1), inner_weight(t), inner_weight(1 - t), outer_weight(2 - t)]
        slopes = [_outer_slope(t + 1), _inner_slope(t), -_inner_slope(1 - t), -_outer_slope(2 - t)]
        taps = []
        for step, weight, slope in zip((-1, 0, 1, 2), weights, slopes, strict=True):
            element, _ = _padded(low + step, extent, padding, aligned)
            taps.append(_tap(element, extent, weight, slope * scale))
        return taps
    place, sign = _padded(place, extent, padding, aligned)
    if mode == NEAREST:
        return [_tap(place.round(), extent, torch.ones_like(place), torch.zeros_like(place))]
    low, slope = place.floor(), sign * scale
    t = place - low
    return [_tap(low, extent, 1 - t, -slope), _tap(low + 1, extent, t, slope)]


def _tap(element: Tensor, extent: int, weight: Tensor, slope: Tensor) -> Taps:
    inside = (element >= 0) & (element <= extent - 1)
    return Taps(torch.where(inside, element, 0.0).to(torch.int64), inside, weight, slope)


def _padded(place: Tensor, extent: int, padding: int, aligned: bool) -> tuple[Tensor, Tensor]:
    """Where a place beyond the ends is read, and how that moves with it: 1, -1, or 0."""
    sign = torch.ones_like(place)
    if padding == REFLECTION:
        first, span = (0.0, extent - 1) if aligned else (-0.5, extent)
        if span == 0:
            return torch.zeros_like(place), torch.zeros_like(place)
        sign = torch.where(place < first, -1.0, 1.0)
        beyond = (place - first).abs()
        flips = (beyond / span).floor()
        rest = beyond - flips * span
        odd = flips - 2 * (flips / 2).floor() != 0
        place, sign = torch.where(odd, span - rest, rest) + first, torch.where(odd, -sign, sign)
    if padding != ZEROS:
        sign = torch.where((place <= 0) | (place >= extent - 1), 0.0, sign)
        place = place.clamp(0.0, extent - 1.0)
    return place, sign


def _inner_slope(t: Tensor) -> Tensor:
    return (3 * (A + 2) * t - 2 * (A + 3)) * t


def _outer_slope(t: Tensor) -> Tensor:
    return (3 * A * t - 10 * A) * t + 8 * A


def _volume(x: Tensor, grid: Tensor, mode: int, padding: int, aligned: bool) -> Any:
    """`aten.grid_sampler_3d`: x [N, C, *extents], grid [N, *points, 3]."""
    if not x.dtype.is_floating_point or 0 in (*x.shape, *grid.shape):
        return NotImplemented
    rank, batch, extents = x.ndim - 2, x.shape[0], list(x.shape[2:])
    wide = widened(x)
    number = torch.arange(batch, device=x.device).reshape(-1, *[1] * rank)
    total: Tensor | None = None
    for taps in itertools.product(*taps_of(widened(grid), extents, mode, padding, aligned)):
        read = wide.movedim(1, -1)[(number, *(tap.element for tap in taps))].movedim(-1, 1)
        inside = _all([tap.inside for tap in taps]).unsqueeze(1)
        weight = math.prod((tap.weight for tap in taps[1:]), start=taps[0].weight)  # pyright: ignore
        part = torch.where(inside, read * weight.unsqueeze(1), 0.0)
        total = part if total is None else total + part
    assert total is not None
    return total.to(x.dtype)


def _all(masks: Sequence[Tensor]) -> Tensor:
    found = masks[0]
    for mask in masks[1:]:
        found = found & mask
    return found


GRIDS: dict[Any, Callable[..., Any]] = {aten.grid_sampler_3d.default: _volume}
"""Operator → decomposition."""
