"""Sums of columns that read the same large tensor over the same loops are one reduction with several results.

A normalization's backward pass adds up a tangent, and the tangent times what was normalized, down the same columns: as two
stages the tangent is read twice. Neither is made of the other, so no rule of producers and readers joins them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence

from torch_mlir import ir

from kitsune_mlir.dialects.access import affine_maps, iterator_kinds, loop_sizes, plain_loops, shape_of
from kitsune_mlir.dialects.cloning import clone_with
from kitsune_mlir.dialects.products import body_of, is_contraction, is_generic, yield_of
from kitsune_mlir.dialects.sizes import tensor_bytes

from .associative import Reduction, generic, reduction_of

__all__ = ["join_siblings", "sums_columns"]

LEAST_BYTES = 1 << 20
"""Of the tensor that both read: smaller ones are read again from L2 in the time of a launch."""

LEAST_TERMS = 64
"""Of each result."""

PLAIN = frozenset(("indexing_maps", "iterator_types", "operandSegmentSizes"))
"""The attributes of a generic of which nothing more is known."""

MOST_RESULTS = 4
"""Of a reduction: threads keep a vector of partial results of each."""


def join_siblings(ops: Sequence[ir.Operation]) -> list[ir.Operation]:
    """Join sums of a block that walk the same loops of a tensor, of which neither is made of the other; the ops that are left.

    Args:
        ops: of one block, in order.
    """
    left = list(ops)
    candidates = [op for op in ops if sums_columns(op)]
    while candidates:
        first = candidates.pop(0)
        for other in candidates:
            loops = _same_loops(first, other)
            if loops is None or (between := _made_of(first, other)) is None:
                continue
            both = _join(first, other, loops, between)
            candidates[candidates.index(other)] = both
            left[left.index(other)] = both
            left.remove(first)
            for one in (first, other):
                one.erase()
            break
    return left


def sums_columns(op: ir.Operation) -> bool:
    """Whether an op is a long reduction of columns in all its results, by loops alone."""
    if not is_generic(op) or is_contraction(op) or {*op.attributes} - PLAIN:
        return False
    if not isinstance(reduction_of(op), Reduction) or any(inner.regions for inner in body_of(op)):
        return False
    points, terms = math.prod(shape_of(op.results[0])), math.prod(loop_sizes(op))
    named = any(inner.name == "linalg.index" for inner in body_of(op))
    return not named and terms >= LEAST_TERMS * points and any(_is_long(op, number) for number in range(_inputs(op)))


def _is_long(op: ir.Operation, number: int) -> bool:
    """Whether an operand is large, has every loop once, and its last dimension is no sum."""
    loops = plain_loops(affine_maps(op)[number])
    if tensor_bytes(op.operands[number].type) < LEAST_BYTES or {*loops} != {*range(len(iterator_kinds(op)))}:
        return False
    return len(loops) == len({*loops}) and iterator_kinds(op)[loops[-1] or 0] == "parallel"


def _inputs(op: ir.Operation) -> int:
    return len(op.operands) - len(op.results)


def _same_loops(a: ir.Operation, b: ir.Operation) -> list[int] | None:
    """Which loop of `a` each loop of `b` is, where a large operand of both says so and their results lie alike."""
    if a == b or len(a.results) + len(b.results) > MOST_RESULTS:
        return None
    for mine in range(_inputs(a)):
        for its in range(_inputs(b)):
            if a.operands[mine] != b.operands[its] or not (_is_long(a, mine) and _is_long(b, its)):
                continue
            pairs = dict(zip(plain_loops(affine_maps(b)[its]), plain_loops(affine_maps(a)[mine]), strict=True))
            loops = [loop for n in range(len(pairs)) if (loop := pairs[n]) is not None]
            kinds = [iterator_kinds(a)[loop] for loop in loops]
            made = [pairs[loop] for loop in plain_loops(affine_maps(b)[_inputs(b)])]
            if kinds == iterator_kinds(b) and made == plain_loops(affine_maps(a)[_inputs(a)]):
                return loops
    return None


def _made_of(first: ir.Operation, last: ir.Operation) -> list[ir.Operation] | None:
    """The ops between two of a block that are made of what the first one gives, in order; None if the last one is, too."""
    found: list[ir.Operation] = []
    pending = [first]
    while pending:
        for reader in _readers(pending.pop()):
            if reader == last:
                return None
            if reader.is_before_in_block(last) and reader not in found:
                found.append(reader)
                pending.append(reader)
    return sorted(found, key=functools.cmp_to_key(lambda a, b: -1 if a.is_before_in_block(b) else 1))


def _readers(op: ir.Operation) -> Iterator[ir.Operation]:
    """The ops of its block that read what an op makes, in their regions, too."""
    for result in op.results:
        for use in result.uses:
            reader = use.owner.operation
            while reader.block != op.block:
                reader = reader.parent.operation
            yield reader


def _join(a: ir.Operation, b: ir.Operation, loops: Sequence[int], between: Sequence[ir.Operation]) -> ir.Operation:
    """One reduction in the place of `b`, behind which what is made of `a`'s results is moved; nobody reads `a` or `b` then.

    Args:
        loops: of `a`, for each of `b`'s.
    """
    dims = [ir.AffineDimExpr.get(loop) for loop in loops]
    others = [
        ir.AffineMap.get(len(loops), 0, [e.compose(ir.AffineMap.get(len(loops), 0, dims)) for e in map_.results])
        for map_ in affine_maps(b)
    ]
    maps, inputs = list(affine_maps(a)), list(a.operands)[: _inputs(a)]
    reads, starts = maps[: _inputs(a)], maps[_inputs(a) :]
    places = []  # of b's inputs among those of both
    for value, map_ in zip(list(b.operands)[: _inputs(b)], others, strict=False):
        same = [n for n, one in enumerate(inputs) if one == value and reads[n] == map_]
        places.append(same[0] if same else len(inputs))
        if not same:
            inputs.append(value)
            reads.append(map_)
    outs = [*list(a.operands)[_inputs(a) :], *list(b.operands)[_inputs(b) :]]
    with ir.InsertionPoint(b), b.location:
        joined, block = generic(inputs, outs, [*reads, *starts, *others[_inputs(b) :]], iterator_kinds(a))
        with ir.InsertionPoint(block):
            made: list[ir.Value] = []
            for op, numbers in ((a, [*range(_inputs(a))]), (b, places)):
                own = list(op.regions[0].blocks[0].arguments)
                into = len(inputs) + (0 if op == a else len(a.results))
                targets = [*numbers, *range(into, into + len(op.results))]
                known = {argument: block.arguments[n] for argument, n in zip(own, targets, strict=True)}
                for inner in body_of(op):
                    clone_with(inner, known)
                made += [known.get(value, value) for value in yield_of(op).operands]
            ir.Operation.create("linalg.yield", [], made)
    place = joined
    for op in between:
        op.move_after(place)
        place = op
    for old, new in zip([*a.results, *b.results], joined.results, strict=True):
        old.replace_all_uses_with(new)
    return joined
