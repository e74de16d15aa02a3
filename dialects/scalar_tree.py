"""What one element of a tensor is computed from, as a tree: `linalg.generic` bodies put into each other.

Trees are tuples, nested as deep as what is computed:

    ("const", number, type)          ("index", factors)               ("load", value, dims)
    ("outside", value)               ("op", name, flags, type, *operands)
    ("max" | "sum", along, operand)  a reduction over the factors `along`
    ("hole", name)                   what the reader was asked to stop at

`factors`, `along` and each of `dims` are final factors (`factors.Flat`): where the loop or the tensor's dimension lies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from torch_mlir import ir

from .access import affine_maps, is_tensor, iterator_kinds, loop_sizes, reassociation, shape_of
from .deep import Steps, evaluate, postorder
from .factors import Factors, flat, fresh, unify
from .iteration import is_reshape
from .match_failure import MatchFailure
from .products import body_of, constant_fill, defining_op, is_contraction, is_generic, is_movement, yield_of
from .verify import captures

__all__ = [
    "GATHERS",
    "Node",
    "Tree",
    "TreeReader",
    "children",
    "constant_number",
    "generic_loops",
    "nodes_of",
    "reduction_kind",
    "walked",
]

Tree = tuple[Any, ...]

GATHERS = "a body gathers from a tensor"
FEWER = 64
"""Flags for each integer that they are made of, from which on they are not kept in memory but made where they are needed."""
_INTEGER = {"linalg.index", "linalg.yield"} | {
    f"arith.{name}" for name in ("index_cast", "index_castui", "cmpi", "andi", "ori", "xori", "addi", "subi", "extsi", "extui")
}
"""Operations that flags may be made with."""
_REDUCTIONS = {"arith.maximumf": "max", "arith.maxnumf": "max", "arith.addf": "sum"}


class Node:
    """A tensor on the way from a load or hole to the tree's root: its dimensions, and the operation looked into.

    Attributes:
        value: the tensor.
        op: what makes it, or None where the reader stops.
        dims: its dimensions.
        loops: those of `op`, if it is a `linalg.generic`.
        sources: the operands of `op` that are tensors, by number.
    """

    def __init__(self, value: ir.Value, op: ir.Operation | None):
        self.value, self.op = value, op
        self.dims: list[Factors] = [fresh(size) for size in shape_of(value)]
        self.loops: list[Factors] = []
        self.sources: dict[int, Node] = {}


def generic_loops(op: ir.Operation) -> list[Factors]:
    """New loops of a `linalg.generic`."""
    return [fresh(size) for size in loop_sizes(op)]


def walked(dims: list[Factors], map_: ir.AffineMap, loops: list[Factors]) -> None:
    """Unite the dimensions of a tensor with the loops that walk it.

    Raises:
        MatchFailure: a dimension is indexed by something else than a loop.
    """
    for dim, expression in zip(dims, map_.results, strict=True):
        if isinstance(expression, ir.AffineDimExpr):
            unify(dim, loops[expression.position])
        elif flat(dim):
            raise MatchFailure(f"an operand is indexed by {expression}, which is no plain loop")


def reduction_kind(op: ir.Operation) -> str | None:
    """ "max" or "sum" of a generic that reduces one tensor (perhaps widened), from the operation's neutral start; else None."""
    if not is_generic(op) or len(op.operands) != 2 or len(op.results) != 1 or "reduction" not in iterator_kinds(op):
        return None
    *widening, last = body_of(op)
    element, total = op.regions[0].blocks[0].arguments
    if len(widening) > 1 or last.name not in _REDUCTIONS or yield_of(op).operands[0] != last.results[0]:
        return None
    source: ir.Value = element
    if widening:
        if widening[0].name != "arith.extf" or widening[0].operands[0] != element:
            return None
        source = widening[0].results[0]
    kind = _REDUCTIONS[last.name]
    start = constant_fill(defining_op(op.operands[1]))
    if set(last.operands) != {source, total} or start is None:
        return None
    return kind if constant_number(start.results[0]) == {"sum": 0.0, "max": float("-inf")}[kind] else None


def constant_number(value: ir.Value) -> float | int | None:
    """The number of a scalar constant, of a constant tensor of one number, or of a fill with it; None for anything else."""
    maker = defining_op(value)
    maker = constant_fill(maker) or maker
    if maker is None or maker.name != "arith.constant":
        return None
    attribute = maker.attributes["value"]
    if isinstance(attribute, ir.DenseElementsAttr):
        if not attribute.is_splat:
            return None
        attribute = attribute.get_splat_value()
    if isinstance(attribute, ir.FloatAttr):
        return ir.FloatAttr(attribute).value
    return ir.IntegerAttr(attribute).value if isinstance(attribute, ir.IntegerAttr) else None


class TreeReader:
    """Reads trees. `node` unites dimensions; `tree` is asked afterwards, when no factor will be split any more.

    What depends on a hole is looked into wherever it is element-wise or a reduction, and one tensor is one node. What does
    not is looked into only where that costs nothing (movement, indices, constants): it is a node of its own for each use, as
    one tensor may be walked along rows here and along columns there.

    Args:
        holes: values that are not looked into, with their names.
    """

    def __init__(self, holes: dict[ir.Value, str]):
        self.holes = holes
        self._makers = [maker for hole in holes if (maker := defining_op(hole)) is not None]
        self._nodes: dict[ir.Value, Node] = {}
        self._depends: dict[ir.Value, bool] = {}
        self._trees: dict[int, Tree] = {}

    def depends(self, value: ir.Value) -> bool:
        """Whether a value is computed from a hole by element-wise generics, reductions and reshapes.

        The search ends at other products, and at whatever comes before all holes: the network below is not looked at.
        """

        def sources(value: ir.Value) -> list[ir.Value]:
            op = defining_op(value)
            if value in self._depends or value in self.holes or op is None or not (is_generic(op) or is_reshape(op)):
                return []
            return [] if is_contraction(op) or self._is_before_holes(op) else [v for v in op.operands if is_tensor(v)]

        for each in postorder([value], sources):
            if each not in self._depends:
                self._depends[each] = each in self.holes or any(self._depends[source] for source in sources(each))
        return self._depends[value]

    def _is_before_holes(self, op: ir.Operation) -> bool:
        return len(self._makers) == len(self.holes) and all(
            op.block == maker.block and op.is_before_in_block(maker) for maker in self._makers
        )

    def node(self, value: ir.Value) -> Node:
        """The node of a tensor, with all below it.

        Raises:
            MatchFailure: dimensions do not fit.
        """
        return evaluate(self._node(value))

    def _node(self, value: ir.Value) -> Steps[Node]:
        if value in self._nodes:
            return self._nodes[value]
        depends = self.depends(value)
        op = defining_op(value)
        if value in self.holes or (not depends and not _is_free(op)) or constant_number(value) is not None:
            op = None
        node = Node(value, op)
        if depends:
            self._nodes[value] = node
        if op is None:
            return node
        if is_reshape(op):
            node.sources[0] = yield self._node(op.operands[0])
            _reshape(op, node)
            return node
        if len(captures(op)) > len(set(captures(op)) & set(op.operands)) and any(is_tensor(v) for v in captures(op)):
            raise MatchFailure(GATHERS)
        node.loops = generic_loops(op)
        maps = affine_maps(op)
        inputs = len(op.operands) - len(op.results)
        for number, operand in enumerate(list(op.operands)[:inputs]):
            if is_tensor(operand):
                node.sources[number] = yield self._node(operand)
                walked(node.sources[number].dims, maps[number], node.loops)
        walked(node.dims, maps[inputs + list(op.results).index(value)], node.loops)
        return node

    def tree(self, node: Node) -> Tree:
        """The tree of an element; what is used several times is one object in it.

        Raises:
            MatchFailure: an operation is neither element-wise nor a plain reduction.
        """
        return evaluate(self._tree(node))

    def _tree(self, node: Node) -> Steps[Tree]:
        if id(node) not in self._trees:
            self._trees[id(node)] = yield self._read(node)
        return self._trees[id(node)]

    def _read(self, node: Node) -> Steps[Tree]:
        value, op = node.value, node.op
        if value in self.holes:
            return ("hole", self.holes[value])
        if (number := constant_number(value)) is not None:
            return ("const", number, str(ir.ShapedType(value.type).element_type))
        if op is None:
            return ("load", value, tuple(flat(dim) for dim in node.dims))
        if is_reshape(op):
            return (yield self._tree(node.sources[0]))
        if (kind := reduction_kind(op)) is not None:
            pairs = zip(node.loops, iterator_kinds(op), strict=True)
            along = tuple(f for loop, k in pairs if k == "reduction" for f in flat(loop))
            return (kind, along, (yield self._tree(node.sources[0])))
        if "reduction" in iterator_kinds(op):
            raise MatchFailure("a reduction that is neither a maximum nor a sum")
        return (yield self._body(node, op))

    def _body(self, node: Node, op: ir.Operation) -> Steps[Tree]:
        number = {argument: n for n, argument in enumerate(op.regions[0].blocks[0].arguments)}
        inside = {hash(o) for o in body_of(op)}
        result = yield_of(op).operands[list(op.results).index(node.value)]
        trees: dict[ir.Value, Tree] = {}

        def operands(value: ir.Value) -> list[ir.Value]:
            maker = defining_op(value)
            if value in number or maker is None or hash(maker) not in inside or constant_number(value) is not None:
                return []
            return list(maker.operands)

        for value in postorder([result], operands):
            if number.get(value) in node.sources:
                trees[value] = yield self._tree(node.sources[number[value]])
            elif value in number and is_tensor(op.operands[number[value]]):
                raise MatchFailure("an element-wise body reads what it overwrites")
            elif value in number:
                trees[value] = _outside(op.operands[number[value]])
            else:
                maker = defining_op(value)
                made_here = maker is not None and hash(maker) in inside
                trees[value] = _scalar(node, maker, value, trees) if maker is not None and made_here else _outside(value)
        return trees[result]


def _scalar(node: Node, maker: ir.Operation, value: ir.Value, trees: dict[ir.Value, Tree]) -> Tree:
    """The tree of what an operation of a body computes, from those of its operands."""
    if maker.name == "linalg.index":
        return ("index", flat(node.loops[ir.IntegerAttr(maker.attributes["dim"]).value]))
    if maker.regions or len(maker.results) != 1 or not maker.name.startswith(("arith.", "math.")):
        raise MatchFailure(f"an element-wise body holds '{maker.name}'")
    if (constant := constant_number(value)) is not None:
        return ("const", constant, str(value.type))
    flags = str(maker.attributes["predicate"]) if "predicate" in maker.attributes else ""
    return ("op", maker.name, flags, str(value.type), *(trees[operand] for operand in maker.operands))


def _outside(value: ir.Value) -> Tree:
    constant = constant_number(value)
    return ("outside", value) if constant is None else ("const", constant, str(value.type))


def _is_free(op: ir.Operation | None) -> bool:
    """Whether looking through an operation costs nothing: movement, tensors made of indices and constants, small masks."""
    return op is not None and (is_reshape(op) or is_movement(op) or _made_of_indices(op) or _is_comparison(op))


def _is_comparison(op: ir.Operation) -> bool:
    """Whether flags are made of other flags, or of indices and integers of which there are far fewer, or one is made of one:
    `arange(keys) <= length`."""
    if not is_generic(op) or "reduction" in iterator_kinds(op) or len(op.results) != 1 or any(map(is_tensor, captures(op))):
        return False
    if not all(inner.name in _INTEGER or inner.name == "arith.constant" for inner in body_of(op)):
        return False
    result = ir.RankedTensorType(op.results[0].type)
    inputs = [v for v in list(op.operands)[:-1] if is_tensor(v)]
    if not all(isinstance(ir.RankedTensorType(v.type).element_type, ir.IntegerType) for v in (*inputs, op.results[0])):
        return False
    count = math.prod(result.shape)
    if str(result.element_type) != "i1":
        return count == 1 and all(math.prod(shape_of(v)) == 1 for v in inputs)
    flags = [str(ir.RankedTensorType(v.type).element_type) == "i1" for v in inputs]
    return all(flag or math.prod(shape_of(v)) <= max(1, count // FEWER) for flag, v in zip(flags, inputs, strict=True))


def _made_of_indices(op: ir.Operation | None, depth: int = 8) -> bool:
    """Whether an element is computed from its place alone, as in the masks that layers share, or also from a whole number of
    all elements (a seed)."""
    if op is None or depth == 0:
        return False
    if is_reshape(op):
        return _made_of_indices(defining_op(op.operands[0]), depth - 1)
    if not is_generic(op) or "reduction" in iterator_kinds(op) or any(is_tensor(v) for v in captures(op)):
        return False
    inputs = [v for v in list(op.operands)[: len(op.operands) - len(op.results)] if is_tensor(v)]
    return all(
        constant_number(v) is not None or _is_whole_number(v) or _made_of_indices(defining_op(v), depth - 1) for v in inputs
    )


def _is_whole_number(value: ir.Value) -> bool:
    return not shape_of(value) and isinstance(ir.ShapedType(value.type).element_type, ir.IntegerType)


def _reshape(op: ir.Operation, node: Node) -> None:
    source = node.sources[0].dims
    wide, narrow = (node.dims, source) if op.name == "tensor.expand_shape" else (source, node.dims)
    for whole, group in zip(narrow, reassociation(op), strict=True):
        unify(whole, [factor for dim in group for factor in wide[dim]])


def children(tree: Tree) -> tuple[Tree, ...]:
    """What a node is computed from."""
    return tree[4:] if tree[0] == "op" else tree[2:] if tree[0] in ("max", "sum") else ()


def nodes_of(tree: Tree) -> Iterator[Tree]:
    """A tree's nodes, from the root; shared ones once."""
    pending, seen = [tree], set()
    while pending:
        node = pending.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            pending += reversed(children(node))
