"""Pooling of more dimensions by that of fewer: windows of three dimensions are windows of two, then of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.frontend.dtypes import widened

__all__ = ["POOLING"]

aten = torch.ops.aten


def _triple(given: Sequence[int] | int, otherwise: Sequence[int] | None = None) -> list[int]:
    found = [given] if isinstance(given, int) else list(given) or list(otherwise or ())
    return found * 3 if len(found) == 1 else found


def _max_volume(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> Tensor:
    """The maximum of a box is that of its planes' maxima."""
    if not x.dtype.is_floating_point:
        return NotImplemented
    size = _triple(kernel)
    step, pad, gap = _triple(stride, size), _triple(padding), _triple(dilation)
    *lead, depth, height, width = x.shape
    planes = aten.max_pool2d(x.reshape(-1, depth, height, width), size[1:], step[1:], pad[1:], gap[1:], ceil_mode)
    height, width = planes.shape[-2:]
    columns = planes.reshape(-1, 1, depth, height * width)
    boxes = aten.max_pool2d(columns, [size[0], 1], [step[0], 1], [pad[0], 0], [gap[0], 1], ceil_mode)
    return boxes.reshape(*lead, -1, height, width)


def _adaptive_mean(rank: int) -> Callable[..., Any]:
    """Equal windows are dimensions of their own."""

    def decomposed(x: Tensor, output: Sequence[int]) -> Tensor:
        lead, sizes = list(x.shape[: x.ndim - rank]), x.shape[x.ndim - rank :]
        if not x.dtype.is_floating_point or any(not n or size % n for size, n in zip(sizes, output, strict=True)):
            return NotImplemented
        parts = [part for size, n in zip(sizes, output, strict=True) for part in (n, size // n)]
        return widened(x).reshape(*lead, *parts).mean([len(lead) + 1 + 2 * d for d in range(rank)]).to(x.dtype)

    return decomposed


def _windows(x: Tensor, dim: int, count: int) -> tuple[Tensor, Tensor]:
    """The maxima of `count` windows that divide a dimension as evenly as it goes, and the first places that hold them."""
    size = x.shape[dim]
    number = torch.arange(count, device=x.device)
    first, end = number * size // count, ((number + 1) * size + count - 1) // count
    longest = max(-(-(n + 1) * size // count) - n * size // count for n in range(count))
    # A shorter window has its last element more than once: the first one counts.
    places = torch.minimum(first.unsqueeze(1) + torch.arange(longest, device=x.device), (end - 1).unsqueeze(1))
    taken = x.index_select(dim, places.reshape(-1)).unflatten(dim, (count, longest))
    values, steps = torch.max(taken, dim + 1)
    return values, steps + first.reshape([count if d == dim else 1 for d in range(x.ndim)])


def _adaptive_maximum(x: Tensor, output: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Of planes in unequal windows, where torch-mlir takes others: columns, then rows, so that the first of equals counts."""
    equal = all(n and size % n == 0 for size, n in zip(x.shape[-2:], output, strict=True))
    if not x.dtype.is_floating_point or (equal and x.ndim == 4):
        return NotImplemented
    values, columns = _windows(x, x.ndim - 1, output[1])
    values, rows = _windows(values, x.ndim - 2, output[0])
    return values, rows * x.shape[-1] + columns.gather(-2, rows)


POOLING: dict[Any, Callable[..., Any]] = {
    aten.max_pool3d.default: _max_volume,
    aten.adaptive_max_pool2d.default: _adaptive_maximum,
    aten._adaptive_avg_pool3d.default: _adaptive_mean(3),
}
"""Operator → decomposition."""
