"""Where chains of products are best cut, once they are as long as they can be.

A chain takes in product after product while it can hold what they need. What follows the last one may be too much: then the
product's sums would go through memory in f32, though they were made of a tensor of 16-bit numbers. It is cut before that.
Concatenations that a chain would store are stages of their own (`stored_joins`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.registry import traits_of
from kitsune_mlir.dialects.access import is_tensor
from kitsune_mlir.dialects.sizes import tensor_bytes
from kitsune_mlir.dialects.unchanged import unchanged

from .grouping import Grouping
from .stored_joins import parts_before_joins

__all__ = ["cut_chains", "wide_ends"]


def cut_chains(grouping: Grouping) -> None:
    """Cut the chains of a GPU's stages, where they are chosen by cost."""
    if not grouping.target.is_gpu or grouping.chains != "cost":
        return
    with unchanged():
        for g in list(grouping.members):
            if any(op.name == "tensor.concat" for op in grouping.members[g]):
                _leave_joined(grouping, g)
        for g in list(grouping.members):
            _move_ends(grouping, g)


def _is_chain(grouping: Grouping, g: int) -> bool:
    offer = grouping.offer_of(g)
    return offer is not None and traits_of(offer.engine).several_products


def _leave_joined(grouping: Grouping, g: int) -> None:
    """Make concatenations that a chain would have as results stages of their own."""
    while _is_chain(grouping, g):
        members = grouping.members[g]
        found = parts_before_joins(members, set(grouping.outputs(members)), grouping.sources)
        if found is None:
            return
        reason = "a chain stores what it computes"
        grouping.blocked += [(found[0], source, reason) for source in grouping.sources(found[0])]
        for ops in found[1]:
            number = max(grouping.members) + 1
            grouping.members[number] = ops
            grouping.group_of.update((hash(op), number) for op in ops)
        rest = [op for op in members if grouping.group_of[hash(op)] == g]
        grouping.members[g], *others = _connected(grouping, rest)
        for ops in others:
            number = max(grouping.members) + 1
            grouping.members[number] = ops
            grouping.group_of.update((hash(op), number) for op in ops)
        grouping.forget(g)


def _connected(grouping: Grouping, ops: list[ir.Operation]) -> list[list[ir.Operation]]:
    """Ops in lists of those that read each other: what only a concatenation held together has no rows in common."""
    parts: list[list[ir.Operation]] = []
    for op in ops:
        read = {hash(source) for source in grouping.sources(op)}
        near = [part for part in parts if any(hash(one) in read for one in part)]
        parts = [part for part in parts if part not in near]
        parts.append([*(one for part in near for one in part), op])
    return [sorted(part, key=lambda one: grouping.order[hash(one)]) for part in parts]


def _move_ends(grouping: Grouping, g: int) -> None:
    """Let who reads the ends of a chain make them, where what they are made of is smaller."""
    while _is_chain(grouping, g):
        group = grouping.members[g]
        if not any(_moved(grouping, g, op) for op in wide_ends(group, set(grouping.outputs(group)), grouping.sources)):
            return


def _moved(grouping: Grouping, g: int, op: ir.Operation) -> bool:
    """Put an op of a chain into the one group that reads it; False where that cannot be."""
    group, readers = grouping.members[g], grouping.groups_that_read(op)
    if len(readers) != 1 or grouping.returned & set(op.results):
        return False
    number = max(grouping.members) + 1
    grouping.members[g], grouping.members[number] = [one for one in group if one != op], [op]
    grouping.group_of[hash(op)] = number
    grouping.forget(g)
    grouping.order_groups()
    if grouping.try_merge(number, readers[0]) is None:
        grouping.merge(number, readers[0])
        return True
    del grouping.members[number]
    grouping.members[g], grouping.group_of[hash(op)] = group, g
    grouping.forget(g)
    grouping.order_groups()
    return False


def wide_ends(
    group: Sequence[ir.Operation], stored: Collection[ir.Value], sources: Callable[[ir.Operation], Sequence[ir.Operation]]
) -> Iterator[ir.Operation]:
    """The ops of a chain, last first, that none of its ops reads, and that store more than they would have to read.

    Args:
        group: the ops of the chain, in order.
        stored: what of them is needed outside.
        sources: the grouped ops that an op reads, as it is or through a view.
    """
    inside = {hash(op) for op in group}
    read = {hash(source) for op in group for source in sources(op)}
    for op in reversed(group):
        if hash(op) in read or len(op.results) != 1 or op.results[0] not in stored:
            continue
        given = [result for source in sources(op) if hash(source) in inside for result in source.results if is_tensor(result)]
        if given and tensor_bytes(op.results[0].type) > sum(tensor_bytes(value.type) for value in given if value not in stored):
            yield op
