"""Transpositions that only move dimensions of extent 1: in memory nothing moves, so they are reshapes.

One token's heads, (batch, 1, heads, width) to (batch, heads, 1, width), are the case that matters: as a map it would be a stage
of its own between the projections and the attention.
"""

from torch_mlir import ir

from kitsune_mlir.dialects.access import affine_maps, shape_of
from kitsune_mlir.dialects.products import body_of, is_movement
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.passes.layouts.ones import with_ones


def reshape_unit_moves(module: ir.Operation) -> None:
    """Replace each such transposition by a collapse to the wide dimensions and an expansion."""
    for op in [op for op in walk(module) if is_movement(op) and not body_of(op)]:
        source, result = op.operands[0], op.results[0]
        wide = [[extent for extent in shape_of(value) if extent != 1] for value in (source, result)]
        order = [e.position for e in affine_maps(op)[0].results]  # the result's dimensions, as the source has them
        moved = [dim for dim in order if shape_of(result)[dim] != 1]
        if not wide[0] or order == sorted(order) or moved != sorted(moved):
            continue
        with ir.InsertionPoint(op), op.location:
            value = with_ones(source, shape_of(result))
        result.replace_all_uses_with(value)
        op.erase()
