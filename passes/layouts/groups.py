"""Convolutions in a few groups, and the images that they read and make with their groups told apart."""

import math

from torch_mlir import ir
from torch_mlir.dialects import tensor

from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.products import defining_op, fills_zero
from kitsune_mlir.passes.layouts.images import TYPES, channels_of

MOST_GROUPS = 8  # that are done as one: so many times the work, but on tensor cores
JOINED = [[0], [1, 2], [3], [4]]  # groups and their channels, of a grouped convolution's result
FEATURES = [[0, 1], [2], [3], [4]]  # of its weight: groups and their features


def is_grouped(op: ir.Operation | None) -> bool:
    """Whether a convolution has few groups, and its operands are whole images (or lines) with the groups only told apart."""
    if op is None or op.name != "linalg.conv_2d_ngchw_gfchw" or len(list(op.results[0].uses)) != 1:
        return False
    *makers, start = [defining_op(value) for value in op.operands]
    if start is None or not (start.name == "tensor.expand_shape" or fills_zero(start)):
        return False
    types = {str(ir.ShapedType(value.type).element_type) for value in list(op.operands)[:2]}
    groups, channels = shape_of(op.operands[0])[1:3]
    return (
        all(maker is not None and maker.name == "tensor.expand_shape" for maker in makers)
        and len(types) == 1
        and types <= set(TYPES)
        and groups <= MOST_GROUPS
        and groups * channels % channels_of(op.operands[0]) == 0
    )


def image_of(parted: ir.Value, weight: bool = False) -> ir.Value:
    """The image (or weight) of four dimensions whose groups a grouped convolution's operand tells apart."""
    whole = parted.owner.operation.operands[0]
    joined = FEATURES if weight else JOINED
    sizes = [math.prod(shape_of(parted)[dim] for dim in group) for group in joined]
    if shape_of(whole) == sizes:  # it may have groups of its own, and no rows
        return whole
    with ir.InsertionPoint.after(parted.owner.operation):
        return tensor.collapse_shape(ir.RankedTensorType.get(sizes, ir.ShapedType(parted.type).element_type), parted, joined)


def joined_groups(collapse: ir.Operation) -> ir.Operation | None:
    """What makes an image of a grouped convolution's groups and their channels: the op itself, or, where it loses more
    dimensions (a convolution along one has a height of 1), a new one that it reads. None if it does not join them."""
    parts = [list(part) for part in ir.ArrayAttr(collapse.attributes["reassociation"])]
    groups = [[ir.IntegerAttr(dim).value for dim in part] for part in parts]
    if not any({1, 2} <= set(group) for group in groups):
        return None
    if groups == JOINED:
        return collapse
    source = collapse.operands[0]
    batch, number, filters, *sizes = shape_of(source)
    image = ir.RankedTensorType.get([batch, number * filters, *sizes], ir.ShapedType(source.type).element_type)
    with ir.InsertionPoint(collapse):
        made = tensor.collapse_shape(image, source, JOINED)
        # Dimension 2 has become one with 1.
        left = [sorted({max(dim - 1, min(dim, 1)) for dim in group}) for group in groups]
        rest = tensor.collapse_shape(collapse.results[0].type, made, left)
    collapse.results[0].replace_all_uses_with(rest)
    collapse.erase()
    return defining_op(made)
