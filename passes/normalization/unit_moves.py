"""Transpositions that only move dimensions of extent 1: in memory nothing moves, so they are reshapes.

One token's heads, (batch, 1, heads, width) to (batch, heads, 1, width), are the case that matters: as a map it would be a stage
of its own between the projections and the attention.
"""

from torch_mlir import ir
from torch_mlir.dialects import tensor

from kitsune_mlir.dialects.access import affine_maps, shape_of
from kitsune_mlir.dialects.products import body_of, is_movement
from kitsune_mlir.dialects.verify import walk


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
            element = ir.ShapedType(result.type).element_type
            narrow = ir.RankedTensorType.get(wide[0], element)
            value = source
            if narrow != source.type:
                value = tensor.CollapseShapeOp(narrow, value, _groups(shape_of(source))).result
            if narrow != result.type:
                shape = shape_of(result)
                value = tensor.ExpandShapeOp(result.type, value, _groups(shape), [], shape).result
        result.replace_all_uses_with(value)
        op.erase()


def _groups(shape: list[int]) -> ir.ArrayAttr:
    """For each wide dimension, it and the ones before it; the last ones belong to the last group."""
    groups: list[list[int]] = [[]]
    for dim in range(len(shape)):
        if groups[-1] and shape[groups[-1][-1]] != 1 and any(size != 1 for size in shape[dim:]):
            groups.append([])
        groups[-1].append(dim)
    i64 = ir.IntegerType.get_signless(64)
    return ir.ArrayAttr.get([ir.ArrayAttr.get([ir.IntegerAttr.get(i64, dim) for dim in group]) for group in groups])
