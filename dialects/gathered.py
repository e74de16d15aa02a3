"""What is read at an index that was itself read: neighbouring points find what lies apart, and each asks for a whole sector."""

from __future__ import annotations

from torch_mlir import ir

from kitsune_mlir.dialects.access import affine_maps, loop_sizes, terms_of
from kitsune_mlir.dialects.sizes import tensor_bytes

__all__ = ["SECTOR", "run_bytes"]

SECTOR = 32
"""Bytes that memory moves at least."""


def run_bytes(op: ir.Operation, extract: ir.Operation) -> int:
    """Bytes side by side that neighbouring points of a linalg.generic read of a tensor by one `tensor.extract` of its body: as
    many elements as there are points along the innermost loops that no index which was read depends on. An index that is
    computed of the point alone is no such index: `SECTOR` then."""
    named = _loops_of_indices(op, extract)
    if not named:
        return SECTOR
    (*_, result), sizes = affine_maps(op), loop_sizes(op)
    walked = [e.position if isinstance(e, ir.AffineDimExpr) else None for e in result.results]
    # A sum's own loops are inside of those that walk its result; over rows that an index names (an embedding bag) they are not.
    inside = [*walked, *(loop for loop in range(len(sizes)) if loop not in walked)]
    points = max(_run(order, named, sizes) for order in (walked, inside))
    return points * tensor_bytes(extract.operands[0].type, [1])


def _run(order: list[int | None], named: set[int], sizes: list[int]) -> int:
    """Points of the innermost of some loops before one that an index depends on, or that is none."""
    points = 1
    for loop in reversed(order):
        if loop is None or loop in named:
            break
        points *= sizes[loop]
    return points


def _loops_of_indices(op: ir.Operation, extract: ir.Operation) -> set[int]:
    """The loops that walk the operands of which an extract's indices are made."""
    block, maps = op.regions[0].blocks[0], affine_maps(op)
    pending, seen, found = list(extract.operands)[1:], set(), set()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        owner = value.owner
        if isinstance(owner, ir.Block):
            if owner == block:
                found |= {loop for e in maps[ir.BlockArgument(value).arg_number].results for loop in terms_of(e) or {}}
        elif owner.operation.block == block:
            pending += list(owner.operands)
    return found
