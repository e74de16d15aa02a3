"""Random row layers, attention and einsum, with odd sizes."""

from __future__ import annotations

import random

import torch

from test.numerics.random_pieces import F, act, heads_of, linear, mlp, norm, sizes_of
from test.numerics.recorded import Recorder, Value


def rows(r: random.Random, m: Recorder, dtype: torch.dtype) -> list[Value]:
    """Layers over [rows, width], some of whose values are used several times."""
    sizes = sizes_of(m)
    count = r.choice(sizes.rows)
    lead = (2, count) if r.random() < 0.15 and count < 100 else (count,)
    seen = [m.input(*lead, r.choice(sizes.widths), dtype=dtype)]
    if r.random() < 0.4:
        seen.append(m.input(*lead, r.choice(sizes.widths), dtype=dtype))
    for _ in range(r.randint(2, 8)):
        y = _row_step(r, m, seen)
        if y.sample.numel() <= sizes.most:
            seen.append(y)
    outputs = [seen[-1]]
    while r.random() < 0.35:
        outputs.append(r.choice(seen[1:] or seen))
    if r.random() < 0.15:
        outputs.append(m("torch." + r.choice(("sum", "mean", "amax")), seen[-1], r.choice((0, -1, (0, -1)))))
    return outputs


def _row_step(r: random.Random, m: Recorder, seen: list[Value]) -> Value:
    x = seen[-1] if r.random() < 0.75 else r.choice(seen)
    width, dtype, widths = x.shape[-1], x.dtype, sizes_of(m).widths
    kind = r.choice(
        "linear linear linear act gate swiglu glu cat cat split residual".split()
        + "norm norm softmax gather reduce cast binary scale mlp chunk masked film bilinear".split()
    )
    same = [v for v in seen if v.shape == x.shape and v.dtype == dtype]
    if kind == "linear":
        y = linear(r, m, x, r.choice(widths))
        return act(r, m, y) if r.random() < 0.5 else y
    if kind == "mlp":
        return mlp(r, m, x, *(r.choice(widths) for _ in range(r.randint(2, 4))))
    if kind == "gate":
        gate = linear(r, m, x, width) if r.random() < 0.5 else r.choice(same)
        return m("torch.mul", m("torch.sigmoid", gate), x)
    if kind == "swiglu":
        inner = r.choice(widths)
        up = m("torch.mul", m(F + "silu", linear(r, m, x, inner)), linear(r, m, x, inner))
        return linear(r, m, up, width)
    if kind == "glu" and width % 2 == 0:
        return m(F + "glu", x, -1)
    if kind == "cat":
        fitting = [v for v in seen if v.dtype == dtype and v.shape[:-1] == x.shape[:-1]]
        return m("torch.cat", [x, r.choice(fitting)], -1, exact=True)
    if kind == "split" and width > 2:
        cut = r.randint(1, width - 1)
        return r.choice(m.parts("torch.split", x, [cut, width - cut], -1, exact=True))
    if kind == "chunk" and width > 2:  # the last one may be narrower
        return r.choice(m.parts("torch.chunk", x, r.choice((2, 3)), -1, exact=True))
    if kind == "residual":
        return m("torch.add", x, linear(r, m, x, width))
    if kind == "norm":
        return norm(r, m, x)
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
    if kind == "masked":
        source = r.choice([v for v in seen if v.exact and v.shape[:-1] == x.shape[:-1]])
        rows = m("torch.gt", m("operator.getitem", source, (..., slice(0, 1)), exact=True), 0.0, exact=True)
        return m("torch.where", rows, x, r.choice(same)) if r.random() < 0.5 else m("torch.masked_fill", x, rows, -1.0)
    if kind == "film":
        scale, shift = m.parts("torch.chunk", linear(r, m, m(F + "silu", x), 2 * width), 2, -1)
        return m("torch.add", m("torch.mul", x, m("torch.add", scale, 1.0)), shift)
    if kind == "bilinear" and width <= 65:
        return m("torch.mul", m("torch.sum", m("torch.mul", linear(r, m, x, width), r.choice(same)), -1, keepdim=True), x)
    if kind == "binary":
        return m("torch." + r.choice(("add", "mul", "maximum")), x, r.choice(same))
    if kind == "scale":
        return m("torch.mul", x, m.weight(width, dtype=dtype, fan=4))
    return act(r, m, x)


def attention(r: random.Random, m: Recorder, dtype: torch.dtype) -> list[Value]:
    """Attention of few odd heads over [batch, length, width], or products named by einsum."""
    if r.random() < 0.2:
        return [_einsum(r, m, dtype)]
    sizes = sizes_of(m)
    batch, length = r.choice(sizes.batch), r.choice(sizes.lengths)
    size = r.choice((32, 64, 64, 80, 128) if m.large else (2, 4, 6, 8, 10, 16, 30, 32, 64))
    kept = r.choice((1, 2, 3, 4))
    heads = kept * r.choice((1, 1, 2, 4))
    x = m.input(batch, length, r.choice((96, 256, 384, 512) if m.large else (8, 15, 32, 48)), dtype=dtype)
    past = r.choice((length, length, length + 5))
    source = x if past == length else m.input(batch, past, x.shape[-1], dtype=dtype)
    inner = norm(r, m, x) if r.random() < 0.4 else x
    if r.random() < 0.15 and x.shape[-1] % kept == 0:
        y = _module(m, inner, source, kept)
    else:
        q, k, v = (heads_of(r, m, of, count, size) for of, count in ((inner, heads), (source, kept), (source, kept)))
        if r.random() < 0.2:
            q, k = norm(r, m, q), norm(r, m, k)
        if past == length and r.random() < 0.4:
            q, k = _rotated(m, q), _rotated(m, k)
        if past == length and r.random() < 0.15:  # keys and values of before
            k, v = (m("torch.cat", [m.input(batch, kept, 9, size, dtype=dtype), t], 2, exact=True) for t in (k, v))
        y = _attended(r, m, q, k, v)
        y = m("torch.reshape", m("torch.transpose", y, 1, 2), (batch, length, heads * size))
        y = linear(r, m, y, x.shape[-1])
    if r.random() < 0.3:
        return [y, source]
    y = m("torch.add", x, y)
    return [m("torch.add", y, mlp(r, m, norm(r, m, y), 2 * x.shape[-1], x.shape[-1]))] if r.random() < 0.4 else [y]


def _attended(r: random.Random, m: Recorder, q: Value, k: Value, v: Value) -> Value:
    (batch, heads, length, size), (kept, past), dtype = q.shape, k.shape[1:3], q.dtype
    kind = r.choice("causal causal mask padding slopes window none none".split())
    mask, causal = None, kind == "causal" and length == past
    if kind == "mask":
        mask = m.input(*r.choice(((length, past), (1, heads, length, past))), dtype=dtype)
    elif kind == "padding":  # keys beyond a sample's length are not seen
        ends = m("torch.add", m.index(batch, 1, 1, 1, limit=past), 1, exact=True)
        mask = m("torch.lt", m("torch.arange", past, q), ends, exact=True)
    elif kind == "slopes":  # Press et al., arXiv 2108.12409
        apart = Value((torch.arange(past) - torch.arange(length)[:, None]).abs().to(dtype), weight=True)
        mask = m(
            "torch.mul", m("operator.getitem", m.weight(heads, dtype=dtype), (slice(None), None, None)), m("torch.neg", apart)
        )
    elif kind == "window":
        apart = Value((torch.arange(past) - torch.arange(length)[:, None]).abs(), weight=True)
        mask = m("torch.lt", apart, 4, exact=True) if past == length else None
    if r.random() < 0.6:
        if mask is not None and mask.sample.ndim == 3:
            mask = m("torch.unsqueeze", mask, 0)
        return m(F + "scaled_dot_product_attention", q, k, v, mask, 0.0, causal, enable_gqa=heads != kept)
    if heads != kept:
        k, v = (m("torch.repeat_interleave", t, heads // kept, 1) for t in (k, v))
    scores = m("torch.mul", m("torch.matmul", q, m("torch.transpose", k, -2, -1)), size**-0.5)
    if mask is not None and mask.dtype == torch.bool:
        scores = m("torch.masked_fill", scores, m("torch.logical_not", mask, exact=True), float("-inf"))
    elif mask is not None:
        scores = m("torch.add", scores, mask)
    elif causal:
        above = m("torch.triu", m("torch.Tensor.new_ones", scores, (length, past)), 1)
        scores = m("torch.masked_fill", scores, m("torch.gt", above, 0.5), float("-inf"))
    return m("torch.matmul", m("torch.softmax", scores, -1), v)


def _module(m: Recorder, x: Value, source: Value, heads: int) -> Value:
    """What `nn.MultiheadAttention` calls."""
    width, dtype = x.shape[-1], x.dtype
    q, k = (m("torch.transpose", t, 0, 1) for t in (x, source))
    into, bias, out = (
        m.weight(3 * width, width, dtype=dtype),
        m.weight(3 * width, dtype=dtype),
        m.weight(width, width, dtype=dtype),
    )
    given = (width, heads, into, bias, None, None, False, 0.0, out, m.weight(width, dtype=dtype), False)
    y = m(F + "multi_head_attention_forward", q, k, k, *given, need_weights=False)
    return m("torch.transpose", m("operator.getitem", y, 0), 0, 1)


def _rotated(m: Recorder, x: Value) -> Value:
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] * 0.3 ** torch.arange(half)
    cos, sin = (Value(f(angles).repeat(1, 2).to(x.dtype), weight=True) for f in (torch.cos, torch.sin))
    a, b = m.parts("torch.chunk", x, 2, -1)
    turned = m("torch.cat", [m("torch.neg", b), a], -1)
    return m("torch.add", m("torch.mul", x, cos), m("torch.mul", turned, sin))


EQUATIONS = (
    "ij,jk->ik", "bij,bjk->bik", "bij,kj->bik", "bhid,bhjd->bhij", "bihd,bjhd->bhij", "ij,ij->i", "ij,kj->", "abc,cb->a",
    "abc,abd->acd", "i,j->ij", "abc->cab", "bhij,bjhd->bihd", "ij,jk,kl->il", "abc,dc,bd->ad", "bij,bkj->", "abc,ac->ab",
)  # fmt: skip


def _einsum(r: random.Random, m: Recorder, dtype: torch.dtype) -> Value:
    equation = r.choice(EQUATIONS)
    drawn = (8, 31, 64, 100, 128) if m.large else (1, 2, 3, 5, 8, 17, 31)
    sizes = {letter: r.choice(drawn) for letter in "abcdhijkl"}
    operands = [m.input(*(sizes[letter] for letter in part), dtype=dtype) for part in equation.split("->")[0].split(",")]
    y = m("torch.einsum", equation, *operands)
    return m(F + "silu", y) if r.random() < 0.4 else y
