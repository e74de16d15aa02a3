"""Random arithmetic over tensors of one to four dimensions: broadcasts, functions, reductions and products of any rank, parts
that are written."""

from __future__ import annotations

import math
import random

import torch

from test.numerics.random_pieces import F, sizes_of
from test.numerics.recorded import Recorder, Value

FUNCTIONS = (
    "abs neg exp2 sin cos tanh atan erf sign square relu sigmoid expm1 sinh asinh round floor frac reciprocal rsqrt sqrt log "
    "log1p log2"
).split()
POSITIVE = {"rsqrt", "sqrt", "log", "log1p", "log2", "reciprocal"}
STEPS = {"sign", "round", "floor", "frac"}
"""Functions that a rounding makes jump: only of numbers that are exact."""


def tensors(r: random.Random, m: Recorder, dtype: torch.dtype) -> list[Value]:
    """Inputs that broadcast with each other, then any steps."""
    sizes = (63, 64, 128, 129, 500) if m.large else (1, 2, 3, 7, 8, 16, 33, 63, 129)
    base = [r.choice(sizes) for _ in range(r.randint(1, 4))]
    while math.prod(base) > sizes_of(m).most >> 7:
        base.pop()
    seen = [m.input(*base, dtype=dtype)]
    for _ in range(r.randint(1, 2)):
        part = base[r.randint(0, len(base)) :]
        seen.append(m.input(*(1 if r.random() < 0.3 else size for size in part), dtype=r.choice((dtype, dtype, torch.float32))))
    for _ in range(r.randint(2, 8)):
        x = seen[-1] if r.random() < 0.6 else r.choice(seen)
        step = r.choice(
            (_function, _function, _binary, _binary, _binary, _reduced, _reduced, _product, _normal, _shaped, _written)
        )
        y = step(r, m, x, seen)
        if 0 < y.sample.numel() <= sizes_of(m).most >> 5 and y.sample.ndim <= 5:
            seen.append(y)
    outputs = [seen[-1]]
    while r.random() < 0.4:
        outputs.append(r.choice(seen[1:]))
    return outputs


def _dims(r: random.Random, x: Value) -> tuple[int, ...]:
    ndim = x.sample.ndim
    return tuple(sorted(r.sample(range(ndim), r.randint(1, ndim)))) if ndim else ()


def _floats(m: Recorder, x: Value) -> Value:
    return x if x.sample.is_floating_point() else m("torch.Tensor.to", x, torch.float32, exact=True)


def _function(r: random.Random, m: Recorder, x: Value, seen: list[Value]) -> Value:
    x, name = _floats(m, x), r.choice(FUNCTIONS)
    if name in STEPS:
        return m("torch." + name, x, exact=True) if x.exact else m("torch.neg", x)
    if name in POSITIVE:
        x = m("torch.add", m("torch.abs", x), 0.5)
    return m("torch." + name, m("torch.clamp", x, -4.0, 4.0) if name in ("exp2", "sinh", "expm1") else x)


def _binary(r: random.Random, m: Recorder, x: Value, seen: list[Value]) -> Value:
    def fits(other: Value) -> bool:
        return all(a == b or 1 in (a, b) for a, b in zip(reversed(x.shape), reversed(other.shape), strict=False))

    other = r.choice([value for value in seen if fits(value)])
    kind = r.choice("add sub mul mul maximum minimum atan2 div hypot lerp where compare addcmul scalar".split())
    x, other = _floats(m, x), _floats(m, other)
    if kind == "scalar":
        return m("torch." + r.choice(("add", "mul", "sub", "div")), x, r.choice((2, -0.5, 3)))
    if kind == "div":
        return m("torch.div", x, m("torch.add", m("torch.abs", other), 1.0))
    if kind == "addcmul":
        return m("torch.addcmul", x, other, other, value=0.5)
    if kind == "lerp":
        return m("torch.lerp", x, m("torch.Tensor.type_as", other, x), 0.3)
    if kind in ("where", "compare"):
        if not (x.exact and other.exact):
            return m("torch.add", x, other)
        test = m("torch." + r.choice(("gt", "le", "ne")), x, other, exact=True)
        return (
            m("torch.where", test, x, -1.0, exact=True) if kind == "where" else m("torch.Tensor.to", test, x.dtype, exact=True)
        )
    return m("torch." + kind, x, other)


def _reduced(r: random.Random, m: Recorder, x: Value, seen: list[Value]) -> Value:
    dims, keep = _dims(r, x), r.random() < 0.5
    if not dims:
        return m("torch.neg", x)
    kind = r.choice("sum sum mean amax amin var std logsumexp norm prod any count argmin max".split())
    if kind in ("any", "count"):
        test = m("torch.gt", x, 0.3, exact=True) if x.exact else m("torch.isfinite", x, exact=True)
        return m("torch.any", test, dims[0], keep) if kind == "any" else m("torch.count_nonzero", test, dims)
    x = _floats(m, x)
    if kind in ("argmin", "max"):
        if not x.exact:
            return m("torch.amax", x, dims, keep)
        return m("torch.argmin", x, dims[0], keep) if kind == "argmin" else r.choice(m.parts("torch.max", x, dims[0], keep))
    if kind == "prod":
        return m("torch.prod", m("torch.tanh", x), dims[0], keep)
    if kind in ("var", "std"):
        return m("torch." + kind, x, dims, correction=0, keepdim=keep)
    if kind == "norm":
        return m("torch.linalg.vector_norm", x, r.choice((1, 2, 3)), dims, keep)
    return m("torch." + kind, x, dims, keepdim=keep)


def _product(r: random.Random, m: Recorder, x: Value, seen: list[Value]) -> Value:
    x = _floats(m, x)
    if not x.sample.ndim:
        return m("torch.mul", x, x)
    last, out, dtype = x.shape[-1], r.choice((1, 3, 8, 33, 65)), x.dtype
    kind = r.choice("matrix vector batch self dot outer left".split())
    if kind == "vector":
        return m("torch.matmul", x, m.weight(last, dtype=dtype, fan=last))
    if kind == "batch" and x.sample.ndim > 2:
        return m("torch.matmul", x, m.weight(x.shape[-3], last, out, dtype=dtype, fan=last))
    if kind == "self" and x.sample.ndim > 1:
        return m("torch.matmul", x, m("torch.transpose", x, -1, -2))
    if kind == "dot" and x.sample.ndim > 1:
        first = x.shape[0]
        return m("torch.tensordot", x, m.weight(out, first, dtype=dtype, fan=first), ((0,), (1,)))
    if kind == "outer" and x.sample.ndim == 1:
        return m("torch.outer", x, m.weight(out, dtype=dtype))
    if kind == "left" and x.sample.ndim > 1:
        return m("torch.matmul", m.weight(out, x.shape[-2], dtype=dtype), x)
    return m("torch.matmul", x, m.weight(last, out, dtype=dtype, fan=last))


def _normal(r: random.Random, m: Recorder, x: Value, seen: list[Value]) -> Value:
    x = _floats(m, x)
    if not x.sample.ndim:
        return m("torch.sigmoid", x)
    dim, kind = r.randrange(x.sample.ndim), r.choice("softmax log_softmax layer standard unit similar".split())
    if kind == "layer":
        return m(F + "layer_norm", x, x.shape[dim:])
    if kind == "standard":
        centred = m("torch.sub", x, m("torch.mean", x, dim, keepdim=True))
        spread = m("torch.add", m("torch.var", x, dim, correction=0, keepdim=True), 0.1)
        return m("torch.div", centred, m("torch.sqrt", spread))
    if kind == "unit":
        return m(F + "normalize", x, dim=dim)
    if kind == "similar":
        return m(
            F + "cosine_similarity",
            x,
            r.choice([v for v in seen if v.shape == x.shape and v.sample.is_floating_point()] or [x]),
            dim,
        )
    return m("torch." + kind, x, dim)


def _shaped(r: random.Random, m: Recorder, x: Value, seen: list[Value]) -> Value:
    ndim = x.sample.ndim
    kind = r.choice("transpose flatten unsqueeze tril expand diagonal tile".split())
    if kind == "unsqueeze" or ndim == 0:
        return m("torch.unsqueeze", x, r.randint(0, ndim), exact=True)
    if kind == "transpose":
        return m("torch.movedim", x, r.randrange(ndim), r.randrange(ndim), exact=True)
    if kind == "expand":
        return m("torch.Tensor.expand", x, 2, *x.shape, exact=True)
    if kind == "tile":
        return m("torch.tile", x, (r.choice((1, 2)),) * ndim, exact=True)
    if kind in ("tril", "diagonal") and ndim > 1:
        return m("torch." + r.choice(("tril", "triu") if kind == "tril" else ("diagonal",)), x, r.choice((0, 0, 1)), exact=True)
    return m("torch.flatten", x, r.randrange(ndim), exact=True)


def _written(r: random.Random, m: Recorder, x: Value, seen: list[Value]) -> Value:
    """A copy of which a part is another: what `x[...] = y` becomes."""
    if not x.sample.ndim:
        return x
    dim = r.randrange(x.sample.ndim)
    size, kind = x.shape[dim], r.choice("select slice fill copy gather add".split())
    if kind in ("select", "slice"):
        at = r.randrange(size)
        cut = m("torch.narrow", x, dim, r.randrange(size - at), at or 1, exact=True)
        cut = m("torch.neg", cut, exact=True) if cut.dtype != torch.bool else cut
        if kind == "slice":
            return m("torch.slice_scatter", x, cut, dim, size - cut.shape[dim], size, 1, exact=True)
        return m("torch.select_scatter", x, m("torch.select", cut, dim, 0, exact=True), dim, at, exact=True)
    if kind == "gather":
        shape = [*x.shape[:dim], r.randint(1, 2 * size), *x.shape[dim + 1 :]]
        return m("torch.gather", x, dim, m.index(*shape, limit=size), exact=True)
    if kind == "fill":
        return m("torch.index_fill", x, dim, m.index(r.randint(1, 4), limit=size), 1, exact=True)
    other = _floats(m, x)
    if kind == "copy":  # rows of an order without repetitions
        order = m("torch.argsort", m.input(size), stable=True, exact=True)
        return m("torch.index_copy", other, dim, order, m("torch.neg", other))
    rows = m.index(size, limit=size)
    return m("torch.index_add", other, dim, rows, m("torch.mul", other, 0.5))
