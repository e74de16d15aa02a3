"""Random message passing: indices that are inputs, slices or computed, every aggregation, softmax over a node's edges."""

from __future__ import annotations

import random

import torch

from test.numerics.random_pieces import F, act, linear, mlp, norm, sizes_of
from test.numerics.recorded import Recorder, Value

AGGREGATIONS = "index_add scatter_add put amax amin mean divided softmax prod".split()


def graph(r: random.Random, m: Recorder, dtype: torch.dtype) -> list[Value]:
    """Rows of nodes are gathered by edges, and messages put together at nodes; then perhaps nodes at graphs."""
    sizes = sizes_of(m)
    nodes, edges = r.choice(sizes.nodes), r.choice(sizes.edges)
    x = m.input(nodes, r.choice(sizes.widths[2:]), dtype=dtype)
    attributes = m.input(edges, r.choice((1, 3, 4, 16)), dtype=dtype)
    src, dst = _ends(r, m, nodes, edges)
    outputs: list[Value] = []
    for _ in range(r.randint(1, 3)):
        message = _message(r, m, x, src, dst, attributes)
        outputs.append(message)
        total = _aggregated(r, m, message, dst, nodes)
        joined = total if r.random() < 0.3 else m("torch.cat", [x, total], -1)
        x = mlp(r, m, joined, *(total.shape[-1] for _ in range(r.choice((1, 1, 2)))))
        if r.random() < 0.6:
            x = m("torch.add", x, total)
        if r.random() < 0.4:
            x = norm(r, m, x)
    if r.random() < 0.25:  # a number for each graph
        graphs = r.choice((1, 4))
        whose = m("torch.sort", m.index(nodes, limit=graphs), exact=True)
        whole = _aggregated(r, m, x, m("operator.getitem", whose, 0, exact=True), graphs)
        return [linear(r, m, whole, r.choice((1, 10)))]
    return [x, outputs[-1]] if r.random() < 0.3 else [x]


def _ends(r: random.Random, m: Recorder, nodes: int, edges: int) -> tuple[Value, Value]:
    kind = r.choice("slice slice unbind apart computed".split())
    if kind == "apart":
        return m.index(edges, limit=nodes), m.index(edges, limit=nodes)
    if kind == "computed":  # each edge's next node, or nodes by pairs
        src = m.index(edges, limit=nodes)
        if r.random() < 0.5:
            return src, m("torch.remainder", m("torch.add", src, 1, exact=True), nodes, exact=True)
        return src, m("torch.div", src, 2, rounding_mode="floor", exact=True)
    index = m.index(2, edges, limit=nodes)
    if kind == "unbind":
        ends = m.parts("torch.unbind", index, 0, exact=True)
    else:
        ends = [m("operator.getitem", index, end, exact=True) for end in (0, 1)]
    first, second = ends if r.random() < 0.5 else reversed(ends)
    return first, second


def _message(r: random.Random, m: Recorder, x: Value, src: Value, dst: Value, attributes: Value) -> Value:
    a, b = m("operator.getitem", x, src, exact=True), m("torch.index_select", x, 0, dst, exact=True)
    kind, widths = r.choice("cat cat sub weighted plain edge".split()), sizes_of(m).widths[2:]
    if kind == "plain":
        return a
    if kind == "cat":
        message = linear(r, m, m("torch.cat", [a, b, attributes], -1), r.choice(widths))
    elif kind == "sub":
        message = linear(r, m, m("torch.sub", a, b), r.choice(widths))
    elif kind == "edge":
        message = mlp(r, m, m("torch.cat", [b, m("torch.sub", a, b)], -1), r.choice(widths), r.choice(widths))
    else:
        message = m("torch.mul", linear(r, m, a, r.choice(widths)), m("torch.sigmoid", linear(r, m, attributes, 1)))
    return linear(r, m, act(r, m, message), r.choice(widths)) if r.random() < 0.5 else message


def _aggregated(r: random.Random, m: Recorder, message: Value, dst: Value, nodes: int) -> Value:
    """[nodes, width] of messages [edges, width]."""
    edges, width = message.shape
    how = r.choice(AGGREGATIONS)
    zero = m("torch.Tensor.new_zeros", message, (nodes, width))
    wide = m("torch.Tensor.expand", m("torch.unsqueeze", dst, -1, exact=True), edges, width, exact=True)
    if how == "scatter_add":
        return m("torch.scatter_add", zero, 0, wide, message)
    if how in ("amax", "amin", "mean"):
        start = zero if r.random() < 0.7 else m("torch.Tensor.new_full", message, (nodes, width), -0.5)
        return m("torch.scatter_reduce", start, 0, wide, message, how, include_self=r.random() < 0.5)
    if how == "prod":
        ones = m("torch.Tensor.new_ones", message, (nodes, width))
        return m("torch.scatter_reduce", ones, 0, wide, m("torch.tanh", message), "prod", include_self=True)
    if how == "put":
        return m("torch.index_put", zero, [dst], message, True)
    if how == "softmax":  # weights of a node's edges
        score = linear(r, m, m(F + "leaky_relu", message, 0.2), 1)
        at = m("torch.unsqueeze", dst, -1, exact=True)
        column = m("torch.Tensor.new_zeros", message, (nodes, 1))
        largest = m("torch.scatter_reduce", column, 0, at, score, "amax", include_self=False)
        weight = m("torch.exp", m("torch.sub", score, m("operator.getitem", largest, dst)))
        total = m("torch.index_add", column, 0, dst, weight)
        return m(
            "torch.index_add", zero, 0, dst, m("torch.mul", message, m("torch.div", weight, m("operator.getitem", total, dst)))
        )
    total = m("torch.index_add", zero, 0, dst, message)
    if how == "divided":
        ones = m("torch.Tensor.new_ones", message, (edges, 1))
        counts = m("torch.index_add", m("torch.Tensor.new_zeros", message, (nodes, 1)), 0, dst, ones)
        total = m("torch.div", total, m("torch.clamp", counts, 1.0))
    return total
