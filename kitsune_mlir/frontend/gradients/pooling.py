"""Gradients of pooling: an element collects from the windows that cover it, or from those whose maximum it was."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.frontend.dtypes import widened
from kitsune_mlir.frontend.gradients.windows import Window, readers, transposed
from kitsune_mlir.frontend.pooling import sizes
from kitsune_mlir.frontend.resizing import elements_at

__all__ = ["POOLING_GRADIENTS"]

aten = torch.ops.aten

FEW = 9
"""Windows that cover an element, of which each is asked; else maxima are put where they were found."""


def _covered(kernel: int, stride: int, padding: int, elements: int, dilation: int = 1) -> Window:
    def window(result: Tensor) -> tuple[Tensor, Tensor]:
        first = result * stride - padding
        last = first + dilation * (kernel - 1)
        return first.clamp(min=0), last.clamp(max=elements - 1)

    return window


def _divided(results: int, elements: int) -> Window:
    """Windows that divide a dimension as evenly as it goes."""

    def window(result: Tensor) -> tuple[Tensor, Tensor]:
        first = torch.div(result * elements, results, rounding_mode="trunc")
        return first, torch.div((result + 1) * elements + results - 1, results, rounding_mode="trunc") - 1

    return window


def _mean(rank: int) -> Callable[..., Any]:
    def decomposed(
        grad: Tensor,
        x: Tensor,
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Tensor:
        size = sizes(rank, kernel)
        step, pad = sizes(rank, stride, size), sizes(rank, padding)
        out = widened(grad)
        for number, (k, s, p) in enumerate(zip(size, step, pad, strict=True)):
            dim = x.ndim - rank + number
            extent = x.shape[dim]
            window = _covered(k, s, p, extent)

            def weight(result: Tensor, element: Tensor, k: int = k, s: int = s, p: int = p, extent: int = extent) -> Tensor:
                first = result * s - p
                end = (first + k).clamp(max=extent + p)
                if not count_include_pad:
                    first, end = first.clamp(min=0), end.clamp(max=extent)
                return 1.0 / (torch.ones_like(first) if divisor_override else end - first)

            out = transposed(out, dim, extent, window, weight)
        return (out / divisor_override if divisor_override else out).to(x.dtype)

    return decomposed


def _adaptive_mean(rank: int) -> Callable[..., Any]:
    def decomposed(grad: Tensor, x: Tensor) -> Tensor:
        out = widened(grad)
        for dim in range(x.ndim - rank, x.ndim):
            window = _divided(out.shape[dim], x.shape[dim])

            def weight(result: Tensor, element: Tensor, window: Window = window) -> Tensor:
                first, last = window(result)
                return 1.0 / (last - first + 1)

            out = transposed(out, dim, x.shape[dim], window, weight)
        return out.to(x.dtype)

    return decomposed


def _of_maxima(grad: Tensor, x: Tensor, indices: Tensor, windows: Sequence[Window]) -> Tensor:
    """An element of the last dimensions gets the gradients of those windows over it that have its number as index."""
    rank = len(windows)
    pooled, extents = grad.shape[x.ndim - rank :], x.shape[x.ndim - rank :]
    found = [readers(results, extent, window) for results, extent, window in zip(pooled, extents, windows, strict=True)]
    wide = widened(grad)
    if math.prod(each.most for each in found) > FEW:
        lead = math.prod(x.shape[: x.ndim - rank])
        into = torch.zeros([lead, math.prod(extents)], dtype=wide.dtype, device=x.device)
        added = into.scatter_add(1, indices.reshape(lead, -1), wide.reshape(lead, -1))
        return added.reshape(x.shape).to(x.dtype)
    kind = torch.int32 if math.prod(extents) < 1 << 31 else torch.int64
    indices, own = indices.to(kind), torch.arange(math.prod(extents), dtype=kind, device=x.device).reshape(extents)
    parts = []
    for steps in itertools.product(*(range(each.most) for each in found)):
        numbers, there = [], None
        for number, (each, step) in enumerate(zip(found, steps, strict=True)):
            _, result, exists = each.numbers(x.device, step)
            exists = exists.reshape([-1] + [1] * (rank - 1 - number))
            numbers.append(result.reshape(-1))
            there = exists if there is None else there & exists
        hit = elements_at(indices, numbers) == own
        parts.append(torch.where(hit if there is None else hit & there, elements_at(wide, numbers), 0.0))
    return functools.reduce(torch.add, parts).to(x.dtype)


def _maximum(rank: int) -> Callable[..., Any]:
    def decomposed(
        grad: Tensor,
        x: Tensor,
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
        indices: Tensor,
    ) -> Tensor:
        size = sizes(rank, kernel)
        step, pad, gap = sizes(rank, stride, size), sizes(rank, padding), sizes(rank, dilation)
        extents = x.shape[x.ndim - rank :]
        windows = [_covered(k, s, p, extent, d) for k, s, p, d, extent in zip(size, step, pad, gap, extents, strict=True)]
        return _of_maxima(grad, x, indices, windows)

    return decomposed


def _adaptive_maximum(rank: int) -> Callable[..., Any]:
    def decomposed(grad: Tensor, x: Tensor, indices: Tensor) -> Tensor:
        pairs = zip(grad.shape[x.ndim - rank :], x.shape[x.ndim - rank :], strict=True)
        return _of_maxima(grad, x, indices, [_divided(results, extent) for results, extent in pairs])

    return decomposed


POOLING_GRADIENTS: dict[Any, Callable[..., Any]] = {
    aten.avg_pool2d_backward.default: _mean(2),
    aten.avg_pool3d_backward.default: _mean(3),
    aten._adaptive_avg_pool2d_backward.default: _adaptive_mean(2),
    aten._adaptive_avg_pool3d_backward.default: _adaptive_mean(3),
    aten.max_pool2d_with_indices_backward.default: _maximum(2),
    aten.max_pool3d_with_indices_backward.default: _maximum(3),
    aten.adaptive_max_pool2d_backward.default: _adaptive_maximum(2),
    aten.adaptive_max_pool3d_backward.default: _adaptive_maximum(3),
}
"""Operator → decomposition."""
