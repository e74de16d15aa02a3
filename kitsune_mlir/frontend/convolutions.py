"""Convolutions in the forms that the engines know: of images by plain products or by one two-dimensional convolution.

A convolution as wide as its stride (patch embedding) is a product of patches. One dimension is an image of one line; the depth
of a kernel of three dimensions becomes channels; a transposed convolution is a plain one that makes a tile of `stride` results
around each point of its input, so that nothing is multiplied with zeros that were put between the points (Shi et al.,
arXiv 1609.05158, section 3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["convolution", "patch_rows", "transposed_convolution"]

aten = torch.ops.aten


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """The decomposition of `aten.convolution`: images [batch, channels, *extents], weights [out, channels / groups, *kernel]
    ([channels, out / groups, *kernel] where `transposed`). One that is plain and two-dimensional stays as it is."""
    spatial = x.ndim - 2
    if spatial < 1 or spatial > 3 or not x.dtype.is_floating_point or 0 in (*x.shape, *weight.shape):
        return NotImplemented
    stride, padding, dilation, output_padding = (
        list(v) * (spatial if len(v) == 1 else 1) for v in (stride, padding, dilation, output_padding)
    )
    if transposed:
        return transposed_convolution(x, weight, bias, stride, padding, dilation, output_padding, groups)
    kernel = list(weight.shape[2:])
    if spatial == 1:
        image = aten.convolution(
            *(x.unsqueeze(2), weight.unsqueeze(2), bias),
            *([1, *stride], [0, *padding], [1, *dilation], False, [0, 0], groups),
        )
        return image.squeeze(2)
    if kernel == stride and math.prod(kernel) > 1 and not any(padding) and all(d == 1 for d in dilation) and groups == 1:
        return _patches(x, weight, bias, kernel)
    return _depth_as_channels(x, weight, bias, stride, padding, dilation, groups) if spatial == 3 else NotImplemented


def _patches(x: Tensor, weight: Tensor, bias: Tensor | None, kernel: list[int]) -> Tensor:
    """Rows of patches by a matrix of weights."""
    counts = [extent // k for extent, k in zip(x.shape[2:], kernel, strict=True)]
    product = F.linear(patch_rows(x, kernel, counts), weight.reshape(weight.shape[0], -1), bias)
    return product.reshape(x.shape[0], *counts, weight.shape[0]).movedim(-1, 1)


def patch_rows(x: Tensor, kernel: Sequence[int], counts: Sequence[int]) -> Tensor:
    """The first `counts` patches along each dimension as rows: [patches of all images, channels · elements]."""
    spatial = len(kernel)
    if math.prod(kernel) == 1 and list(x.shape[2:]) == list(counts):
        return x.movedim(1, -1).reshape(-1, x.shape[1])
    for dim, (count, k) in enumerate(zip(counts, kernel, strict=True)):
        x = x.narrow(2 + dim, 0, count * k)
    parts = [size for pair in zip(counts, kernel, strict=True) for size in pair]
    order = [0, *range(2, 2 + 2 * spatial, 2), 1, *range(3, 3 + 2 * spatial, 2)]
    return x.reshape(*x.shape[:2], *parts).permute(order).reshape(-1, x.shape[1] * math.prod(kernel))


def _depth_as_channels(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """Each slice of the result from an image whose channels are those of all slices that it needs."""
    batch, channels, _, *image = x.shape
    out, per_group, taps, *kernel = weight.shape
    x = aten.constant_pad_nd(x, [0, 0, 0, 0, padding[0], padding[0]]) if padding[0] else x
    count = (x.shape[2] - dilation[0] * (taps - 1) - 1) // stride[0] + 1
    reach = (count - 1) * stride[0] + 1
    shown = [x[:, :, tap * dilation[0] : tap * dilation[0] + reach : stride[0]] for tap in range(taps)]
    stacked = torch.stack(shown, 2)  # [batch, channels, taps, count, *image]
    images = stacked.permute(0, 3, 1, 2, 4, 5).reshape(batch * count, channels * taps, *image)
    matrix = weight.reshape(out, per_group * taps, *kernel)
    made = aten.convolution(images, matrix, bias, stride[1:], padding[1:], dilation[1:], False, [0, 0], groups)
    return made.reshape(batch, count, *made.shape[1:]).transpose(1, 2)


def transposed_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    output_padding: list[int],
    groups: int,
    rows: bool = False,
) -> Tensor:
    """Result s·q + r of a dimension of stride s sums input q - t times weight s·t + r over t: s results for each q.

    `rows`: what follows reads the result with channels innermost, as a backward pass between convolutions does.
    """
    spatial, channels = len(stride), x.shape[1]
    reach = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
    if all(s == 1 for s in stride) and not any(output_padding) and all(p <= r for p, r in zip(padding, reach, strict=True)):
        kernels = weight.unflatten(0, (groups, channels // groups)).transpose(1, 2).flatten(0, 1).flip([*range(2, 2 + spatial)])
        beside = [r - p for r, p in zip(reach, padding, strict=True)]
        return aten.convolution(x, kernels, bias, stride, beside, dilation, False, output_padding, groups)
    for dim, d in enumerate(dilation):
        weight = _spread(weight, 2 + dim, d)
    kernel = list(weight.shape[2:])
    taps = [-(-k // s) for k, s in zip(kernel, stride, strict=True)]
    wanted = [
        (n - 1) * s - 2 * p + k + more
        for n, s, p, k, more in zip(x.shape[2:], stride, padding, kernel, output_padding, strict=True)
    ]
    # Of a kernel shorter than its stride only so many results are of anything; zeros come between them afterwards.
    made_of = [min(k, s) for k, s in zip(kernel, stride, strict=True)]
    lacking = [s * t - k for s, t, k in zip(made_of, taps, kernel, strict=True)]
    weight = aten.constant_pad_nd(weight, [v for n in reversed(lacking) for v in (0, n)]) if any(lacking) else weight
    # [groups, channels, out, t, s, ...] to [groups, out, *s, channels, *t] (rows: *s before out), the last input first
    out = weight.shape[1]
    split = weight.reshape(groups, channels // groups, out, *(v for pair in zip(taps, made_of, strict=True) for v in pair))
    split = split.flip([3 + 2 * dim for dim in range(spatial)])
    steps = [4 + 2 * dim for dim in range(spatial)]
    order = [0, *((*steps, 2) if rows else (2, *steps)), 1, *(3 + 2 * dim for dim in range(spatial))]
    matrix = split.permute(order).reshape(groups * out * math.prod(made_of), channels // groups, *taps)
    ones = [1] * spatial
    counts = [n + t - 1 for n, t in zip(x.shape[2:], taps, strict=True)]
    short = [max(0, p + n - c * s) for p, n, c, s in zip(padding, wanted, counts, stride, strict=True)]
    early = None
    if bias is not None and made_of == stride and not any(short) and not rows:
        early = bias.repeat_interleave(math.prod(stride))
    made = aten.convolution(x, matrix, early, ones, [t - 1 for t in taps], ones, False, [0] * spatial, groups)
    return _side_by_side(made, groups, stride, made_of, padding, wanted, bias if early is None else None, rows)


def _side_by_side(
    made: Tensor,
    groups: int,
    stride: list[int],
    made_of: list[int],
    padding: list[int],
    wanted: list[int],
    bias: Tensor | None,
    rows: bool,
) -> Tensor:
    """Channels of each place as `stride` places a dimension, zeros where there are fewer.

    These are [groups, out, *made_of], with `rows` [groups, *made_of, out]. `wanted` of the places from `padding` on are the
    result. With `rows` it is done with channels innermost, as convolutions for GPUs leave them: whole rows of them move, and
    what follows has to want it so.
    """
    spatial, batch, counts = len(stride), made.shape[0], made.shape[2:]
    if rows:
        parts, image = made.movedim(1, -1).reshape(batch, *counts, groups, *made_of, -1), 1
        order = [0, *(v for dim in range(spatial) for v in (1 + dim, 2 + spatial + dim)), 1 + spatial, 2 + 2 * spatial]
    else:
        parts, image = made.reshape(batch, -1, *made_of, *counts), 2
        order = [0, 1, *(v for dim in range(spatial) for v in (2 + spatial + dim, 2 + dim))]
    after = [0, 0] * (2 if rows else 0)
    between = [v for k, s in zip(reversed(made_of), reversed(stride), strict=True) for v in (0, s - k, 0, 0)]
    parts = parts.permute(order)
    parts = aten.constant_pad_nd(parts, [*after, *between]) if any(between) else parts
    extents = [n * s for n, s in zip(counts, stride, strict=True)]
    whole = parts.reshape(batch, *extents, -1) if rows else parts.reshape(batch, -1, *extents)
    short = [max(0, p + n - e) for p, n, e in zip(padding, wanted, extents, strict=True)]
    beyond = [v for n in reversed(short) for v in (0, n)]
    whole = aten.constant_pad_nd(whole, [*after[:2], *beyond]) if any(short) else whole
    for dim, (p, n) in enumerate(zip(padding, wanted, strict=True)):
        whole = whole.narrow(image + dim, p, n)
    if rows:
        return (whole if bias is None else whole + bias).movedim(-1, 1)
    return whole if bias is None else whole + bias.reshape(-1, *[1] * spatial)


def _spread(weight: Tensor, dim: int, dilation: int) -> Tensor:
    """A kernel with the zeros of its dilation between its taps."""
    if dilation == 1 or weight.shape[dim] == 1:
        return weight
    beside = [0, 0] * (weight.ndim - dim - 1)
    spread = aten.constant_pad_nd(weight.unsqueeze(dim + 1), [*beside, 0, dilation - 1]).flatten(dim, dim + 1)
    return spread.narrow(dim, 0, spread.shape[dim] - dilation + 1)
