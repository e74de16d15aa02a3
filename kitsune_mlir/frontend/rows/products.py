"""What products do to rows: those of either operand stay, those that are summed over are reduced."""

from __future__ import annotations

import torch

from kitsune_mlir.frontend.rows.axes import Unclear
from kitsune_mlir.frontend.rows.node import Axes, Node, broadcast

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


PRODUCTS = {
    aten.mm.default: _plain, aten.bmm.default: _plain, aten.mv.default: _plain, aten.dot.default: _plain,
    aten.addmm.default: _added, aten.baddbmm.default: _added,
}  # fmt: skip
"""Rules by operator."""
