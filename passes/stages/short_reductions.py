"""Short reductions are made by every thread that needs one: not in the stage of many more elements that need them."""

import math
from collections.abc import Sequence

from torch_mlir import ir

from kitsune_mlir.dialects.access import access_of, affine_maps, iterator_kinds, loops_in, shape_of
from kitsune_mlir.dialects.products import is_generic

__all__ = ["made_again"]

SHORT = 8
"""Terms of a reduction that a thread makes alone are fewer than these, or in windows (`codegen/gpu/engines/simt/choose.py`)."""
REPEATED = 8
"""How often such a reduction may be made."""


def made_again(producer: Sequence[ir.Operation], consumer: Sequence[ir.Operation]) -> str | None:
    """Why two groups stay apart where all reductions are short: the producer's would be made too often. None: they need not."""
    ops = [*producer, *consumer]
    if not all(is_generic(op) or not op.regions for op in ops):
        return None
    if any(_terms(op) >= SHORT and not _over_windows(op) for op in ops):
        return None  # threads share rows, and what is made for a row is made once
    elements = max((math.prod(shape_of(r)) for op in consumer for r in op.results), default=0)
    points = [math.prod(shape_of(op.results[0])) for op in producer if _terms(op) > 1]
    if points and elements > REPEATED * min(points):
        return f"{min(points)} short reductions would be made again for {elements} elements"
    return None


def _over_windows(op: ir.Operation) -> bool:
    """Whether a reduction goes over windows, be they of one element: a thread makes it alone, however long it is."""
    if not is_generic(op):
        return False
    kinds = iterator_kinds(op)
    sums = [e for map_ in affine_maps(op) for e in map_.results if not isinstance(e, ir.AffineDimExpr)]
    return any(kinds[loop] == "reduction" for expression in sums for loop in loops_in(expression))


def _terms(op: ir.Operation) -> int:
    """Elements that one result of an op is made of; 1 where it reduces nothing."""
    access = access_of(op) if is_generic(op) else None
    if access is None:
        return 1
    return math.prod(size for size, kind in zip(access.sizes, iterator_kinds(op), strict=True) if kind == "reduction")
