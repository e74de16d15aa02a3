"""Random convolutional networks over small images: odd channels, groups, gates, resampling, norms, pooling, padding."""

from __future__ import annotations

import random

import torch

from test.numerics.recorded import Recorder, Value

F = "torch.nn.functional."
ACTIVATIONS = ("relu", "silu", "gelu", "sigmoid", "tanh", "hardswish", "leaky_relu", "relu6", "elu")


def images(r: random.Random, m: Recorder, dtype: torch.dtype) -> list[Value]:
    """Outputs of a network over [n, c, h, w]."""
    n, c = r.choice((1, 1, 2, 3)), r.choice((1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 24, 31, 32, 33))
    x = m.input(n, c, r.randint(3, 18), r.randint(3, 18), dtype=dtype)
    if r.random() < 0.25:
        x.sample = x.sample.contiguous(memory_format=torch.channels_last)
    seen = [x]
    for _ in range(r.randint(2, 6)):
        step = r.choice(
            (_convolution, _convolution, _depthwise, _excite, _resample, _norm, _norm, _pool, _join, _pad, _activate, _shuffle)
        )
        y = step(r, m, seen)
        if max(y.shape[2:]) <= 40 and y.shape[1] <= 80 and min(y.shape) >= 1:
            seen.append(y)
    outputs = [seen[-1]]
    if r.random() < 0.3:
        pooled = m("torch.mean", seen[-1], (2, 3))
        outputs.append(m(F + "linear", pooled, m.weight(r.choice((1, 3, 10)), pooled.shape[1], dtype=dtype)))
    elif len(seen) > 2 and r.random() < 0.3:
        outputs.append(seen[-2])
    return outputs


def _activate(r: random.Random, m: Recorder, seen: list[Value]) -> Value:
    return m(F + r.choice(ACTIVATIONS), seen[-1])


def _convolution(r: random.Random, m: Recorder, seen: list[Value]) -> Value:
    x = seen[-1]
    c, dtype = x.shape[1], x.dtype
    groups = r.choice([g for g in range(1, c + 1) if c % g == 0]) if r.random() < 0.3 else 1
    out = groups * r.randint(1, max(1, 33 // groups))
    kernel = [min(r.choice((1, 1, 2, 3, 3, 5)), size) for size in x.shape[2:]]
    bias = m.weight(out, dtype=dtype, fan=9) if r.random() < 0.6 else None
    if r.random() < 0.15:
        w = m.weight(c, out // groups, *kernel, dtype=dtype, fan=c * kernel[0])
        stride = r.choice((1, 2))
        return m(F + "conv_transpose2d", x, w, bias, stride, r.choice((0, min(kernel) // 2)), r.choice((0, stride - 1)), groups)
    w = m.weight(out, c // groups, *kernel, dtype=dtype)
    y = m(F + "conv2d", x, w, bias, r.choice((1, 1, 2, (2, 1))), [r.choice((0, k // 2)) for k in kernel], 1, groups)
    return m(F + r.choice(ACTIVATIONS), y) if r.random() < 0.5 else y


def _depthwise(r: random.Random, m: Recorder, seen: list[Value]) -> Value:
    x = seen[-1]
    c, kernel, dilation = x.shape[1], r.choice((3, 5)), r.choice((1, 1, 2))
    w = m.weight(c, 1, kernel, kernel, dtype=x.dtype)
    y = m(F + "conv2d", x, w, m.weight(c, dtype=x.dtype), r.choice((1, 2)), dilation * (kernel // 2), dilation, c)
    return m(F + "conv2d", y, m.weight(r.randint(1, 33), c, 1, 1, dtype=x.dtype)) if r.random() < 0.5 else y


def _excite(r: random.Random, m: Recorder, seen: list[Value]) -> Value:
    x = seen[-1]
    c, inner, dtype = x.shape[1], max(1, x.shape[1] // r.choice((1, 2, 4))), x.dtype
    kind = r.choice(("mean", "mean", "pool", "max", "flat"))
    if kind == "pool":
        s = m(F + "adaptive_avg_pool2d", x, 1)
    elif kind == "flat":
        s = m("torch.reshape", m("torch.mean", m("torch.flatten", x, 2), -1), (x.shape[0], c, 1, 1))
    else:
        s = m("torch.amax" if kind == "max" else "torch.mean", x, (2, 3), keepdim=True)
    if r.random() < 0.4:
        hidden = m(F + "conv2d", s, m.weight(inner, c, 1, 1, dtype=dtype), m.weight(inner, dtype=dtype))
        s = m(F + r.choice(ACTIVATIONS), hidden)
        s = m(F + "conv2d", s, m.weight(c, inner, 1, 1, dtype=dtype), m.weight(c, dtype=dtype))
    elif r.random() < 0.7:
        s = m(F + "relu", m(F + "linear", m("torch.flatten", s, 1), m.weight(inner, c, dtype=dtype)))
        s = m(F + "linear", s, m.weight(c, inner, dtype=dtype))
        s = m("operator.getitem", s, (slice(None), slice(None), None, None))
    return m("torch.mul", x, m(r.choice(("torch.sigmoid", F + "hardsigmoid")), s))


def _resample(r: random.Random, m: Recorder, seen: list[Value]) -> Value:
    x = seen[-1]
    size = {"scale_factor": r.choice((2, 2.0, 0.5, 3))} if r.random() < 0.6 else {"size": [r.randint(2, 20) for _ in range(2)]}
    if min(x.shape[2:]) < 2:
        size = {"scale_factor": 2}
    mode = r.choice(("nearest", "nearest", "nearest-exact", "bilinear", "bilinear", "bicubic", "area"))
    corners = {"align_corners": r.random() < 0.5} if mode in ("bilinear", "bicubic") else {}
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
    if kind == "instance" and x.shape[2] * x.shape[3] > 1:
        return m(F + "instance_norm", x, None, None, w, b)
    if kind == "layer":
        return m(F + "layer_norm", x, x.shape[1:])
    if kind == "layer_last":
        y = m("torch.permute", x, (0, 2, 3, 1), exact=True)
        return m("torch.permute", m(F + "layer_norm", y, (c,), w, b), (0, 3, 1, 2))
    return m(F + "group_norm", x, r.choice([g for g in range(1, c + 1) if c % g == 0]), w, b)


def _pool(r: random.Random, m: Recorder, seen: list[Value]) -> Value:
    x = seen[-1]
    kind = r.choice(("max", "avg", "adaptive"))
    kernel = min(r.choice((2, 3)), *x.shape[2:])
    if kind == "adaptive":
        return m(F + "adaptive_avg_pool2d", x, tuple(r.randint(1, size) for size in x.shape[2:]))
    padding = r.choice((0, kernel // 2))
    return m(F + f"{kind}_pool2d", x, kernel, r.choice((1, 2)), padding, exact=kind == "max")


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
