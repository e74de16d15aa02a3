"""Recognising attention: softmax(scale * q k^T, masked) v, in whatever operations and reshapes it comes.

The same reader serves whole tensors, where a pass looks for attention, and one tile of them, where an engine does. It starts
from the second product, reads what its first factor is computed from as a tree (`scalar_tree`), and takes that apart.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from torch_mlir import ir

from .access import affine_maps, is_tensor, iterator_kinds, shape_of
from .factors import Flat, flat, unify
from .iteration import is_reshape
from .match_failure import require
from .products import body_of, defining_op, is_contraction, is_generic, is_projected_product, yield_of
from .scalar_tree import Node, Tree, TreeReader, generic_loops, walked
from .softmax_tree import Dropout, Step, read_softmax, unrounded

__all__ = [
    "Attention",
    "Operand",
    "Step",
    "dims_of",
    "last_move",
    "leaf_of",
    "operand_of",
    "read_attention",
    "summed_factors",
    "weighted_sums",
]


@dataclasses.dataclass(frozen=True, eq=False)
class Operand:
    """A tensor in memory and, for each of its dimensions, the factors that walk it (none where the extent is 1)."""

    value: ir.Value
    dims: tuple[Flat, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Attention:
    """An attention that was understood.

    Attributes:
        product, weighted: the two contractions, q k^T and p v.
        query, key, value: q, k and v.
        keys, values: k and v again, in parts where they are concatenations along the keys. A part's own dimension along them
            has a factor of its own.
        column: the factors of the keys' positions; width: of q's and k's elements; head: of v's elements.
        scale: factor of the scores.
        steps: what happens to the scaled scores before the softmax, in order.
        guarded: rows without any key give zeros (otherwise NaN).
        result: the tensor that leaves, and its dimensions.
        scores: the first product, and its dimensions.
        logarithms: tensors that are the logarithm of each row's sum of exponentials.
        dropout: what becomes of the probabilities, or None.
    """

    product: ir.Operation
    weighted: ir.Operation
    query: Operand
    key: Operand
    value: Operand
    keys: tuple[Operand, ...]
    values: tuple[Operand, ...]
    column: Flat
    width: Flat
    head: Flat
    scale: float
    steps: tuple[Step, ...]
    guarded: bool
    result: Operand
    scores: Operand
    logarithms: tuple[Operand, ...] = ()
    dropout: Dropout | None = None

    @property
    def outer(self) -> Flat:
        """The factors of the result but for its elements', in the result's order: batch, heads, rows."""
        return tuple(factor for dim in self.result.dims for factor in dim if factor not in self.head)

    @property
    def dtype(self) -> str:
        """Element type of q, k and v."""
        return str(ir.ShapedType(self.query.value.type).element_type)

    @property
    def columns(self) -> int:
        """Number of keys."""
        return math.prod(factor.size for factor in self.column)


def read_attention(weighted: ir.Operation) -> Attention:
    """The attention whose second product is `weighted`.

    Raises:
        MatchFailure: it is none, or of a form that is not known.
    """
    require(is_projected_product(weighted), "no product by plain maps")
    product, number = _score_product(weighted)
    require(is_projected_product(product), "the scores are no product by plain maps")
    reader = TreeReader({product.results[0]: "score"})
    weights = reader.node(weighted.operands[number])
    value = reader.node(weighted.operands[1 - number])
    loops, maps = generic_loops(weighted), affine_maps(weighted)
    walked(weights.dims, maps[number], loops)
    walked(value.dims, maps[1 - number], loops)
    outputs = TreeReader({weighted.results[0]: "result"})
    last = last_move(weighted.results[0])
    result = outputs.node(last)
    walked(outputs.node(weighted.results[0]).dims, maps[2], loops)
    first_loops, first_maps = generic_loops(product), affine_maps(product)
    sides = [reader.node(operand) for operand in list(product.operands)[:2]]
    for side, map_ in zip(sides, first_maps, strict=False):
        walked(side.dims, map_, first_loops)
    walked(reader.node(product.results[0]).dims, first_maps[2], first_loops)
    leaves = [_parts(side, reader) for side in (*sides, value)]
    logarithms = [
        reader.node(made) for made in _logarithms(product, math.prod(f.size for f in summed_factors(weighted, loops)))
    ]
    # From here on no factor is split any more.
    column = summed_factors(weighted, loops)
    keyed = [any(factor in flat(dim) for dim in side.dims for factor in column) for side in sides]
    require(not column or keyed.count(True) == 1, "not one of the scores' factors walks the keys")
    at = keyed.index(True) if column else 1
    query, keys = leaves[1 - at], leaves[at]
    require(len(query) == 1, "the queries are a concatenation")
    trees = [reader.tree(node) for node in logarithms]
    scale, steps, guarded, known, dropout = read_softmax(reader.tree(weights), column, trees)
    width = summed_factors(product, first_loops)
    head = tuple(f for dim in value.dims for f in flat(dim) if f not in column and not any(f in d for d in dims_of(query[0])))
    attention = Attention(
        product,
        weighted,
        operand_of(query[0]),
        operand_of(leaf_of(sides[at])),
        operand_of(leaf_of(value)),
        tuple(map(operand_of, keys)),
        tuple(map(operand_of, leaves[2])),
        column,
        width,
        head,
        scale,
        steps,
        guarded,
        Operand(last, dims_of(result)),
        operand_of(reader.node(product.results[0])),
        tuple(operand_of(node) for node, yes in zip(logarithms, known, strict=True) if yes),
        dropout,
    )
    _check(attention, outputs.tree(result))
    return attention


def _check(attention: Attention, result: Tree) -> None:
    require(unrounded(result) == ("hole", "result"), "the result is changed on its way")
    types = {str(ir.ShapedType(v.type).element_type) for op in (attention.product, attention.weighted) for v in op.operands}
    require(types in ({"bf16", "f32"}, {"f16", "f32"}), f"products of {', '.join(sorted(types))}")
    for op in (attention.product, attention.weighted):
        inputs = {str(ir.ShapedType(v.type).element_type) for v in list(op.operands)[:2]}
        require(inputs == {attention.dtype}, "factors of other types than the queries'")
    outer = attention.outer
    seen = {f for dim in attention.query.dims for f in dim}
    require(set(outer) | set(attention.width) == seen, "the result and the queries have different rows")
    inner = {*attention.column, *attention.width}
    require(not inner & {*outer, *attention.head}, "the result is walked along keys")
    for parts, last in ((attention.keys, attention.width), (attention.values, attention.head)):
        for part in parts:
            mine = {f for dim in part.dims for f in dim}
            require(set(last) <= mine and not (mine - {*outer, *last, *attention.column} and len(parts) == 1), "odd factors")


def dims_of(node: Node) -> tuple[Flat, ...]:
    return tuple(flat(dim) for dim in node.dims)


def operand_of(node: Node) -> Operand:
    return Operand(node.value, dims_of(node))


def summed_factors(op: ir.Operation, loops: list) -> Flat:
    pairs = zip(loops, iterator_kinds(op), strict=True)
    return tuple(factor for loop, kind in pairs if kind == "reduction" for factor in flat(loop))


def weighted_sums(ops: Iterable[ir.Operation]) -> list[ir.Operation]:
    """The contractions of which `read_attention` may find the scores' product, found in one walk over all operations.

    Args:
        ops: operations, each after those that make its operands.
    """
    product, weights = 1, 2  # what is computed from a contraction, and from an exponential behind one
    behind: dict[ir.Value, int] = {}
    found: list[ir.Operation] = []
    for op in ops:
        if not (is_generic(op) or is_reshape(op)):
            continue
        if is_contraction(op):
            if any(behind.get(operand, 0) & weights for operand in list(op.operands)[:2]):
                found.append(op)
            behind[op.results[0]] = product
            continue
        below = 0
        for operand in op.operands:
            below |= behind.get(operand, 0)
        if below == product and is_generic(op) and any(inner.name == "math.exp" for inner in body_of(op)):
            below |= weights
        if below:
            behind.update((result, below) for result in op.results)
    return found


def _score_product(weighted: ir.Operation) -> tuple[ir.Operation, int]:
    """The contraction behind one factor of `weighted` with an exponential between them, and the number of that factor.

    The search ends at contractions: what lies below the scores' product is not between the two.
    """
    found: dict[int, tuple[ir.Operation, int]] = {}
    for number, operand in enumerate(list(weighted.operands)[:2]):
        pending, seen = [(operand, False)], {}
        while pending:
            value, behind = pending.pop()
            op = defining_op(value)
            if op is None or not (is_generic(op) or is_reshape(op)) or seen.get(hash(op), -1) >= behind:
                continue
            seen[hash(op)] = behind
            if not is_contraction(op):
                behind = behind or (is_generic(op) and any(inner.name == "math.exp" for inner in body_of(op)))
                pending += [(v, behind) for v in op.operands if is_tensor(v)]
            elif behind:
                found[hash(op)] = (op, number)
            require(len(seen) < 64, "too long a way between the products")
    require(len(found) == 1, "no softmax between two products")
    return next(iter(found.values()))


def _logarithms(product: ir.Operation, columns: int) -> list[ir.Value]:
    """What is computed from a product by element-wise generics, reductions and reshapes, with a logarithm in the last step and
    one number for `columns` of the product's."""
    rows = math.prod(shape_of(product.results[0])) // columns
    found, seen, pending = [], {hash(product)}, [product.results[0]]
    while pending and len(seen) < 64:
        for use in pending.pop().uses:
            op = use.owner.operation
            if hash(op) in seen or not (is_generic(op) or is_reshape(op)) or is_contraction(op):
                continue
            seen.add(hash(op))
            if is_generic(op) and any(inner.name == "math.log" for inner in body_of(op)):
                found += [made for made in op.results if math.prod(shape_of(made)) == rows]
            else:
                pending += op.results
    return found


def last_move(value: ir.Value) -> ir.Value:
    """The last tensor of a chain of single uses that only rounds and moves `value`."""
    while True:
        users = {hash(use.owner): use.owner.operation for use in value.uses}
        user = next(iter(users.values()), None)
        if len(users) != 1 or user is None or not (is_reshape(user) or _rounds(user)):
            return value
        value = user.results[0]


def _rounds(op: ir.Operation) -> bool:
    if not is_generic(op) or len(op.operands) != 2 or "reduction" in iterator_kinds(op):
        return False
    if not all(map_.is_permutation for map_ in affine_maps(op)):
        return False
    body = [inner.name for inner in body_of(op)]
    last = yield_of(op).operands[0]
    return body == ["arith.truncf"] or (body == [] and last == op.regions[0].blocks[0].arguments[0])


def leaf_of(node: Node) -> Node:
    """The tensor in memory that an operand is, looking through movement."""
    while node.op is not None:
        require(is_reshape(node.op) or not body_of(node.op), "a factor of a product is computed")
        node = node.sources[0]
    return node


def _parts(node: Node, reader: TreeReader) -> list[Node]:
    """The tensors in memory that an operand is, looking through movement and concatenations."""
    found, pending = [], [node]
    while pending:
        node = leaf_of(pending.pop())
        maker = defining_op(node.value)
        if maker is None or maker.name != "tensor.concat":
            found.append(node)
            continue
        joined = ir.IntegerAttr(maker.attributes["dim"]).value
        parts = [reader.node(operand) for operand in maker.operands]
        for part in parts:
            for dim, (mine, whole) in enumerate(zip(part.dims, node.dims, strict=True)):
                if dim != joined:
                    unify(mine, whole)
        pending += reversed(parts)
    return found
