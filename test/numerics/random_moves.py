"""Random moves of tensors: pads, rolls, flips, concatenations, slices with steps, choices, running sums, sorts."""

from __future__ import annotations

import random

import torch

from test.numerics.random_pieces import F, sizes_of
from test.numerics.recorded import Recorder, Value


def moves(r: random.Random, m: Recorder, dtype: torch.dtype) -> list[Value]:
    """Outputs of moves, choices and row functions over tensors of one to four dimensions; some are i64."""
    most = sizes_of(m).most >> 6  # pieces are put together many times
    shape = [r.choice((1, 2, 3, 5, 8, 17, 33)) for _ in range(r.randint(1, 4))]
    if m.large:
        shape = r.choice(([1 << 20], [4096, 129], [2000, 256], [64, 63, 128], [16, 8, 64, 65], [5, 100_000]))
    seen = [m.input(*shape, dtype=dtype)]
    if r.random() < 0.3:
        seen.append(m.index(*seen[0].shape, limit=9))
    for _ in range(r.randint(2, 7)):
        x = seen[-1] if r.random() < 0.7 else r.choice(seen)
        y = r.choice((_pad, _roll, _join, _slice, _slice, _shape, _choose, _running, _pick, _arithmetic))(r, m, x, seen)
        if y.sample.ndim and 0 < y.sample.numel() <= most:
            seen.append(y)
    outputs = [seen[-1]]
    while r.random() < 0.3:
        outputs.append(r.choice(seen[1:] or seen))
    return outputs


def _pad(r: random.Random, m: Recorder, x: Value, seen: list[Value]) -> Value:
    modes = ["constant"] * 3
    if x.sample.ndim in (3, 4) and x.sample.is_floating_point():
        modes += ["reflect", "replicate", "circular"]
    mode = r.choice(modes)
    dims = x.sample.ndim if mode == "constant" else x.sample.ndim - 2
    amounts: list[int] = []
    for size in reversed(x.shape[-dims:]):
        most = size - 1 if mode == "reflect" else size if mode == "circular" else 4
        low = 0 if mode == "circular" else -min(2, (size - 1) // 2)
        amounts += [r.choice((0, 0, r.randint(low, min(3, most)))) for _ in range(2)]
    value = {"value": r.choice((0, 1, -2))} if mode == "constant" else {}
    return m(F + "pad", x, tuple(amounts), mode, exact=True, **value)


def _roll(r: random.Random, m: Recorder, x: Value, seen: list[Value]) -> Value:
    dim = r.randrange(x.sample.ndim)
    if r.random() < 0.5:
        return m("torch.roll", x, r.randint(-3, 3), dim, exact=True)
    return m("torch.flip", x, tuple(sorted({dim, r.randrange(x.sample.ndim)})), exact=True)


def _join(r: random.Random, m: Recorder, x: Value, seen: list[Value]) -> Value:
    same = r.choice([v for v in seen if v.shape == x.shape and v.dtype == x.dtype])
    if r.random() < 0.3 and x.sample.ndim < 5:
        return m("torch.stack", [x, same], r.randint(0, x.sample.ndim), exact=True)
    return m("torch.cat", [x, same, x][: r.choice((2, 3))], r.randrange(x.sample.ndim), exact=True)


def _slice(r: random.Random, m: Recorder, x: Value, seen: list[Value]) -> Value:
    dim = r.randrange(x.sample.ndim)
    start = r.randrange(x.shape[dim])
    cut = slice(start, r.randint(start + 1, x.shape[dim]), r.choice((1, 1, 2, 3)))
    if r.random() < 0.2:
        return m("torch.select", x, dim, start, exact=True) if x.sample.ndim > 1 else x
    # torch.export knows slices by tuples of Python's own
    return m("operator.getitem", x, (*[slice(None)] * dim, cut), exact=True)


def _shape(r: random.Random, m: Recorder, x: Value, seen: list[Value]) -> Value:
    ndim = x.sample.ndim
    kind = r.choice(("permute", "expand", "reshape", "repeat", "squeeze", "unfold"))
    if kind == "permute":
        return m("torch.permute", x, tuple(r.sample(range(ndim), ndim)), exact=True)
    if kind == "expand" and ndim < 5:
        return m("torch.Tensor.expand", x, r.choice((1, 2, 3)), *x.shape, exact=True)
    if kind == "repeat":
        return m("torch.repeat_interleave", x, r.choice((2, 3)), r.randrange(ndim), exact=True)
    if kind == "unfold" and ndim < 5:
        dim = r.randrange(ndim)
        return m("torch.Tensor.unfold", x, dim, min(2, x.shape[dim]), r.choice((1, 2)), exact=True)
    if kind == "squeeze" and ndim > 1:
        return m("torch.squeeze", x, exact=True) if x.sample.squeeze().ndim else x
    at = r.randrange(ndim)
    return m("torch.reshape", x, (*x.shape[:at], -1), exact=True)


def _choose(r: random.Random, m: Recorder, x: Value, seen: list[Value]) -> Value:
    if not x.exact:
        return m("torch.clamp", x, -0.5, 0.75) if x.sample.is_floating_point() else m("torch.clamp", x, 1, 5)
    other = r.choice([v for v in seen if v.shape == x.shape and v.dtype == x.dtype])
    test = m("torch." + r.choice(("gt", "le", "eq", "ne")), x, r.choice((0, 1)), exact=True)
    if r.random() < 0.5:
        return m("torch.where", test, x, other, exact=True)
    return m("torch.masked_fill", x, test, r.choice((0, 2)), exact=True)


def _running(r: random.Random, m: Recorder, x: Value, seen: list[Value]) -> Value:
    dim = r.randrange(x.sample.ndim)
    if x.sample.is_floating_point() and r.random() < 0.5:
        return m("torch.softmax", x, dim)
    whole = not x.sample.is_floating_point()
    return (
        m("torch." + r.choice(("cumsum", "sum", "cumsum")), x, dim, exact=whole)
        if x.sample.ndim > 1
        else m("torch.cumsum", x, dim)
    )


def _pick(r: random.Random, m: Recorder, x: Value, seen: list[Value]) -> Value:
    """Of numbers that are exact: the places of others depend on how sums are rounded. Ties are only in what has an order."""
    dim = r.randrange(x.sample.ndim)
    if not x.exact:
        return m("torch.amax", x, dim, keepdim=True)
    kind = r.choice(("topk", "sort", "argmax", "argsort", "gather", "max"))
    if kind == "topk":
        return r.choice((m.parts("torch.topk", x, r.randint(1, x.shape[dim]), dim, exact=True)[0],))
    if kind == "sort":
        return r.choice(m.parts("torch.sort", x, dim=dim, descending=r.random() < 0.5, stable=True, exact=True))
    if kind == "argsort":
        return m("torch.argsort", x, dim=dim, stable=True, exact=True)
    if kind == "max":
        return m.parts("torch.max", x, dim, exact=True)[0]
    if kind == "gather":
        shape = list(x.shape)
        shape[dim] = r.randint(1, shape[dim])
        return m("torch.gather", x, dim, m.index(*shape, limit=x.shape[dim]), exact=True)
    return m("torch." + r.choice(("argmax", "argmin")), x, dim, keepdim=True, exact=True)


def _arithmetic(r: random.Random, m: Recorder, x: Value, seen: list[Value]) -> Value:
    other = r.choice([v for v in seen if v.shape == x.shape])
    if not x.sample.is_floating_point():
        return m("torch." + r.choice(("add", "mul", "maximum", "minimum")), x, x, exact=True)
    if r.random() < 0.5:
        return m(F + r.choice(("relu", "silu", "gelu")), x)
    return m("torch." + r.choice(("add", "mul", "sub")), x, other)
