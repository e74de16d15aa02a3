"""Sums of two products that share a factor, as one product: `a @ v + b @ v` is `(a + b) @ v`.

The gradient of a matrix that is multiplied with its own transpose is such a sum, `g @ v + (v.T @ g).T`: half of it is work for
tensor cores that one addition of small matrices saves.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import fx

from kitsune_mlir.frontend.dead_code import drop_dead
from kitsune_mlir.frontend.prepare import call_with_value

__all__ = ["join_products"]

aten = torch.ops.aten
_PRODUCTS = (aten.mm.default, aten.bmm.default)
_SAME = (aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.expand.default)
"""Where the shape stays, they are their operand; so PyTorch takes products of batches apart."""

Matrix = tuple[fx.Node, bool]
"""A matrix, or several, and whether its last two dimensions are exchanged."""


def join_products(graph: fx.Graph) -> None:
    """Rewrites sums of two products, in place, where what is added instead is no larger than the result."""
    for node in list(graph.find_nodes(op="call_function", target=aten.add.Tensor)):
        if len(node.args) != 2 or node.kwargs or not all(isinstance(arg, fx.Node) for arg in node.args):
            continue
        one, two = map(_product, node.args)
        if one is None or two is None or node.args[0] is node.args[1]:
            continue
        (left, right), (other_left, other_right) = one, two
        with graph.inserting_before(node):
            call = functools.partial(call_with_value, stack_trace=str(node.meta.get("stack_trace") or ""))
            if right == other_right and _pays(left, other_left, node):
                made = _multiplied(call, _sum(call, left, other_left), right)
            elif left == other_left and _pays(right, other_right, node):
                made = _multiplied(call, left, _sum(call, right, other_right))
            else:
                continue
        node.replace_all_uses_with(made)
        graph.erase_node(node)
    drop_dead(graph)


def _matrix(node: fx.Node, only: bool = False) -> Matrix:
    """What a node is, or is the transpose of; `only`: as far as nothing else reads it."""
    exchanged = False
    while isinstance(node.args[0] if node.args else None, fx.Node) and (len(node.users) == 1 or not only):
        if _exchanges(node):
            exchanged = not exchanged
        elif node.target not in _SAME or node.args[0].meta["val"].shape != node.meta["val"].shape:  # type: ignore[union-attr]
            break
        node = node.args[0]  # type: ignore[assignment]
    return node, exchanged


def _exchanges(node: fx.Node) -> bool:
    """Whether a node is its operand with the last two dimensions exchanged."""
    if node.target is aten.t.default:
        return True
    rank = node.meta["val"].ndim
    if node.target is aten.permute.default:
        return [dim % rank for dim in node.args[1]] == [*range(rank - 2), rank - 1, rank - 2]  # type: ignore[union-attr]
    return node.target is aten.transpose.int and {dim % rank for dim in node.args[1:]} == {rank - 2, rank - 1}  # type: ignore


def _product(node: Any) -> tuple[Matrix, Matrix] | None:
    """The factors of a product that nothing else reads, or of its transpose."""
    node, exchanged = _matrix(node, only=True)
    if node.target not in _PRODUCTS or len(node.users) != 1 or node.kwargs:
        return None
    left, right = map(_matrix, node.args)  # type: ignore[arg-type]
    if exchanged:
        (one, turned), (two, also) = right, left
        return (one, not turned), (two, not also)
    return left, right


def _pays(one: Matrix, two: Matrix, node: fx.Node) -> bool:
    """Whether two factors can be added, and are no larger than the result; all are of one type."""
    a, b, result = one[0].meta["val"], two[0].meta["val"], node.meta["val"]
    alike = a.dtype == b.dtype == result.dtype and result.dtype.is_floating_point
    return alike and _shape(one) == _shape(two) and a.numel() <= result.numel()


def _shape(matrix: Matrix) -> list[int]:
    node, exchanged = matrix
    *batch, rows, cols = node.meta["val"].shape
    return [*batch, cols, rows] if exchanged else [*batch, rows, cols]


def _turned(call: Any, matrix: Matrix) -> fx.Node:
    node, exchanged = matrix
    rank = node.meta["val"].ndim
    return call(aten.permute.default, node, [*range(rank - 2), rank - 1, rank - 2]) if exchanged else node


def _sum(call: Any, one: Matrix, two: Matrix) -> Matrix:
    return call(aten.add.Tensor, _turned(call, one), _turned(call, two)), False


def _multiplied(call: Any, left: Matrix, right: Matrix) -> fx.Node:
    target = aten.bmm.default if left[0].meta["val"].ndim == 3 else aten.mm.default
    return call(target, _turned(call, left), _turned(call, right))
