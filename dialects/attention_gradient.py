"""Recognising attention's gradients: sums over queries or keys of what is made again of scores and of each row's logarithm.

With p = exp(x - log sum exp x), x the scaled and masked scores, and dp = do v^T, the gradient of the scores is
ds = p (dp - mean), mean the sum of do times the result along a row. The gradients of attention's operands are dq = ds k,
dk = ds^T q and dv = p^T do (FlashAttention, Dao et al. 2022, appendix B). Both kinds are one form: results have the rows of a
*resident* pair of operands (q and do, or k and v), and sums run along the rows of a *streamed* pair (k and v, or q and do).
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Sequence

from torch_mlir import ir

from .access import affine_maps, is_tensor, iterator_kinds
from .attention import Operand, last_move, leaf_of, operand_of, summed_factors
from .deep import postorder
from .factors import Factor, Flat, flat, unify
from .iteration import is_reshape
from .match_failure import MatchFailure, require
from .products import body_of, defining_op, is_contraction, is_generic, is_projected_product
from .scalar_tree import Node, Tree, TreeReader, generic_loops, nodes_of, walked
from .softmax_tree import Dropout, Step, alike, read_gradient, unrounded

__all__ = ["Between", "Gradient", "between", "read_attention_gradient", "sums_of_products"]


@dataclasses.dataclass(frozen=True, eq=False)
class Between:
    """What a sum's first factor is made of.

    Attributes:
        product: the contraction that gives the scores.
        slope: the one that gives the gradient of the probabilities, or None.
        number: which of the sum's factors it is.
    """

    product: ir.Operation
    slope: ir.Operation | None
    number: int


@dataclasses.dataclass(frozen=True, eq=False)
class Gradient:
    """Gradients that were understood, which are sums along the same rows.

    Attributes:
        product, slope: the contractions q k^T and do v^T.
        scored, sloped: the resident operands: a factor of the scores (q or k), and of dp (do or v).
        streamed, weighed: the streamed ones: the other factor of the scores, and of dp.
        logarithm, mean: the rows' numbers, in f32. The logarithm's value is the scores' if these are the attention's own, and
            attention is to leave it in memory: its dimensions are what it should have then.
        made: whether the logarithm is computed from the same scores.
        keys: whether the resident operands are keys and values, so that sums run along queries.
        along: the factors that sums run along; width: of the elements of q and k; head: of v and do.
        column: the factors of the keys' positions.
        scale, steps: as in `Attention`.
        factor: of ds.
        sums: the contractions ds times `streamed` and, where there are two, p times `weighed`.
        results: the tensors that leave, and their dimensions.
        dropout: what became of the probabilities p in the result, so becomes of them, and of dp, in the sums; or None.
    """

    product: ir.Operation
    slope: ir.Operation
    scored: Operand
    sloped: Operand
    streamed: Operand
    weighed: Operand
    logarithm: Operand
    mean: Operand
    made: bool
    keys: bool
    along: Flat
    width: Flat
    head: Flat
    column: Flat
    scale: float
    steps: tuple[Step, ...]
    factor: float
    sums: tuple[ir.Operation, ...]
    results: tuple[Operand, ...]
    dropout: Dropout | None = None

    @property
    def outer(self) -> Flat:
        """The factors of the resident operands' rows, in the first one's order."""
        return tuple(factor for dim in self.scored.dims for factor in dim if factor not in self.width)

    @property
    def rows(self) -> Flat:
        """The factors of the streamed operands' rows, in the first one's order."""
        return tuple(factor for dim in self.streamed.dims for factor in dim if factor not in self.width)

    @property
    def dtype(self) -> str:
        """Element type of q, k, v and do."""
        return str(ir.ShapedType(self.scored.value.type).element_type)


def between(op: ir.Operation) -> Between:
    """The contractions behind one factor of `op`: one with an exponential between, and perhaps one without.

    The search ends at contractions and reductions.

    Raises:
        MatchFailure: there are none, or more.
    """
    require(is_projected_product(op), "no product by plain maps")
    found: list[Between] = []
    for number, operand in enumerate(list(op.operands)[:2]):
        seen: dict[int, int] = {}
        ends: dict[int, tuple[ir.Operation, int]] = {}
        pending = [(operand, 0)]
        while pending:
            value, behind = pending.pop()
            maker = defining_op(value)
            if maker is None or not (is_generic(maker) or is_reshape(maker)) or seen.get(hash(maker), -1) >= behind:
                continue
            seen[hash(maker)] = behind
            require(len(seen) < 64, "too long a way between the products")
            if is_contraction(maker):
                ends[hash(maker)] = (maker, max(behind, ends.get(hash(maker), (maker, 0))[1]))
            elif is_reshape(maker) or "reduction" not in iterator_kinds(maker):
                inside = _exponents(maker) if is_generic(maker) else set()
                pending += [(v, max(behind, int(n in inside))) for n, v in enumerate(maker.operands) if is_tensor(v)]
        scores = [maker for maker, behind in ends.values() if behind]
        slopes = [maker for maker, behind in ends.values() if not behind]
        if len(scores) == 1 and len(slopes) <= 1:
            found.append(Between(scores[0], slopes[0] if slopes else None, number))
    require(len(found) == 1, "no exponential between products")
    return found[0]


def sums_of_products(ops: Iterable[ir.Operation]) -> list[ir.Operation]:
    """The contractions of which `between` may find both products behind one factor, found in one walk over all operations.

    Args:
        ops: operations, each after those that make its operands.
    """
    behind: dict[ir.Value, frozenset[int]] = {}  # 1: a contraction is below an exponential; 0: one is not
    found: list[ir.Operation] = []
    nothing = frozenset[int]()
    for op in ops:
        if not (is_generic(op) or is_reshape(op)):
            continue
        if is_contraction(op):
            if any(len(behind.get(operand, nothing)) == 2 for operand in list(op.operands)[:2]):
                found.append(op)
            behind[op.results[0]] = frozenset({0})
        elif is_reshape(op) or "reduction" not in iterator_kinds(op):
            kinds = {n: known for n, v in enumerate(op.operands) if (known := behind.get(v))}
            if kinds:
                inside = _exponents(op) if is_generic(op) else set[int]()
                through = frozenset(1 if n in inside else kind for n, known in kinds.items() for kind in known)
                behind.update((result, through) for result in op.results)
    return found


def _exponents(op: ir.Operation) -> set[int]:
    """Numbers of the operands of a generic from which it computes exponents."""
    number = {argument: n for n, argument in enumerate(op.regions[0].blocks[0].arguments)}
    powers = [inner.operands[0] for inner in body_of(op) if inner.name == "math.exp"]

    def sources(value: ir.Value) -> list[ir.Value]:
        maker = defining_op(value)
        return [] if value in number or maker is None else list(maker.operands)

    return {number[value] for value in postorder(powers, sources) if value in number}


def read_attention_gradient(sums: Sequence[ir.Operation], same: Callable[[ir.Value, ir.Value], bool] = operator.eq) -> Gradient:
    """The gradients whose last products are `sums`: one of ds, and perhaps one of p along the same rows.

    Args:
        same: whether two tensors hold the same.

    Raises:
        MatchFailure: they are none, or of a form that is not known.
    """
    ends = [between(op) for op in sums]
    product, slope = ends[0].product, ends[0].slope
    require(
        slope is not None and all(end.slope is None for end in ends[1:]), "not a sum of the scores' gradient, then of weights"
    )
    assert slope is not None
    require(all(end.product == product for end in ends), "sums of different scores")
    require(is_projected_product(product) and is_projected_product(slope), "the scores are no product by plain maps")
    reader = TreeReader({product.results[0]: "score", slope.results[0]: "slope"})
    weights = [reader.node(op.operands[end.number]) for op, end in zip(sums, ends, strict=True)]
    others = [reader.node(op.operands[1 - end.number]) for op, end in zip(sums, ends, strict=True)]
    loops = {hash(op): generic_loops(op) for op in (*sums, product, slope)}
    for op, end, weight, other in zip(sums, ends, weights, others, strict=True):
        walked(weight.dims, affine_maps(op)[end.number], loops[hash(op)])
        walked(other.dims, affine_maps(op)[1 - end.number], loops[hash(op)])
    pairs = []
    for op in (product, slope):
        pairs.append([reader.node(operand) for operand in list(op.operands)[:2]])
        for node, map_ in zip((*pairs[-1], reader.node(op.results[0])), affine_maps(op), strict=True):
            walked(node.dims, map_, loops[hash(op)])
    pairs = [_resident_first([leaf_of(side) for side in pair], summed_factors(sums[0], loops[hash(sums[0])])) for pair in pairs]
    for other, (_, streamed), op in zip(others, pairs, (product, slope), strict=False):
        mine = leaf_of(other)
        require(same(mine.value, streamed.value), "a factor of a sum is none of the scores'")
        _unite_elements(mine, streamed, summed_factors(op, loops[hash(op)]))
    results = []
    for op in sums:
        outputs = TreeReader({op.results[0]: "result"})
        results.append((outputs, outputs.node(last_move(op.results[0]))))
        walked(outputs.node(op.results[0]).dims, affine_maps(op)[2], loops[hash(op)])
    # From here on no factor is split any more.
    along, width, head = (summed_factors(op, loops[hash(op)]) for op in (sums[0], product, slope))
    require(all(set(summed_factors(op, loops[hash(op)])) == set(along) for op in sums), "sums along different rows")
    (scored, streamed), (sloped, weighed) = ([operand_of(side) for side in pair] for pair in pairs)
    keys = bool(set(along) & _factors(_mean_of(reader.tree(weights[0])).dims))
    column = tuple(f for dim in scored.dims for f in dim if f not in _factors(streamed.dims)) if keys else along
    first, *rest = (read_gradient(reader.tree(weight), column) for weight in weights)
    for other in rest:
        same_way = (other.mean, other.factor, other.scale, other.logarithm) == (None, 1.0, first.scale, first.logarithm)
        require(same_way and len(other.steps) == len(first.steps), "sums of different weights")
        require(all(a.tree == b.tree for a, b in zip(first.steps, other.steps, strict=True)), "sums of different weights")
        require(_same_dropout(first.dropout, other.dropout, same), "sums of differently dropped weights")
    if first.logarithm is None:
        scores = operand_of(reader.node(product.results[0]))
        logarithm = Operand(scores.value, tuple(dim for dim in scores.dims if not set(dim) <= set(column) or not dim))
    else:
        logarithm = Operand(*first.logarithm[1:])
    gradient = Gradient(
        product,
        slope,
        scored,
        sloped,
        streamed,
        weighed,
        logarithm,
        _mean_of(reader.tree(weights[0])),
        first.logarithm is None,
        keys,
        along,
        width,
        head,
        column,
        first.scale,
        first.steps,
        first.factor,
        tuple(sums),
        tuple(operand_of(last) for _, last in results),
        first.dropout,
    )
    for outputs, last in results:
        require(unrounded(outputs.tree(last)) == ("hole", "result"), "the result is changed on its way")
    _check(gradient)
    return gradient


def _resident_first(pair: Sequence[Node], along: Flat) -> list[Node]:
    """A product's factors in memory, the one that lies along the sum last."""
    streamed = [bool(_factors([flat(dim) for dim in node.dims]) & set(along)) for node in pair]
    require(sorted(streamed) == [False, True], "not one factor of a product is walked by the sum")
    return sorted(pair, key=lambda node: streamed[list(pair).index(node)])


def _unite_elements(node: Node, known: Node, elements: Flat) -> None:
    """State that a factor of a sum is the operand `known`: all is walked alike but for the elements, which become so."""
    for mine, its in ((flat(a), flat(b)) for a, b in zip(node.dims, known.dims, strict=True)):
        if mine != its:
            outer = len(its) - len(elements)
            require(mine[:outer] == its[:outer] and its[outer:] == elements, "a factor of a sum is walked another way")
            unify(mine[outer:], its[outer:])


def _mean_of(tree: Tree) -> Operand:
    """What is subtracted from the hole "slope"."""
    for node in nodes_of(tree):
        if node[:2] == ("op", "arith.subf") and node[5][0] == "load" and _is_slope(node[4]):
            return Operand(*node[5][1:])
    raise MatchFailure("nothing in memory is subtracted from the weights' gradient")


def _is_slope(tree: Tree) -> bool:
    """Whether a tree is the hole "slope", perhaps dropped out."""
    while tree[0] == "op" and tree[1] in ("arith.select", "arith.mulf"):
        tree = tree[5] if tree[1] == "arith.select" or tree[4][0] == "const" else tree[4]
    return tree == ("hole", "slope")


def _same_dropout(one: Dropout | None, other: Dropout | None, same: Callable[[ir.Value, ir.Value], bool]) -> bool:
    if one is None or other is None:
        return one is other
    return one.factor == other.factor and alike(one.tree, other.tree, same)


def _factors(dims: Sequence[Flat]) -> set[Factor]:
    return {factor for dim in dims for factor in dim}


def _check(gradient: Gradient) -> None:
    types = {
        str(ir.ShapedType(v.type).element_type)
        for op in (gradient.product, gradient.slope, *gradient.sums)
        for v in list(op.operands)[:2]
    }
    require(types in ({"bf16"}, {"f16"}), f"products of {', '.join(sorted(types))}")
    for operand in (gradient.logarithm, gradient.mean):
        require(str(ir.ShapedType(operand.value.type).element_type) == "f32", "a row's numbers are not of f32")
        rows = gradient.rows if gradient.keys else gradient.outer
        require(_factors(operand.dims) == set(rows), "a row's numbers do not lie along the rows")
    outer, rows = set(gradient.outer), set(gradient.rows)
    require(_factors(gradient.sloped.dims) == outer | set(gradient.head), "the factors of two products have different rows")
    require(_factors(gradient.weighed.dims) == rows | set(gradient.head), "the factors of two products have different rows")
    require(rows - outer == set(gradient.along), "the sums are not along all that is streamed")
    for result, elements in zip(gradient.results, (gradient.width, gradient.head), strict=False):
        require(_factors(result.dims) == outer | set(elements), "a result and its operand have different rows")
