"""What products do to rows: those of either operand stay, those that are summed over are reduced."""

from __future__ import annotations

import torch

from kitsune_mlir.frontend.rows.axes import Unclear, axis_of, names_in
from kitsune_mlir.frontend.rows.node import WITHIN_SAMPLES, Axes, Node, broadcast

__all__ = ["PRODUCTS"]

aten = torch.ops.aten


def _product(at: Node, left: Axes, right: Axes) -> Axes:
    """Of matrices, with the same dimensions before them; or of vectors, which come without the other dimension."""
    inner, other = left[-1], right[-2 if len(right) > 1 else -1]
    if inner != other:
        raise Unclear(f"it sums over dimensions of {inner} and of {other}")
    at.crosses(inner.symbols, "it sums products over rows", "counts")
    return (*broadcast(left[:-2], right[:-2]), *left[-2:-1], *(right[-1:] if len(right) > 1 else ()))


def _plain(at: Node) -> Axes:
    return _product(at, at.operand(0), at.operand(1))


def _added(at: Node) -> Axes:
    return broadcast(at.operand(0), _product(at, at.operand(1), at.operand(2)))


def _convolution(at: Node) -> Axes:
    """On samples; or, as weights' gradients are made, on channels that are samples, which it sums over."""
    x, weight, bias = at.operand(0), at.operand(1), at.operand(2)
    inner, other, free = x[1], weight[0 if at["transposed"] else 1], weight[1 if at["transposed"] else 0]
    groups = 1 if at["transposed"] else int(at["groups"])
    if free.symbols or any(axis.symbols for axis in bias):
        raise Unclear("its channels are counted by sizes that change")
    if inner.symbols | other.symbols:
        if inner.factors != ((groups,) if groups > 1 else ()) + other.factors or x[0].symbols & inner.symbols:
            raise Unclear(f"it sums over dimensions of {inner} and of {other}")
        at.crosses(inner.symbols, "it sums products over rows", "counts")
    sizes = at.results[2:]
    places = names_in([*sizes, *(size for axis in (*x[2:], *weight[2:]) for size in axis.factors)])
    at.crosses(places, WITHIN_SAMPLES, "never")
    return (x[0], axis_of(at.results[1]), *map(axis_of, sizes))


PRODUCTS = {
    aten.mm.default: _plain, aten.bmm.default: _plain, aten.mv.default: _plain, aten.dot.default: _plain,
    aten.addmm.default: _added, aten.baddbmm.default: _added, aten.convolution.default: _convolution,
}  # fmt: skip
"""Rules by operator."""
