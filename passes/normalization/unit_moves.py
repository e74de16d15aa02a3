"""Transpositions of dimensions of extent 1: in memory these do not move, so they are reshapes, or transpositions without them.

One token's heads, (batch, 1, heads, width) to (batch, heads, 1, width), are a case that matters: as a map it would be a stage
of its own between the projections and the attention. `torch.einsum` is another: it gives its operands such dimensions, turns
them and takes the dimensions away again; without them a product reads the operand where it lies.
"""

from torch_mlir import ir

from kitsune_mlir.dialects.access import affine_maps, shape_of
from kitsune_mlir.dialects.products import body_of, defining_op, is_movement
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.passes.layouts.ones import with_ones
from kitsune_mlir.passes.layouts.permute import reordered


def reshape_unit_moves(module: ir.Operation) -> None:
    """Replace each that moves nothing else by a collapse to the wide dimensions and an expansion; of the others those that only
    have them for a while, by one without."""
    for op in [op for op in walk(module) if is_movement(op) and not body_of(op)]:
        source, result = op.operands[0], op.results[0]
        wide = [[extent for extent in shape_of(value) if extent != 1] for value in (source, result)]
        order = [e.position for e in affine_maps(op)[0].results]  # the result's dimensions, as the source has them
        moved = [dim for dim in order if shape_of(result)[dim] != 1]
        if not wide[0] or order == sorted(order):
            continue
        if moved != sorted(moved):
            _turn_without_ones(op, wide, [moved.index(dim) for dim in sorted(moved)])
            continue
        with ir.InsertionPoint(op), op.location:
            value = with_ones(source, shape_of(result))
        result.replace_all_uses_with(value)
        op.erase()


def _turn_without_ones(op: ir.Operation, wide: list[list[int]], order: list[int]) -> None:
    """Transpose what has no dimensions of extent 1 yet, where all readers take them away.

    Args:
        wide: the other extents of operand and result. order: the result's dimensions among these, as the operand has them.
    """
    given, readers = defining_op(op.operands[0]), [use.owner for use in op.results[0].uses]
    if given is None or given.name != "tensor.expand_shape" or shape_of(given.operands[0]) != wide[0]:
        return
    if not all(reader.name == "tensor.collapse_shape" and shape_of(reader.results[0]) == wide[1] for reader in readers):
        return
    with ir.InsertionPoint(op), op.location:
        turned = reordered(given.operands[0], order)
    for reader in readers:
        reader.results[0].replace_all_uses_with(turned)
        reader.erase()
    op.erase()
