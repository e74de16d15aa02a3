"""Random layers over sequences: recurrent modules and cells, scans, causal convolutions, shifts, pooling over time."""

from __future__ import annotations

import random

import torch

from test.numerics.random_pieces import F, act, linear, mlp, norm, sizes_of
from test.numerics.recorded import Recorder, Value


def sequences(r: random.Random, m: Recorder, dtype: torch.dtype) -> list[Value]:
    """Layers over [batch, length, width]; the last may be one row, or a class, for each sample."""
    sizes = sizes_of(m)
    x = m.input(r.choice(sizes.batch), r.choice(sizes.lengths), r.choice(sizes.widths), dtype=dtype)
    outputs = []
    recurrent = 0
    for _ in range(r.randint(1, 4)):
        step = r.choice((_module, _cells, _scan, _scan, _gated, _causal, _shift, _mixed, _layer, _layer, _positions, _times))
        recurrent += step in (_module, _cells)
        if recurrent > 1 and step in (_module, _cells):
            step = _scan
        y = step(r, m, x)
        if isinstance(y, list):
            outputs += y[1:]
            y = y[0]
        if y.sample.numel() <= sizes.most:
            x = y
    end = r.choice("all all mean last pooled".split())
    if end == "mean":
        x = m("torch.mean", x, 1)
    elif end == "last":
        x = m("operator.getitem", x, (slice(None), -1), exact=True)
    elif end == "pooled":  # attention with one learned query
        weight = m("torch.softmax", linear(r, m, x, 1), 1)
        x = m("torch.sum", m("torch.mul", x, weight), 1)
    return [linear(r, m, x, r.choice((1, 10, 65))) if r.random() < 0.5 else x, *outputs]


def _weights(m: Recorder, gates: int, into: int, hidden: int, dtype: torch.dtype) -> list[Value]:
    shapes = ((gates * hidden, into), (gates * hidden, hidden), (gates * hidden,), (gates * hidden,))
    return [m.weight(*shape, dtype=dtype, fan=hidden) for shape in shapes]


def _module(r: random.Random, m: Recorder, x: Value) -> list[Value]:
    """What `nn.LSTM`, `nn.GRU` and `nn.RNN` call."""
    steps = min(x.shape[1], r.choice((1, 3, 5, 8) if not m.large else (16, 24)))
    x = m("operator.getitem", x, (slice(None), slice(0, steps)), exact=True)
    kind, hidden = (
        r.choice(("lstm", "lstm", "gru", "rnn_tanh", "rnn_relu")),
        r.choice((1, 7, 16, 32, 33) if not m.large else (128, 256)),
    )
    gates, both, layers = {"lstm": 4, "gru": 3}.get(kind, 1), r.random() < 0.3, r.choice((1, 1, 2))
    weights, into = [], x.shape[-1]
    for _ in range(layers):
        for _ in range(1 + both):
            weights += _weights(m, gates, into, hidden, x.dtype)
        into = hidden * (1 + both)
    shape = (layers * (1 + both), x.shape[0], hidden)
    start = m.input(*shape, dtype=x.dtype) if r.random() < 0.4 else m("torch.Tensor.new_zeros", x, shape)
    state = [start, start] if kind == "lstm" else start
    found = m.parts("torch." + kind, x, state, weights, True, layers, 0.0, False, both, True)
    return found if r.random() < 0.3 else found[:1]


def _cells(r: random.Random, m: Recorder, x: Value) -> Value:
    """Cells called step by step, as PyTorch has them, or a gate of our own."""
    steps = min(x.shape[1], r.choice((1, 2, 4)))
    kind, hidden, dtype = r.choice(("lstm_cell", "gru_cell", "rnn_tanh_cell", "own")), r.choice((1, 8, 17, 32)), x.dtype
    weights = _weights(m, {"lstm_cell": 4, "gru_cell": 3, "own": 2}.get(kind, 1), x.shape[-1], hidden, dtype)
    h = m("torch.Tensor.new_zeros", x, (x.shape[0], hidden))
    c, seen = h, []
    for step in range(steps):
        at = m("torch.select", x, 1, step, exact=True)
        if kind == "lstm_cell":
            h, c = m.parts("torch.lstm_cell", at, [h, c], *weights)
        elif kind == "own":
            both = m("torch.add", m(F + "linear", at, weights[0], weights[2]), m(F + "linear", h, weights[1]))
            gate, new = m.parts("torch.chunk", both, 2, -1)
            h = m("torch.lerp", h, m("torch.tanh", new), m("torch.sigmoid", gate))
        else:
            h = m("torch." + kind, at, h, *weights)
        seen.append(h)
    return m("torch.stack", seen, 1, exact=True)


def _scan(r: random.Random, m: Recorder, x: Value) -> Value:
    dim = r.choice((1, 1, -1))
    kind = r.choice("cumsum cummax cummin cumprod logcumsumexp mean decay".split())
    if kind in ("cummax", "cummin"):
        return m("operator.getitem", m("torch." + kind, x, dim), 0)
    if kind == "cumprod":
        return m("torch.cumprod", m("torch.sigmoid", x), dim)
    if kind == "mean":  # of all before
        counts = Value(torch.arange(1, x.shape[dim] + 1).to(x.dtype).reshape((-1, 1) if dim == 1 else (-1,)), weight=True)
        return m("torch.div", m("torch.cumsum", x, dim), counts)
    if kind == "decay":
        return m("torch.mul", x, m("torch.exp", m("torch.cumsum", m(F + "logsigmoid", x), dim)))
    return m("torch." + kind, x, dim)


def _gated(r: random.Random, m: Recorder, x: Value) -> Value:
    """h = a h + b, step by step, or all at once: each step's weight of each before it."""
    gate, new = m("torch.sigmoid", linear(r, m, x, x.shape[-1])), linear(r, m, x, x.shape[-1])
    if r.random() < 0.5 and x.shape[1] > 1:
        steps = min(x.shape[1], 6)
        h = m("torch.select", new, 1, 0)
        seen = [h]
        for step in range(1, steps):
            h = m("torch.add", m("torch.mul", m("torch.select", gate, 1, step), h), m("torch.select", new, 1, step))
            seen.append(h)
        return m("torch.stack", seen, 1)
    decay = m("torch.cumsum", m("torch.mean", m("torch.log", m("torch.add", gate, 0.5)), -1), 1)
    apart = m("torch.sub", m("torch.unsqueeze", decay, 2), m("torch.unsqueeze", decay, 1))
    weight = m("torch.tril", m("torch.exp", m("torch.clamp", apart, -20.0, 5.0)))
    return m("torch.matmul", weight, new)


def _causal(r: random.Random, m: Recorder, x: Value) -> Value:
    width, kernel, dilation = x.shape[-1], r.choice((2, 3, 4)), r.choice((1, 1, 2))
    groups = r.choice((1, width))
    out = width if groups > 1 else r.choice(sizes_of(m).widths)
    w = m.weight(out, width // groups, kernel, dtype=x.dtype)
    across = m("torch.transpose", x, 1, 2, exact=True)
    pad = (kernel - 1) * dilation
    if r.random() < 0.5:
        y = m(F + "conv1d", m(F + "pad", across, (pad, 0)), w, m.weight(out, dtype=x.dtype), 1, 0, dilation, groups)
    else:
        y = m(F + "conv1d", across, w, None, 1, pad, dilation, groups)
        y = m("operator.getitem", y, (slice(None), slice(None), slice(0, x.shape[1])))
    y = act(r, m, y) if r.random() < 0.6 else y
    return m("torch.transpose", y, 1, 2)


def _shift(r: random.Random, m: Recorder, x: Value) -> Value:
    """Each step mixed with the one before it (RWKV, arXiv 2305.13048)."""
    before = m("operator.getitem", x, (slice(None), slice(0, -1)), exact=True)
    if r.random() < 0.5:
        before = m(F + "pad", x, (0, 0, 1, -1), exact=True)
    else:
        zero = m("torch.Tensor.new_zeros", x, (x.shape[0], 1, x.shape[2]))
        before = m("torch.cat", [zero, before], 1, exact=True)
    share = m("torch.sigmoid", m.weight(x.shape[-1], dtype=x.dtype))
    return m("torch.lerp", x, before, share) if r.random() < 0.5 else m("torch.sub", x, m("torch.mul", before, share))


def _mixed(r: random.Random, m: Recorder, x: Value) -> Value:
    """A layer over time (arXiv 2105.01601)."""
    across = m("torch.transpose", norm(r, m, x), 1, 2)
    return m("torch.add", x, m("torch.transpose", mlp(r, m, across, r.choice((8, 33)), x.shape[1]), 1, 2))


def _layer(r: random.Random, m: Recorder, x: Value) -> Value:
    y = mlp(r, m, x, r.choice(sizes_of(m).widths), x.shape[-1])
    return norm(r, m, m("torch.add", x, y)) if r.random() < 0.6 else act(r, m, y)


def _positions(r: random.Random, m: Recorder, x: Value) -> Value:
    if r.random() < 0.5:
        where = m("torch.arange", x.shape[1], x)
        return m("torch.add", x, m(F + "embedding", where, m.weight(max(64, x.shape[1]), x.shape[2], dtype=x.dtype)))
    return m("torch.add", x, m.weight(1, x.shape[1], x.shape[2], dtype=x.dtype))


def _times(r: random.Random, m: Recorder, x: Value) -> Value:
    """Steps beyond a sample's length do not count."""
    ends = m("torch.add", m.index(x.shape[0], 1, limit=x.shape[1]), 1, exact=True)
    seen = m("torch.lt", m("torch.arange", x.shape[1], x), ends, exact=True)
    seen = m("torch.unsqueeze", seen, -1, exact=True)
    if r.random() < 0.5:
        return m("torch.masked_fill", x, m("torch.logical_not", seen, exact=True), 0.0, exact=True)
    kept = m("torch.mul", x, seen, exact=True)
    mean = m("torch.div", m("torch.sum", kept, 1, keepdim=True), m("torch.sum", seen, 1, keepdim=True, exact=True))
    return m("torch.sub", x, mean)
