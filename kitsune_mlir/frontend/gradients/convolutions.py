"""Gradients of convolutions: convolutions and products again, which the engines know.

That of the input is the transposed convolution of the results' gradient (of a transposed one, a plain convolution). That of the
weights is a convolution whose images are the input's channels, whose kernels are the gradient's, and whose sum is over the
batch: strides and dilations change places. Of kernels of one element, or as wide as their stride, and of few images it is a
product, of depthwise ones a sum for each tap.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.frontend.convolutions import patch_rows, transposed_convolution
from kitsune_mlir.frontend.dtypes import widened

__all__ = ["CONVOLUTION_GRADIENTS"]

aten = torch.ops.aten
MOST_TAPS = 64
"""Of a depthwise convolution's kernel, each of which has a sum of its own."""
FEW_IMAGES = 4
"""So many are less than tensor cores take as channels at least: a product of what each place sees multiplies fewer zeros
(2 images of 32 x 32, 640 channels each side, 3 x 3: 51 us predicted, 152 as a convolution; 4 images 79 and 152)."""
LEAST_CHANNELS = 64
"""Of the images then: rows of fewer are short."""
MOST_BYTES = 64 << 20
"""Of all that is seen, which is in memory then."""


def _backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    is_transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> Any:
    spatial = x.ndim - 2
    if not 1 <= spatial <= 3 or not x.dtype.is_floating_point or 0 in (*x.shape, *weight.shape, *grad.shape):
        return NotImplemented
    stride, padding, dilation = (list(v) * (spatial if len(v) == 1 else 1) for v in (stride, padding, dilation))
    of_input = of_weight = of_bias = None
    if output_mask[0]:
        of_input = _of_input(grad, x, weight, stride, padding, dilation, is_transposed, groups)
    if output_mask[1]:
        wide, small = (grad, x) if is_transposed else (x, grad)
        of_weight = _of_weight(wide, small, list(weight.shape[2:]), stride, padding, dilation, groups)
    if output_mask[2]:
        of_bias = widened(grad).sum([0, *range(2, grad.ndim)]).to(grad.dtype)
    return of_input, of_weight, of_bias


def _of_input(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    is_transposed: bool,
    groups: int,
) -> Tensor:
    rest = [0] * len(stride)
    if is_transposed:
        made = aten.convolution(grad, weight, None, stride, padding, dilation, False, rest, groups)
        return _cropped(made, x.shape[2:])
    reached = [
        (n - 1) * s - 2 * p + d * (k - 1) + 1
        for n, s, p, d, k in zip(grad.shape[2:], stride, padding, dilation, weight.shape[2:], strict=True)
    ]
    rest = [extent - size for extent, size in zip(x.shape[2:], reached, strict=True)]
    return transposed_convolution(grad, weight, None, stride, padding, dilation, rest, groups, rows=True)


def _of_weight(
    wide: Tensor, small: Tensor, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int], groups: int
) -> Tensor:
    """Of each tap the sum over images n and places p of small[n, :, p] and wide[n, :, p·stride + tap·dilation - padding].

    Returns:
        [channels of small, channels of wide / groups, *kernel]; channels come in `groups`.
    """
    batch, places, spatial = small.shape[0], list(small.shape[2:]), len(kernel)
    if not any(padding) and (math.prod(kernel) == 1 or (kernel == stride and all(d == 1 for d in dilation))):
        if math.prod(kernel) == 1:
            for dim, (step, count) in enumerate(zip(stride, places, strict=True), 2):
                wide = wide[(*[slice(None)] * dim, slice(0, (count - 1) * step + 1, step))]
        rows, columns = widened(patch_rows(wide, kernel, places)), widened(patch_rows(small, [1] * spatial, places))
        if groups == 1:
            product = columns.t() @ rows
        else:
            rows, columns = (each.reshape(each.shape[0], groups, -1).transpose(0, 1) for each in (rows, columns))
            product = torch.bmm(columns.transpose(1, 2), rows)
        return product.reshape(small.shape[1], -1, *kernel).to(small.dtype)
    channels = wide.shape[1] // groups
    if channels == 1 and math.prod(kernel) <= MOST_TAPS:
        return _of_depthwise(wide, small, kernel, stride, padding, dilation)
    terms = batch * math.prod(places) * math.prod(kernel) * channels
    if groups == 1 and batch <= FEW_IMAGES and channels >= LEAST_CHANNELS and terms * wide.element_size() <= MOST_BYTES:
        rows = widened(_window_rows(wide, kernel, places, stride, padding, dilation))
        columns = widened(patch_rows(small, [1] * spatial, places))
        return (columns.t() @ rows).reshape(-1, *kernel, channels).movedim(-1, 1).to(small.dtype)
    images = wide.transpose(0, 1)
    if groups > 1:
        images = wide.reshape(batch, groups, channels, -1).permute(2, 1, 0, 3).reshape(channels, -1, *wide.shape[2:])
    kernels = small.transpose(0, 1)
    made = aten.convolution(images, kernels, None, dilation, padding, stride, False, [0] * spatial, groups)
    return _cropped(made, kernel).transpose(0, 1)


def _window_rows(
    x: Tensor, kernel: list[int], places: list[int], stride: list[int], padding: list[int], dilation: list[int]
) -> Tensor:
    """What each place sees of the images, as rows: [images · places, elements of the kernel · channels]."""
    padded = aten.constant_pad_nd(x, [p for amount in reversed(padding) for p in (amount, amount)]) if any(padding) else x
    seen, parts = padded.movedim(1, -1), []
    for taps in itertools.product(*(range(k) for k in kernel)):
        firsts = [tap * d for tap, d in zip(taps, dilation, strict=True)]
        parts.append(
            seen[(slice(None), *(slice(f, f + (n - 1) * s + 1, s) for f, n, s in zip(firsts, places, stride, strict=True)))]
        )
    return torch.cat(parts, -1).reshape(-1, math.prod(kernel) * x.shape[1])


def _cropped(x: Tensor, extents: Sequence[int]) -> Tensor:
    """The first elements along each spatial dimension."""
    for dim, extent in enumerate(extents, 2):
        x = x.narrow(dim, 0, extent)
    return x


def _of_depthwise(
    wide: Tensor, small: Tensor, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int]
) -> Tensor:
    """A sum for each tap, all over the same elements; a channel of `wide` has one or several of `small`."""
    padded = aten.constant_pad_nd(wide, [p for amount in reversed(padding) for p in (amount, amount)]) if any(padding) else wide
    places, rank = list(small.shape[2:]), len(kernel)
    split = widened(small).reshape(small.shape[0], wide.shape[1], -1, *places)
    sums = []
    for taps in itertools.product(*(range(k) for k in kernel)):
        firsts = [tap * d for tap, d in zip(taps, dilation, strict=True)]
        cut = [slice(f, f + (n - 1) * s + 1, s) for f, n, s in zip(firsts, places, stride, strict=True)]
        part = widened(padded[(slice(None), slice(None), *cut)]).unsqueeze(2)
        sums.append((part * split).sum([0, *range(3, 3 + rank)]))
    return torch.stack(sums, -1).reshape(small.shape[1], 1, *kernel).to(small.dtype)


CONVOLUTION_GRADIENTS: dict[Any, Any] = {aten.convolution_backward.default: _backward}
"""Operator → decomposition."""
