"""Random convolutional networks over signals, images and volumes: odd channels, groups, gates, norms, resampling."""

from __future__ import annotations

import math
import random
from typing import Any

import torch

from test.numerics.random_pieces import ACTIVATIONS, F, sizes_of
from test.numerics.recorded import Recorder, Value


def images(r: random.Random, m: Recorder, dtype: torch.dtype) -> list[Value]:
    """Outputs of a network over [n, c, h, w], sometimes of one or three dimensions."""
    sizes, ndim = sizes_of(m), r.choice((2, 2, 2, 2, 1, 3))
    low, high = sizes.side if ndim < 3 else (sizes.side[0] // 2 + 1, sizes.side[1] // 2)
    side = [r.randint(low, high) * (16 if ndim == 1 and m.large else 1) for _ in range(ndim)]
    x = m.input(r.choice(sizes.images), r.choice(sizes.channels), *side, dtype=dtype)
    if r.random() < 0.25 and ndim == 2:
        x.sample = x.sample.contiguous(memory_format=torch.channels_last)
    seen = [x]
    steps = (_convolution, _convolution, _depthwise, _excite, _resample, _norm, _norm, _pool, _join, _activate)
    for _ in range(r.randint(2, 6)):
        y = r.choice((*steps, _pad, _shuffle) if ndim == 2 else steps)(r, m, seen)
        if (
            max(y.shape[2:]) <= 64 * sizes.side[1]
            and y.shape[1] <= 8 * max(sizes.channels)
            and 1 <= y.sample.numel() <= sizes.most
        ):
            seen.append(y)
    outputs = [seen[-1]]
    if r.random() < 0.3:
        pooled = m("torch.mean", seen[-1], _space(seen[-1]))
        outputs.append(m(F + "linear", pooled, m.weight(r.choice((1, 3, 10)), pooled.shape[1], dtype=dtype)))
    elif len(seen) > 2 and r.random() < 0.3:
        outputs.append(seen[-2])
    return outputs


def _space(x: Value) -> tuple[int, ...]:
    return tuple(range(2, x.sample.ndim))


def _ones(x: Value) -> tuple[int, ...]:
    return (1,) * (x.sample.ndim - 2)


def _of(name: str, x: Value) -> str:
    """A function's name for the dimensions of an image."""
    return F + name.format(x.sample.ndim - 2)


def _activate(r: random.Random, m: Recorder, seen: list[Value]) -> Value:
    return m(F + r.choice((*ACTIVATIONS, "relu6", "hardsigmoid")), seen[-1])


def _convolution(r: random.Random, m: Recorder, seen: list[Value]) -> Value:
    x = seen[-1]
    c, dtype = x.shape[1], x.dtype
    groups = r.choice([g for g in range(1, c + 1) if c % g == 0]) if r.random() < 0.3 else 1
    out = groups * r.randint(1, max(1, max(sizes_of(m).channels) // groups))
    kernel = [min(r.choice((1, 1, 2, 3, 3, 5)), size) for size in x.shape[2:]]
    bias = m.weight(out, dtype=dtype, fan=9) if r.random() < 0.6 else None
    if r.random() < 0.15:
        w = m.weight(c, out // groups, *kernel, dtype=dtype, fan=c * kernel[0])
        stride = r.choice((1, 2))
        given = (stride, r.choice((0, min(kernel) // 2)), r.choice((0, stride - 1)), groups)
        return m(_of("conv_transpose{}d", x), x, w, bias, *given)
    w = m.weight(out, c // groups, *kernel, dtype=dtype)
    stride, dilation = r.choice((1, 1, 2, (2, 1, 1)[: len(kernel)])), r.choice((1, 1, 1, 2))
    if any(dilation * (k - 1) >= size for k, size in zip(kernel, x.shape[2:], strict=True)):
        dilation = 1
    if r.random() < 0.1 and x.sample.ndim == 4:  # patches
        kernel = [min(r.choice((2, 4, 7)), *x.shape[2:])] * 2
        w, stride = m.weight(out, c // groups, *kernel, dtype=dtype), kernel[0]
    padding = (
        r.choice(("same", 0)) if r.random() < 0.2 and stride == 1 else [r.choice((0, dilation * (k // 2))) for k in kernel]
    )
    y = m(_of("conv{}d", x), x, w, bias, stride, padding, dilation, groups)
    return m(F + r.choice(ACTIVATIONS), y) if r.random() < 0.5 else y


def _depthwise(r: random.Random, m: Recorder, seen: list[Value]) -> Value:
    x = seen[-1]
    c, kernel, dilation = x.shape[1], r.choice((3, 5)), r.choice((1, 1, 2))
    space = (kernel,) * len(_space(x))
    w = m.weight(c, 1, *space, dtype=x.dtype)
    y = m(_of("conv{}d", x), x, w, m.weight(c, dtype=x.dtype), r.choice((1, 2)), dilation * (kernel // 2), dilation, c)
    if r.random() < 0.5:
        return y
    return m(_of("conv{}d", x), y, m.weight(r.randint(1, max(sizes_of(m).channels)), c, *_ones(x), dtype=x.dtype))


def _excite(r: random.Random, m: Recorder, seen: list[Value]) -> Value:
    x = seen[-1]
    c, inner, dtype = x.shape[1], max(1, x.shape[1] // r.choice((1, 2, 4))), x.dtype
    kind = r.choice(("mean", "mean", "pool", "max", "flat"))
    if kind == "pool":
        s = m(_of("adaptive_avg_pool{}d", x), x, 1)
    elif kind == "flat":
        s = m("torch.reshape", m("torch.mean", m("torch.flatten", x, 2), -1), (x.shape[0], c, *_ones(x)))
    else:
        s = m("torch.amax" if kind == "max" else "torch.mean", x, _space(x), keepdim=True)
    if r.random() < 0.4:
        hidden = m(_of("conv{}d", s), s, m.weight(inner, c, *_ones(x), dtype=dtype), m.weight(inner, dtype=dtype))
        s = m(F + r.choice(ACTIVATIONS), hidden)
        s = m(_of("conv{}d", s), s, m.weight(c, inner, *_ones(x), dtype=dtype), m.weight(c, dtype=dtype))
    elif r.random() < 0.7:
        s = m(F + "relu", m(F + "linear", m("torch.flatten", s, 1), m.weight(inner, c, dtype=dtype)))
        s = m(F + "linear", s, m.weight(c, inner, dtype=dtype))
        s = m("operator.getitem", s, (slice(None), slice(None), *(None for _ in _ones(x))))
    return m("torch.mul", x, m(r.choice(("torch.sigmoid", F + "hardsigmoid")), s))


def _resample(r: random.Random, m: Recorder, seen: list[Value]) -> Value:
    x = seen[-1]
    ndim, space = x.sample.ndim - 2, x.shape[2:]
    if r.random() < 0.6:
        size: dict[str, Any] = {"scale_factor": r.choice((2, 2.0, 0.5, 3))}
    else:
        size = {"size": [r.randint(2, sizes_of(m).side[1] + 2) for _ in space]}
    if min(space) < 2:
        size = {"scale_factor": 2}
    smooth = {1: ("linear",), 2: ("bilinear", "bilinear", "bicubic"), 3: ("trilinear",)}[ndim]
    mode = r.choice(("nearest", "nearest", "nearest-exact", *smooth, "area"))
    corners = {"align_corners": r.random() < 0.5} if mode in smooth else {}
    return m(F + "interpolate", x, mode=mode, exact=mode.startswith("nearest"), **corners, **size)


def _norm(r: random.Random, m: Recorder, seen: list[Value]) -> Value:
    x = seen[-1]
    c, dtype = x.shape[1], x.dtype
    w, b = m.weight(c, dtype=dtype, around=1.0, fan=10), m.weight(c, dtype=dtype, fan=10)
    kind = r.choice(("group", "group", "batch", "instance", "layer", "layer_last"))
    if kind == "batch":
        var = m.weight(c, dtype=dtype, around=3.0, fan=9)
        var.sample = var.sample.abs() + 0.1
        return m(F + "batch_norm", x, m.weight(c, dtype=dtype, fan=9), var, w, b)
    if kind == "instance" and math.prod(x.shape[2:]) > 1:
        return m(F + "instance_norm", x, None, None, w, b)
    if kind == "layer":
        return m(F + "layer_norm", x, x.shape[1:])
    if kind == "layer_last":
        y = m("torch.movedim", x, 1, -1, exact=True)
        return m("torch.movedim", m(F + "layer_norm", y, (c,), w, b), -1, 1)
    return m(F + "group_norm", x, r.choice([g for g in range(1, c + 1) if c % g == 0]), w, b)


def _pool(r: random.Random, m: Recorder, seen: list[Value]) -> Value:
    x = seen[-1]
    kind = r.choice(("max", "avg", "adaptive"))
    kernel = min(r.choice((2, 3)), *x.shape[2:])
    if kind == "adaptive":
        return m(_of("adaptive_avg_pool{}d", x), x, tuple(r.randint(1, size) for size in x.shape[2:]))
    if kind == "avg" and x.sample.ndim == 5 and x.dtype == torch.bfloat16:
        kind = "max"  # PyTorch has no such average on a processor
    padding = r.choice((0, kernel // 2))
    return m(_of(kind + "_pool{}d", x), x, kernel, r.choice((1, 2)), padding, exact=kind == "max")


def _join(r: random.Random, m: Recorder, seen: list[Value]) -> Value:
    x = seen[-1]
    same = [v for v in seen[:-1] if v.shape == x.shape]
    if same and r.random() < 0.5:
        return m(r.choice(("torch.add", "torch.mul", "torch.sub")), x, r.choice(same))
    fitting = [v for v in seen if v.shape[2:] == x.shape[2:]]
    return m("torch.cat", [x, r.choice(fitting)], 1, exact=True)


def _pad(r: random.Random, m: Recorder, seen: list[Value]) -> Value:
    x = seen[-1]
    mode = r.choice(("constant", "reflect", "replicate", "circular"))
    most = min(3, min(x.shape[2:]) - 1)
    low = -1 if min(x.shape[2:]) > 4 and mode in ("constant", "replicate") else 0
    amounts = tuple(r.randint(low, most) for _ in range(4))
    return m(F + "pad", x, amounts, mode, exact=True)


def _shuffle(r: random.Random, m: Recorder, seen: list[Value]) -> Value:
    x = seen[-1]
    n, c, h, w = x.shape
    if c % 4 == 0 and r.random() < 0.5:
        return m(F + "pixel_shuffle", x, 2, exact=True)
    if h % 2 == 0 and w % 2 == 0 and c <= 16:
        return m(F + "pixel_unshuffle", x, 2, exact=True)
    if c % 2 == 0:  # channels exchanged between two groups
        return m("torch.flatten", m("torch.transpose", m("torch.reshape", x, (n, 2, c // 2, h, w)), 1, 2), 1, 2, exact=True)
    return m("torch.flip", x, (r.choice((1, 2, 3)),), exact=True)
