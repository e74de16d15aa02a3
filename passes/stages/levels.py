"""The order of stages on a GPU: whatever can start at the same time is together."""

from collections.abc import Mapping, Sequence

from torch_mlir import ir

from kitsune_mlir.dialects.access import is_tensor
from kitsune_mlir.dialects.attribute_table import MICRO_BATCH
from kitsune_mlir.dialects.iteration import root_of
from kitsune_mlir.dialects.products import is_contraction
from kitsune_mlir.dialects.sizes import tensor_bytes

__all__ = ["in_levels"]

LONG_BYTES = 64 << 20
"""What an H200's L2 does not hold: moved by a stage that nobody waits for, it had better not be between others."""


def in_levels(
    groups: Sequence[int], sources: Mapping[int, Sequence[int]], members: Mapping[int, Sequence[ir.Operation]]
) -> list[int]:
    """Groups that can start at the same time together, so that blocks without a tile of the one work on the other instead of
    waiting for it (the products of q, k and v); last what nobody reads, products before the rest: an engine goes through
    successive ones without a break.

    What nobody reads and moves much comes at the end: shorter ones that would come after it are done beside others.

    What nobody reads may be the new value of an argument (an optimizer's update), and is not put before others that read that
    argument: written in its place, it would take a copy of the old value. Micro-batches are done one after the other.

    Args:
        groups: in an order in which producers come before consumers.
        sources: the groups that each reads.
        members: their ops.
    """
    readers: dict[int, list[int]] = {}
    for g, found in sources.items():
        for source in found:
            readers.setdefault(source, []).append(g)
    level: dict[int, int] = {}
    for g in groups:
        level[g] = max((level[source] + 1 for source in sources[g]), default=0)
    late: set[int] = set()
    last, products = set(groups) - {*readers}, {g for g in groups if any(map(is_contraction, members[g]))}
    for g in groups:
        # What is made of arguments alone, and needed late, is not put before what others wait for.
        if not sources[g] and g not in last | products:
            level[g] = max(0, min(level[reader] for reader in readers[g]) - 1)
            late |= {g} if level[g] else set()
    used: dict[ir.Value, int] = {}
    for g in set(groups) - last:
        for argument in _arguments(members[g]):
            used[argument] = max(used.get(argument, 0), level[g])
    for g in last:
        kinds = {result.type for op in members[g] for result in op.results}
        level[g] = max([level[g], *(used[one] for one in _arguments(members[g]) if one in used and one.type in kinds)])
    end = max(level.values(), default=0) + 1
    for g in last - products:
        if sources[g] and _written_bytes(members[g]) >= LONG_BYTES:
            level[g] = end
    turns = _turns(groups, sources, members)
    return sorted(groups, key=lambda g: (turns[g], level[g], g in late, g in last, g in last - products))


def _turns(
    groups: Sequence[int], sources: Mapping[int, Sequence[int]], members: Mapping[int, Sequence[ir.Operation]]
) -> dict[int, int]:
    """Of each group the micro-batch that it belongs to: of its own ops, or the last that it reads something of."""
    turns: dict[int, int] = {}
    for g in groups:
        own = [ir.IntegerAttr(op.attributes[MICRO_BATCH]).value for op in members[g] if MICRO_BATCH in op.attributes]
        turns[g] = max([0, *own, *(turns[source] for source in sources[g])])
    return turns


def _written_bytes(ops: Sequence[ir.Operation]) -> int:
    """Of the results of a group's ops that none of them reads."""
    read = {value for op in ops for value in op.operands}
    return sum(tensor_bytes(value.type) for op in ops for value in op.results if is_tensor(value) and value not in read)


def _arguments(ops: Sequence[ir.Operation]) -> set[ir.Value]:
    """The function's tensors that ops read."""
    roots = {root_of(value) for op in ops for value in op.operands if is_tensor(value)}
    return {value for value in roots if isinstance(value.owner, ir.Block)}
