"""Long rows that a reduction goes along are not stored across in the same stage: a tile has so few of them that each element
would be a write of its own.

The gradient of scores over a vocabulary is a softmax's, and the gradient of the table that made them reads it with rows along
the sum (a softmax of 2,048 rows of 30,522 that also stored that took 1.3 ms of an H200). A stage of its own has tiles that turn
in shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch_mlir import ir

from kitsune_mlir.dialects.access import affine_maps, iterator_kinds, loop_sizes, plain_loops
from kitsune_mlir.dialects.products import is_contraction, is_generic

__all__ = ["turns_long_rows"]

LONG = 4096
"""Elements of a row: a tile has two of them, or one (`codegen/gpu/interface/memory_tiles.py`)."""


def turns_long_rows(group: Sequence[ir.Operation]) -> str | None:
    """Why ops without products, in the order of the program, are no stage; None if this does not speak against it."""
    if not any(map(_sums_long_rows, group)):
        return None
    made = {result for op in group for result in op.results}
    turned = any(value in made and _turns(op, number) for op in group for number, value in enumerate(op.operands))
    return "long rows would be stored across" if turned else None


def _sums_long_rows(op: ir.Operation) -> bool:
    """Whether a reduction goes along long rows of an input."""
    if not is_generic(op) or is_contraction(op) or "reduction" not in iterator_kinds(op):
        return False
    kinds, sizes = iterator_kinds(op), loop_sizes(op)
    rows = [plain_loops(map_)[-1] for map_ in affine_maps(op)[: -len(op.results)] if len(map_.results)]
    return any(loop is not None and kinds[loop] == "reduction" and sizes[loop] >= LONG for loop in rows)


def _turns(op: ir.Operation, number: int) -> bool:
    """Whether neighbours in an operand's long rows lie apart in the result of a map, which has the same elements."""
    if not is_generic(op) or set(iterator_kinds(op)) != {"parallel"} or number >= len(op.operands) - len(op.results):
        return False
    maps = affine_maps(op)
    read, stored = plain_loops(maps[number]), plain_loops(maps[-1])
    if set(read) != set(stored) or read[-1:] == stored[-1:] or read[-1] is None:
        return False
    return loop_sizes(op)[read[-1]] >= LONG
