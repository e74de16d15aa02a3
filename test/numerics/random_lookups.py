"""Random models of ids and of points: embeddings, bags, crosses and pairs of features; encodings, waves, grids and rays."""

from __future__ import annotations

import math
import random
from typing import Any

import torch

from test.numerics.random_pieces import F, act, linear, mlp, norm, sizes_of
from test.numerics.recorded import Recorder, Value


def recommenders(r: random.Random, m: Recorder, dtype: torch.dtype) -> list[Value]:
    """Numbers [batch, width] and ids become rows that are crossed, paired and put through layers."""
    sizes = sizes_of(m)
    batch, size, fields = (
        r.choice(sizes.rows[: len(sizes.rows) - 2]),
        r.choice((1, 4, 7, 8, 16, 33, 64)),
        r.choice((1, 2, 5, 8)),
    )
    own = mlp(r, m, m.input(batch, r.choice((1, 3, 13)), dtype=dtype), r.choice(sizes.widths), size)
    found = _vectors(r, m, batch, fields, size, dtype)  # [batch, fields, size]
    parts = [own]
    for kind in r.sample(("flat", "machine", "pairs", "history", "gate", "first"), r.randint(1, 3)):
        if kind == "flat":
            parts.append(m("torch.flatten", found, 1, exact=True))
        elif kind == "machine":  # Rendle's second order
            square = m("torch.pow", m("torch.sum", found, 1), 2)
            y = m("torch.mul", m("torch.sub", square, m("torch.sum", m("torch.pow", found, 2), 1)), 0.5)
            parts.append(y if r.random() < 0.5 else m("torch.sum", y, -1, keepdim=True))
        elif kind == "pairs":
            stacked = m("torch.cat", [m("torch.unsqueeze", own, 1), found], 1)
            dots = m("torch.matmul", stacked, m("torch.transpose", stacked, 1, 2))
            first, second = torch.tril_indices(fields + 1, fields + 1, -1)
            places = (slice(None), Value(first, weight=True), Value(second, weight=True))
            if r.random() < 0.5:
                parts.append(m("operator.getitem", dots, places))
            else:
                parts.append(m("torch.flatten", dots, 1))
        elif kind == "history":  # arXiv 1706.06978
            past = _vectors(r, m, batch, r.choice((1, 3, 9)), size, dtype)
            wanted = m("torch.Tensor.expand_as", m("torch.unsqueeze", own, 1), past)
            scores = mlp(r, m, m("torch.cat", [wanted, past, m("torch.mul", wanted, past)], -1), r.choice((8, 17)), 1)
            parts.append(m("torch.sum", m("torch.mul", m("torch.softmax", scores, 1), past), 1))
        elif kind == "gate":
            weight = m("torch.sigmoid", mlp(r, m, m("torch.mean", found, -1), max(1, fields // 2), fields))
            parts.append(m("torch.flatten", m("torch.mul", found, m("torch.unsqueeze", weight, -1)), 1))
        else:
            parts.append(m("torch.sum", found, 1))
    x = m("torch.cat", parts, -1) if len(parts) > 1 else own
    first = x
    for _ in range(r.choice((0, 1, 2))):  # arXiv 1708.05123 and 2008.13535
        if r.random() < 0.4:
            x = m("torch.add", m("torch.mul", first, linear(r, m, x, 1)), x)
        else:
            x = m("torch.add", m("torch.mul", first, linear(r, m, x, first.shape[-1])), x)
    y = mlp(r, m, x, *(r.choice(sizes.widths) for _ in range(r.randint(1, 2))), 1)
    y = m("torch.sigmoid", y)
    return [m("torch.squeeze", y, -1) if r.random() < 0.5 else y] + ([x] if r.random() < 0.3 else [])


def _vectors(r: random.Random, m: Recorder, batch: int, fields: int, size: int, dtype: torch.dtype) -> Value:
    rows = r.choice(sizes_of(m).table)
    kind = r.choice("one each bag bag offsets weighted".split())
    if kind == "one":  # one table for all fields, each with its part
        ids = m.index(batch, fields, limit=rows)
        shifted = m("torch.add", ids, Value(torch.arange(fields) * rows, weight=True), exact=True)
        return m(F + "embedding", shifted, m.weight(rows * fields, size, dtype=dtype), exact=True)
    if kind == "each":
        ids = m.index(batch, fields, limit=rows)
        tables = [m.weight(rows, size, dtype=dtype) for _ in range(fields)]
        columns = [m("operator.getitem", ids, (slice(None), field), exact=True) for field in range(fields)]
        found = [m(F + "embedding", at, table, exact=True) for at, table in zip(columns, tables, strict=True)]
        return m("torch.stack", found, 1, exact=True)
    held, bags = r.choice((1, 3, 4)), []
    for _ in range(min(fields, 2)):
        table = m.weight(rows, size, dtype=dtype)
        if kind == "offsets":
            ids = m.index(batch * held, limit=rows)
            ends = m("operator.getitem", m("torch.sort", m.index(batch - 1, limit=batch * held + 1), exact=True), 0, exact=True)
            starts = m("torch.cat", [m("torch.Tensor.new_zeros", ends, (1,)), ends], exact=True)
            bags.append(m(F + "embedding_bag", ids, table, starts, mode=r.choice(("sum", "mean"))))
            continue
        ids = m.index(batch, held, limit=rows)
        weights: dict[str, Any] = {"per_sample_weights": m.input(batch, held, dtype=dtype)} if kind == "weighted" else {}
        mode = "sum" if weights else r.choice(("sum", "mean", "max"))
        bags.append(m(F + "embedding_bag", ids, table, mode=mode, **weights))
    found = [bags[number % len(bags)] for number in range(fields)]
    return m("torch.stack", found, 1)


def fields(r: random.Random, m: Recorder, dtype: torch.dtype) -> list[Value]:
    """Points [rows, 1 to 4] are encoded, and go through layers; perhaps samples of rays are put together."""
    sizes = sizes_of(m)
    count, dims = r.choice(sizes.rows), r.choice((1, 2, 3, 3, 4))
    where = m.input(count, dims, dtype=torch.float32)
    x = r.choice((_octaves, _waves, _features, _radial, _grid, _plain))(r, m, where, dtype)
    y, width = x, r.choice(sizes.widths[3:])
    for _ in range(r.randint(1, 4)):
        y = linear(r, m, y, width)
        kind = r.choice("act act act sine skip norm".split())
        if kind == "sine":
            y = m("torch.sin", m("torch.mul", y, r.choice((1.0, 30.0))))
        elif kind == "skip":
            y = m("torch.cat", [act(r, m, y), x], -1)
        else:
            y = norm(r, m, y) if kind == "norm" else act(r, m, y)
    out = linear(r, m, y, 4)
    if r.random() < 0.3 and count % 2 == 0 and count > 2:
        return [_ray(m, m("torch.reshape", out, (2, count // 2, 4)))]
    colour, density = m.parts("torch.split", out, [3, 1], -1)
    return [m("torch.sigmoid", colour), m(F + "softplus", density)] if r.random() < 0.5 else [out]


def _plain(r: random.Random, m: Recorder, where: Value, dtype: torch.dtype) -> Value:
    return m("torch.Tensor.to", where, dtype)


def _octaves(r: random.Random, m: Recorder, where: Value, dtype: torch.dtype) -> Value:
    """Sines and cosines of octaves (NeRF, arXiv 2003.08934)."""
    scales = Value(2.0 ** torch.arange(r.choice((1, 4, 10))), weight=True)
    angles = m("torch.mul", m("torch.unsqueeze", where, -1), scales)
    angles = m("torch.flatten", angles, 1) if r.random() < 0.5 else m("torch.reshape", angles, (where.shape[0], -1))
    return m("torch.Tensor.to", m("torch.cat", [where, m("torch.sin", angles), m("torch.cos", angles)], -1), dtype)


def _waves(r: random.Random, m: Recorder, where: Value, dtype: torch.dtype) -> Value:
    x = linear(r, m, m("torch.Tensor.to", where, dtype), r.choice((16, 63, 96)))
    return m("torch.sin", m("torch.mul", x, 30.0))


def _features(r: random.Random, m: Recorder, where: Value, dtype: torch.dtype) -> Value:
    angles = m("torch.matmul", where, m.weight(where.shape[1], r.choice((7, 32, 64)), fan=1))
    angles = m("torch.mul", angles, 2 * math.pi)
    return m("torch.Tensor.to", m("torch.cat", [m("torch.cos", angles), m("torch.sin", angles)], -1), dtype)


def _radial(r: random.Random, m: Recorder, where: Value, dtype: torch.dtype) -> Value:
    centres = m.weight(r.choice((7, 32, 65)), where.shape[1], fan=1)
    if r.random() < 0.5:
        apart = m("torch.sub", m("torch.unsqueeze", where, 1), centres)
        far = m("torch.sum", m("torch.mul", apart, apart), -1)
    else:
        far = m("torch.pow", m("torch.cdist", where, centres), 2)
    return m("torch.Tensor.to", m("torch.exp", m("torch.neg", far)), dtype)


def _grid(r: random.Random, m: Recorder, where: Value, dtype: torch.dtype) -> Value:
    """Features of hashed corners, weighted (arXiv 2201.05989)."""
    where = m("torch.narrow", where, 1, 0, min(where.shape[1], 2), exact=True)
    dims, rows, size = where.shape[1], r.choice((16, 64, 1 << 12)), r.choice((1, 2, 4))
    levels = []
    for level in range(r.choice((1, 2, 4))):
        scaled = m("torch.mul", where, float(4 << level), exact=True)
        low = m("torch.floor", scaled, exact=True)
        part = m("torch.sub", scaled, low)
        corner = m("torch.Tensor.to", low, torch.int64, exact=True)
        table, total = m.weight(rows, size, fan=1), None
        for bits in range(2**dims):
            weight = place = None
            for dim in range(dims):
                upper = bits >> dim & 1
                at = m("torch.add", m("torch.select", corner, 1, dim, exact=True), upper, exact=True)
                at = m("torch.mul", at, (1, 2654435761)[dim], exact=True)
                place = at if place is None else m("torch.bitwise_xor", place, at, exact=True)
                share = m("operator.getitem", part, (slice(None), slice(dim, dim + 1)))
                share = share if upper else m("torch.rsub", share, 1.0)
                weight = share if weight is None else m("torch.mul", weight, share)
            found = m("operator.getitem", table, m("torch.remainder", place, rows, exact=True))
            found = m("torch.mul", found, weight)
            total = found if total is None else m("torch.add", total, found)
        levels.append(total)
    return m("torch.Tensor.to", m("torch.cat", levels, -1), dtype)


def _ray(m: Recorder, samples: Value) -> Value:
    """Colours [rays, 3] of samples [rays, samples, 4], what is behind being hidden."""
    colour, density = m.parts("torch.split", samples, [3, 1], -1)
    clear = m("torch.exp", m("torch.neg", m(F + "softplus", density)))
    ahead = m("torch.cumprod", clear, 1)
    ones = m("torch.ones_like", m("operator.getitem", clear, (slice(None), slice(0, 1))))
    ahead = m("torch.cat", [ones, m("operator.getitem", ahead, (slice(None), slice(0, -1)))], 1)
    weight = m("torch.mul", ahead, m("torch.rsub", clear, 1.0))
    return m("torch.sum", m("torch.mul", weight, m("torch.sigmoid", colour)), 1)
