"""Concatenations that others read are stages of their own: a chain stores what it computes, and joins in registers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from torch_mlir import ir

from kitsune_mlir.dialects.deep import postorder
from kitsune_mlir.dialects.products import is_contraction

__all__ = ["parts_before_joins"]


def parts_before_joins(
    group: Sequence[ir.Operation], stored: Collection[ir.Value], sources: Callable[[ir.Operation], Sequence[ir.Operation]]
) -> tuple[ir.Operation, list[list[ir.Operation]]] | None:
    """A concatenation that a chain should not have as a result, and what had better be stages of their own; None: there is
    none.

    Such are those after which nothing became a part of the chain, and those that others read, too (in a backward pass what a
    layer read is a factor of its weight's gradient). What the chain has before one of these is then a stage of its own; where
    that holds no products, it is one with the concatenation.

    Args:
        group: the ops of the chain, in order.
        stored: what of them is needed outside.
        sources: the grouped ops that an op reads, as it is or through a view.
    """
    joined = [op for op in group if op.name == "tensor.concat" and op.results[0] in stored]
    if not joined or len(group) < 2:
        return None
    read = {hash(source) for op in group for source in sources(op)}
    op = next((one for one in joined if hash(one) not in read), joined[0])
    inside = {hash(one) for one in group}
    below = {hash(one) for one in postorder([op], lambda one: [s for s in sources(one) if hash(s) in inside])} - {hash(op)}
    before = [one for one in group if hash(one) in below] if hash(op) in read else []
    apart = not before or any(map(is_contraction, before))
    return op, [part for part in ([before, [op]] if apart else [[*before, op]]) if part]
