"""Bytes of the arena that no task needs while a launch runs: there its partial results may lie.

A buffer is needed from the first launch that touches it to the last one, also in those between that do not.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch_mlir import ir

from kitsune_mlir.dialects.attribute_table import SPARE
from kitsune_mlir.dialects.sizes import tensor_bytes

__all__ = ["place_for", "spare_bytes"]

ALIGNMENT = 256


def spare_bytes(used: Sequence[Collection[ir.Value]], arena: ir.Value) -> list[list[int]]:
    """For each launch the ranges of the arena that are not needed, each one's start and end, in order; the last has no end.

    Args:
        used: of each launch the values that its tasks use, buffers in the arena among them.
    """
    first: dict[ir.Value, int] = {}
    last: dict[ir.Value, int] = {}
    for launch, values in enumerate(used):
        for value in values:
            if not isinstance(value.owner, ir.Block) and arena in list(value.owner.operands):
                first.setdefault(value, launch)
                last[value] = launch
    places = {view: _place_of(view) for view in first}
    found: list[list[int]] = []
    for launch in range(len(used)):
        ranges, end = list[int](), 0
        for start, behind in sorted(places[view] for view in first if first[view] <= launch <= last[view]):
            if start > end:
                ranges += [end, start]
            end = max(end, behind)
        found.append([*ranges, end])
    return found


def _place_of(view: ir.Value) -> tuple[int, int]:
    """Where a buffer in the arena begins and ends, in whole lines of it."""
    start = ir.IntegerAttr(view.owner.operands[1].owner.attributes["value"]).value
    return start // ALIGNMENT * ALIGNMENT, -(-(start + tensor_bytes(view.type)) // ALIGNMENT) * ALIGNMENT


def place_for(size: int, function: ir.Operation, arena: int) -> int:
    """Where in the arena of a launch, or behind it, so many bytes may lie.

    Args:
        arena: its bytes.
    """
    if SPARE not in function.attributes:
        return -(-arena // ALIGNMENT) * ALIGNMENT
    *ranges, rest = ir.DenseI64ArrayAttr(function.attributes[SPARE])
    return next((start for start, end in zip(ranges[::2], ranges[1::2], strict=True) if end - start >= size), rest)
