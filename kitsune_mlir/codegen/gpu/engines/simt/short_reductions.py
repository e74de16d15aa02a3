"""Which reductions a thread makes alone: short ones, numbers of tiny products, those over windows that overlap or lie apart."""

from __future__ import annotations

import math

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.simt.graph import generic_sizes, reduced_size
from kitsune_mlir.codegen.gpu.interface.tiny_products import MOST_TERMS, is_tiny
from kitsune_mlir.dialects.access import affine_maps, iterator_kinds, loops_in, plain_loops
from kitsune_mlir.dialects.verify import walk

__all__ = ["is_private"]

SHORT = 8
"""Reductions of fewer elements are made by one thread."""

PRIVATE = 4096
"""Longest reduction that a thread makes alone."""

FEWEST_NUMBERS = 256
"""Of a tile of tiny products, from which on each thread has one to make."""


def is_private(op: ir.Operation) -> bool:
    """Whether a thread makes a reduction alone: it is short, or over windows that overlap or lie apart."""
    kinds = iterator_kinds(op)
    if reduced_size(op) < SHORT or (reduced_size(op) <= SHORT**2 and _is_cut_up(op)):
        return True
    if reduced_size(op) <= MOST_TERMS and is_tiny(op):
        return math.prod(ir.ShapedType(op.results[0].type).shape) >= FEWEST_NUMBERS
    if _reads_by_index(op):
        return reduced_size(op) <= PRIVATE
    for map_ in affine_maps(op):
        for expression in map_.results:
            moving = loops_in(expression) if not isinstance(expression, ir.AffineDimExpr) else ()
            if any(kinds[loop] == "reduction" for loop in moving):
                return reduced_size(op) <= PRIVATE
    return False


def _is_cut_up(op: ir.Operation) -> bool:
    """Whether a reduction goes over short runs of memory, with something else between them: the windows of a volume."""
    kinds, sizes = iterator_kinds(op), generic_sizes(op)
    loops = max((plain_loops(map_) for map_ in affine_maps(op)), key=len)
    run, reduced = 1, 0
    for loop in reversed(loops):
        if loop is None or kinds[loop] != "reduction":
            break
        run, reduced = run * sizes[loop], reduced + 1
    return 0 < reduced < kinds.count("reduction") and run < SHORT


def _reads_by_index(op: ir.Operation) -> bool:
    """Whether a reduction goes over elements that its body reads by index, such as the windows of a padded image."""
    kinds = iterator_kinds(op)
    for operand, map_ in zip(op.operands, affine_maps(op), strict=True):
        loops = {loop for loop in plain_loops(map_) if loop is not None}
        empty = not isinstance(operand.owner, ir.Block) and operand.owner.name == "tensor.empty"
        if not empty and (len(loops) < len(map_.results) or any(kinds[loop] == "reduction" for loop in loops)):
            return False
    return any(inner.name == "tensor.extract" for inner in walk(op))
