"""Patches put together to images: each element adds up what the patches that cover it have there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.frontend.dtypes import widened
from kitsune_mlir.frontend.resizing import elements_at

__all__ = ["FOLDING"]

aten = torch.ops.aten

MOST_TAPS = 64
"""Of a patch; larger ones are added where they belong."""


def _fold(
    x: Tensor,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Tensor:
    taps = kernel_size[0] * kernel_size[1]
    if taps > MOST_TAPS or not x.dtype.is_floating_point:
        return NotImplemented
    counts = [
        (out + 2 * pad - gap * (kernel - 1) - 1) // step + 1
        for out, pad, gap, kernel, step in zip(output_size, padding, dilation, kernel_size, stride, strict=True)
    ]
    batched = x if x.ndim == 3 else x.unsqueeze(0)
    patches = batched.reshape(len(batched), -1, *kernel_size, *counts)
    lie_apart = list(stride) == list(kernel_size) and list(dilation) == [1, 1] and list(padding) == [0, 0]
    if lie_apart and all(n * k == out for n, k, out in zip(counts, kernel_size, output_size, strict=True)):
        found = patches.permute(0, 1, 4, 2, 5, 3).reshape(len(batched), -1, *output_size)
    else:
        found = _summed(patches, output_size, dilation, padding, stride).to(x.dtype)
    return found if x.ndim == 3 else found.squeeze(0)


def _summed(
    patches: Tensor, output_size: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
) -> Tensor:
    places = []  # of each dimension, by tap: in which patch an element is, and whether it is in one
    for dim, (out, gap, pad, step) in enumerate(zip(output_size, dilation, padding, stride, strict=True)):
        taps, count = patches.shape[2 + dim], patches.shape[4 + dim]
        along = torch.arange(out, device=patches.device)
        found = []
        for tap in range(taps):
            before = -(-max(0, tap * gap - pad) // step)  # patches: quotients of numbers that are not negative are cheap
            start = along + (pad - tap * gap + before * step)
            patch = (start if step == 1 else torch.div(start, step, rounding_mode="trunc")) - before
            inside = (patch >= 0) & (patch < count)
            inside = inside if step == 1 else inside & (start % step == 0)
            found.append((patch.clamp(0, count - 1), inside))
        places.append(found)
    wide, total = widened(patches), None
    for i, (row, in_rows) in enumerate(places[0]):
        for j, (column, in_columns) in enumerate(places[1]):
            part = elements_at(wide[:, :, i, j], (row, column))
            part = torch.where(in_rows.unsqueeze(1) & in_columns, part, 0.0)
            total = part if total is None else total + part
    assert total is not None
    return total


FOLDING: dict[Any, Callable[..., Any]] = {aten.col2im.default: _fold}
"""Operator → decomposition."""
