"""A tree of scalars (`dialects.scalar_tree`) as operations in the body of a generic."""

from __future__ import annotations

from collections.abc import Sequence

from torch_mlir import ir
from torch_mlir.dialects import arith

from kitsune_mlir.dialects.deep import postorder
from kitsune_mlir.dialects.factors import Factor, Flat
from kitsune_mlir.dialects.scalar_tree import Tree, children

__all__ = ["emit"]


def emit(tree: Tree, loaded: dict[Tree, ir.Value], loops: Sequence[Factor]) -> ir.Value:
    """A tree as scalar operations in the body of a generic over `loops`."""
    made: dict[int, ir.Value] = {}
    for node in postorder([tree], children, id):
        made[id(node)] = _emitted(node, [made[id(child)] for child in children(node)], loaded, loops)
    return made[id(tree)]


def _emitted(node: Tree, operands: list[ir.Value], loaded: dict[Tree, ir.Value], loops: Sequence[Factor]) -> ir.Value:
    kind = node[0]
    if kind == "load":
        return loaded[node]
    if kind == "const":
        type_ = ir.Type.parse(node[2])
        return arith.constant(type_, bool(node[1]) if node[2] == "i1" else node[1])
    if kind == "outside":
        return node[1]
    if kind == "index":
        return _index(node[1], loops)
    attributes = {"predicate": ir.Attribute.parse(node[2])} if node[2] else {}
    return ir.Operation.create(node[1], [ir.Type.parse(node[3])], operands, attributes).results[0]


def _index(factors: Flat, loops: Sequence[Factor]) -> ir.Value:
    """The position along a dimension that is several loops, outermost first."""
    index = ir.IndexType.get()
    i64 = ir.IntegerType.get_signless(64)
    total: ir.Value | None = None
    for factor in factors:
        attributes = {"dim": ir.IntegerAttr.get(i64, loops.index(factor))}
        position = ir.Operation.create("linalg.index", [index], [], attributes).results[0]
        total = position if total is None else arith.addi(arith.muli(total, arith.constant(index, factor.size)), position)
    return arith.constant(index, 0) if total is None else total
