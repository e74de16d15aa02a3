"""Random row layers, message passing on graphs, attention and einsum, with odd sizes."""

from __future__ import annotations

import random

import torch

from test.numerics.recorded import Recorder, Value

F = "torch.nn.functional."
WIDTHS = (1, 2, 3, 7, 8, 16, 27, 32, 63, 64, 65, 96, 128, 129, 130)
ROWS = (1, 3, 17, 64, 100, 128, 129, 256, 257, 512, 1000, 2048)
ACTIVATIONS = ("relu", "silu", "gelu", "sigmoid", "tanh", "softplus", "elu")


def _linear(r: random.Random, m: Recorder, x: Value, width: int) -> Value:
    bias = m.weight(width, dtype=x.dtype, fan=9) if r.random() < 0.6 else None
    return m(F + "linear", x, m.weight(width, x.shape[-1], dtype=x.dtype), bias)


def rows(r: random.Random, m: Recorder, dtype: torch.dtype) -> list[Value]:
    """Layers over [rows, width], some of whose values are used several times."""
    count = r.choice(ROWS)
    lead = (2, count) if r.random() < 0.15 and count < 100 else (count,)
    seen = [m.input(*lead, r.choice(WIDTHS), dtype=dtype)]
    if r.random() < 0.4:
        seen.append(m.input(*lead, r.choice(WIDTHS), dtype=dtype))
    for _ in range(r.randint(2, 8)):
        seen.append(_row_step(r, m, seen))
    outputs = [seen[-1]]
    while r.random() < 0.35:
        outputs.append(r.choice(seen[1:]))
    if r.random() < 0.15:
        outputs.append(m("torch." + r.choice(("sum", "mean", "amax")), seen[-1], r.choice((0, -1, (0, -1)))))
    return outputs


def _row_step(r: random.Random, m: Recorder, seen: list[Value]) -> Value:
    x = seen[-1] if r.random() < 0.75 else r.choice(seen)
    width, dtype = x.shape[-1], x.dtype
    kind = r.choice(
        "linear linear linear act gate swiglu glu cat cat split residual".split()
        + "norm norm softmax gather reduce cast binary scale".split()
    )
    same = [v for v in seen if v.shape == x.shape and v.dtype == dtype]
    if kind == "linear":
        y = _linear(r, m, x, r.choice(WIDTHS))
        return m(F + r.choice(ACTIVATIONS), y) if r.random() < 0.5 else y
    if kind == "gate":
        gate = _linear(r, m, x, width) if r.random() < 0.5 else r.choice(same)
        return m("torch.mul", m("torch.sigmoid", gate), x)
    if kind == "swiglu":
        inner = r.choice(WIDTHS)
        up = m("torch.mul", m(F + "silu", _linear(r, m, x, inner)), _linear(r, m, x, inner))
        return _linear(r, m, up, width)
    if kind == "glu" and width % 2 == 0:
        return m(F + "glu", x, -1)
    if kind == "cat":
        return m(
            "torch.cat", [x, r.choice([v for v in seen if v.dtype == dtype and v.shape[:-1] == x.shape[:-1]])], -1, exact=True
        )
    if kind == "split" and width > 2:
        cut = r.randint(1, width - 1)
        return r.choice(m.parts("torch.split", x, [cut, width - cut], -1, exact=True))
    if kind == "residual":
        return m("torch.add", x, _linear(r, m, x, width))
    if kind == "norm":
        w = m.weight(width, dtype=dtype, around=1.0, fan=10)
        if r.random() < 0.4:
            return m(F + "rms_norm", x, (width,), w, 1e-5)
        return m(F + "layer_norm", x, (width,), w, m.weight(width, dtype=dtype, fan=10))
    if kind == "softmax":
        return m("torch." + r.choice(("softmax", "log_softmax")), x, -1)
    if kind == "gather" and x.sample.ndim == 2:
        index = m.index(x.shape[0], limit=x.shape[0])
        return m("torch.index_select", x, 0, index, exact=True)
    if kind == "reduce":
        total = m("torch." + r.choice(("sum", "mean", "amax")), x, r.choice((-1, 0)), keepdim=True)
        return m("torch.sub", x, total)
    if kind == "cast":
        return m("torch.Tensor.to", m("torch.mul", m("torch.Tensor.to", x, torch.float32), 0.5), dtype)
    if kind == "binary":
        return m("torch." + r.choice(("add", "mul", "maximum")), x, r.choice(same))
    if kind == "scale":
        return m("torch.mul", x, m.weight(width, dtype=dtype, fan=4))
    return m(F + r.choice(ACTIVATIONS), x)


def graph(r: random.Random, m: Recorder, dtype: torch.dtype) -> list[Value]:
    """Message passing: rows of nodes are gathered by `edges[0]` and `edges[1]`, and messages added at nodes."""
    nodes, edges = r.choice((3, 8, 17, 50, 129)), r.choice((1, 5, 16, 77, 200, 300))
    x = m.input(nodes, r.choice(WIDTHS[2:]), dtype=dtype)
    index = m.index(2, edges, limit=nodes)
    attributes = m.input(edges, r.choice((1, 3, 4, 16)), dtype=dtype)
    src, dst = (m("operator.getitem", index, end, exact=True) for end in r.choice(((0, 1), (1, 0))))
    outputs: list[Value] = []
    for _ in range(r.randint(1, 2)):
        a, b = m("operator.getitem", x, src, exact=True), m("torch.index_select", x, 0, dst, exact=True)
        kind = r.choice(("cat", "cat", "sub", "weighted"))
        width = r.choice(WIDTHS[2:])
        if kind == "cat":
            message = _linear(r, m, m("torch.cat", [a, b, attributes], -1), width)
        elif kind == "sub":
            message = _linear(r, m, m("torch.sub", a, b), width)
        else:
            message = m("torch.mul", _linear(r, m, a, width), m("torch.sigmoid", _linear(r, m, attributes, 1)))
        if r.random() < 0.6:
            message = _linear(r, m, m(F + r.choice(ACTIVATIONS), message), r.choice(WIDTHS[2:]))
        width = message.shape[-1]
        added = r.choice(("index_add", "index_add", "scatter_add", "amax", "mean"))
        zero = m("torch.Tensor.new_zeros", message, (nodes, width))
        if added == "scatter_add":
            wide = m("torch.Tensor.expand", m("torch.unsqueeze", dst, -1), edges, width)
            total = m("torch.scatter_add", zero, 0, wide, message)
        elif added == "amax":
            wide = m("torch.Tensor.expand", m("torch.unsqueeze", dst, -1), edges, width)
            total = m("torch.scatter_reduce", zero, 0, wide, message, "amax", include_self=True)
        else:
            total = m("torch.index_add", zero, 0, dst, message)
            if added == "mean":
                ones = m("torch.Tensor.new_ones", message, (edges, 1))
                counts = m("torch.index_add", m("torch.Tensor.new_zeros", message, (nodes, 1)), 0, dst, ones)
                total = m("torch.div", total, m("torch.clamp", counts, 1.0))
        x = m("torch.add", _linear(r, m, m("torch.cat", [x, total], -1), width), total)
        if r.random() < 0.4:
            x = m(F + "layer_norm", x, (width,))
        outputs.append(message)
    return [x, outputs[-1]] if r.random() < 0.3 else [x]


def attention(r: random.Random, m: Recorder, dtype: torch.dtype) -> list[Value]:
    """Attention of few odd heads over [batch, length, width], or products named by einsum."""
    if r.random() < 0.25:
        return [_einsum(r, m, dtype)]
    batch, length, size = r.choice((1, 2)), r.choice((1, 3, 8, 17, 33, 64)), r.choice((2, 4, 6, 8, 10, 16, 30, 32, 64))
    kept = r.choice((1, 2, 3))
    heads = kept * r.choice((1, 1, 2, 4))
    x = m.input(batch, length, r.choice((8, 15, 32, 48)), dtype=dtype)
    past = r.choice((length, length, length + 5))
    source = x if past == length else m.input(batch, past, x.shape[-1], dtype=dtype)
    q, k, v = (_heads(r, m, of, count, size) for of, count in ((x, heads), (source, kept), (source, kept)))
    if past == length and r.random() < 0.4:
        q, k = _rotated(m, q), _rotated(m, k)
    mask = None
    causal = r.random() < 0.3
    if not causal and r.random() < 0.4:
        mask = m.input(length, past, dtype=dtype)
    if r.random() < 0.6:
        y = m(F + "scaled_dot_product_attention", q, k, v, mask, 0.0, causal, enable_gqa=heads != kept)
    else:
        if heads != kept:
            k, v = (m("torch.repeat_interleave", t, heads // kept, 1) for t in (k, v))
        scores = m("torch.mul", m("torch.matmul", q, m("torch.transpose", k, -2, -1)), size**-0.5)
        if mask is not None:
            scores = m("torch.add", scores, mask)
        elif causal:
            above = m("torch.triu", m("torch.Tensor.new_ones", scores, (length, past)), 1)
            scores = m("torch.masked_fill", scores, m("torch.gt", above, 0.5), float("-inf"))
        y = m("torch.matmul", m("torch.softmax", scores, -1), v)
    y = m("torch.reshape", m("torch.transpose", y, 1, 2), (batch, length, heads * size))
    y = _linear(r, m, y, x.shape[-1])
    return [m("torch.add", x, y)] if r.random() < 0.7 else [y, k]


def _heads(r: random.Random, m: Recorder, x: Value, heads: int, size: int) -> Value:
    y = _linear(r, m, x, heads * size)
    return m("torch.transpose", m("torch.reshape", y, (*x.shape[:2], heads, size)), 1, 2)


def _rotated(m: Recorder, x: Value) -> Value:
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] * 0.3 ** torch.arange(half)
    cos, sin = (Value(f(angles).repeat(1, 2).to(x.dtype), weight=True) for f in (torch.cos, torch.sin))
    a, b = m.parts("torch.chunk", x, 2, -1)
    turned = m("torch.cat", [m("torch.neg", b), a], -1)
    return m("torch.add", m("torch.mul", x, cos), m("torch.mul", turned, sin))


EQUATIONS = (
    "ij,jk->ik", "bij,bjk->bik", "bij,kj->bik", "bhid,bhjd->bhij", "bihd,bjhd->bhij", "ij,ij->i", "ij,kj->", "abc,cb->a",
    "abc,abd->acd", "i,j->ij", "abc->cab", "bhij,bjhd->bihd", "ij,jk,kl->il",
)  # fmt: skip


def _einsum(r: random.Random, m: Recorder, dtype: torch.dtype) -> Value:
    equation = r.choice(EQUATIONS)
    sizes = {letter: r.choice((1, 2, 3, 5, 8, 17, 31)) for letter in "abcdhijkl"}
    operands = [m.input(*(sizes[letter] for letter in part), dtype=dtype) for part in equation.split("->")[0].split(",")]
    y = m("torch.einsum", equation, *operands)
    return m(F + "silu", y) if r.random() < 0.4 else y
