"""Resizing of images with weights that are as wide as the results lie apart, one direction after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from kitsune_mlir.frontend.dtypes import widened
from kitsune_mlir.frontend.resizing import distance

__all__ = ["ANTIALIASING", "FILTERS", "Filter", "weights_of"]

aten = torch.ops.aten


def _triangle(x: Tensor) -> Tensor:
    return (1.0 - x.abs()).clamp(min=0.0)


def _cubic(x: Tensor) -> Tensor:
    x = x.abs()
    near, far = (1.5 * x - 2.5) * x * x + 1.0, ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
    return torch.where(x < 1.0, near, torch.where(x < 2.0, far, 0.0))


Filter = tuple[Callable[[Tensor], Tensor], int]
"""A weight by distance, and from which distance on it is 0."""
FILTERS: dict[str, Filter] = {"_upsample_bilinear2d_aa": (_triangle, 1), "_upsample_bicubic2d_aa": (_cubic, 2)}
"""By operator."""


def weights_of(
    filter: Filter, source: int, target: int, scale: float | None, aligned: bool
) -> tuple[Callable[[Tensor], tuple[Tensor, Tensor]], Callable[[Tensor, Tensor], Tensor]]:
    """Two functions: from numbers of results to their first and last elements; from both numbers to a weight, of a sum of 1."""
    shape, reach = filter
    ratio = distance(source, target, aligned, scale)
    width = max(ratio, 1.0)

    def window(result: Tensor) -> tuple[Tensor, Tensor]:
        centre = (result.to(torch.float32) + 0.5) * ratio
        first = (centre - reach * width + 0.5).clamp(min=0.0).to(torch.int64)
        end = (centre + reach * width + 0.5).to(torch.int64)
        return first, end.clamp(max=source) - 1

    def alone(result: Tensor, element: Tensor) -> Tensor:
        centre = (result.to(torch.float32) + 0.5) * ratio
        return shape((element + 0.5 - centre) * (1.0 / width))

    most = _widest(window, target)

    def weight(result: Tensor, element: Tensor) -> Tensor:
        first, last = window(result)
        each = first.unsqueeze(-1) + torch.arange(most, device=result.device)
        total = torch.where(each <= last.unsqueeze(-1), alone(result.unsqueeze(-1), each), 0.0).sum(-1)
        return alone(result, element) / total

    return window, weight


def _widest(window: Callable[[Tensor], tuple[Tensor, Tensor]], results: int) -> int:
    """Elements of the largest window, found on the numbers themselves."""
    with _disable_current_modes():
        low, high = window(torch.arange(results))
        return int((high - low).max()) + 1


def _resized(filter: Filter) -> Callable[..., Any]:
    def decomposed(x: Tensor, size: Sequence[int], aligned: bool, *scales: float | None) -> Any:
        if not x.dtype.is_floating_point:
            return NotImplemented
        out = widened(x)
        for dim, target, scale in reversed([*zip((2, 3), size, (*scales, None, None), strict=False)]):
            source = x.shape[dim]
            window, weight = weights_of(filter, source, target, scale, aligned)
            most = _widest(window, target)
            result = torch.arange(target, device=x.device).unsqueeze(1)
            first, last = window(result)
            element = first + torch.arange(most, device=x.device)
            there = (element <= last).reshape([target, most, *[1] * (3 - dim)])
            counted = weight(result, element).to(out.dtype).reshape(there.shape)
            taken = out.index_select(dim, element.clamp(max=source - 1).reshape(-1)).unflatten(dim, (target, most))
            out = torch.where(there, taken * counted, 0.0).sum(dim + 1)
        return out.to(x.dtype)

    return decomposed


ANTIALIASING: dict[Any, Callable[..., Any]] = {
    getattr(aten, name).default: _resized(filter) for name, filter in FILTERS.items()
}
"""Operator → decomposition."""
