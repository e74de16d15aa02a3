"""Gradients of resizing: each element of the source collects from the results around it, one direction after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.frontend.antialiasing import FILTERS, Filter, weights_of
from kitsune_mlir.frontend.dtypes import widened
from kitsune_mlir.frontend.gradients.windows import Weight, Window, transposed
from kitsune_mlir.frontend.resizing import cubic_elements, linear_elements, nearest_element

__all__ = ["RESIZED", "RESIZING_GRADIENTS"]

aten = torch.ops.aten
Map = Callable[..., tuple[Window, Weight | None]]
"""From the extents of a source and of its results, a scale, and whether corners are aligned."""


def _nearest(exact: bool) -> Map:
    def of(source: int, target: int, scale: float | None) -> tuple[Window, None]:
        def window(result: Tensor) -> tuple[Tensor, Tensor]:
            element = nearest_element(result, source, target, scale, exact)
            return element, element

        return window, None

    return of


def _linear(source: int, target: int, scale: float | None, aligned: bool) -> tuple[Window, Weight]:
    def window(result: Tensor) -> tuple[Tensor, Tensor]:
        return linear_elements(result, source, target, scale, aligned)[:2]

    def weight(result: Tensor, element: Tensor) -> Tensor:
        low, high, part = linear_elements(result, source, target, scale, aligned)
        return torch.where(low == element, 1.0 - part, 0.0) + torch.where(high == element, part, 0.0)

    return window, weight


def _cubic(source: int, target: int, scale: float | None, aligned: bool) -> tuple[Window, Weight]:
    def window(result: Tensor) -> tuple[Tensor, Tensor]:
        elements, _ = cubic_elements(result, source, target, scale, aligned)
        return elements[0], elements[-1]

    def weight(result: Tensor, element: Tensor) -> Tensor:
        elements, weights = cubic_elements(result, source, target, scale, aligned)
        first, *others = [torch.where(e == element, w, 0.0) for e, w in zip(elements, weights, strict=True)]
        for other in others:
            first = first + other
        return first

    return window, weight


def _filtered(filter: Filter) -> Map:
    def of(source: int, target: int, scale: float | None, aligned: bool) -> tuple[Window, Weight]:
        return weights_of(filter, source, target, scale, aligned)

    return of


def _gradient(map: Map, aligns: bool) -> Callable[..., Tensor]:
    def decomposed(grad: Tensor, output_size: Sequence[int], input_size: Sequence[int], *rest: Any) -> Tensor:
        aligned, scales = (rest[:1], rest[1:]) if aligns else ((), rest)
        out = widened(grad)
        for number, source in enumerate(input_size[2:]):
            scale = scales[number] if number < len(scales) else None
            window, weight = map(source, grad.shape[2 + number], scale, *aligned)
            out = transposed(out, 2 + number, source, window, weight)
        return out.to(grad.dtype)

    return decomposed


_KINDS: list[tuple[str, Map, bool]] = [
    *((f"upsample_nearest{rank}d", _nearest(False), False) for rank in (1, 2, 3)),
    *((f"_upsample_nearest_exact{rank}d", _nearest(True), False) for rank in (1, 2, 3)),
    *((f"upsample_{name}d", _linear, True) for name in ("linear1", "bilinear2", "trilinear3")),
    ("upsample_bicubic2d", _cubic, True),
    *((name, _filtered(filter), True) for name, filter in FILTERS.items()),
]

RESIZED: list[str] = [name for name, *_ in _KINDS]
"""Operators whose gradients these are."""
RESIZING_GRADIENTS: dict[Any, Callable[..., Any]] = {
    getattr(aten, f"{name}_backward").default: _gradient(map, aligns) for name, map, aligns in _KINDS
}
"""Operator → decomposition."""
