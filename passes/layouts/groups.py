"""Convolutions in groups, and the images that they read and make with their groups told apart.

Tensor cores multiply at least 64 features by 16 channels (of 16 bits). Narrow groups are done several side by side, as one wide
group whose weight has zeros between theirs, where that fills what would be multiplied anyway.
"""

import math

from torch_mlir import ir
from torch_mlir.dialects import linalg, tensor

from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.products import defining_op, fills_zero
from kitsune_mlir.passes.layouts.images import TYPES, channels_of

FEWEST_ROWS, STEP_BYTES = 64, 32  # features and bytes of channels that an instruction of tensor cores takes
JOINED = [[0], [1, 2], [3], [4]]  # groups and their channels, of a grouped convolution's result
FEATURES = [[0, 1], [2], [3], [4]]  # of its weight: groups and their features


def is_grouped(op: ir.Operation | None) -> bool:
    """Whether tensor cores could do a convolution's groups, and its operands are whole images (or lines) with the groups only
    told apart."""
    if op is None or op.name != "linalg.conv_2d_ngchw_gfchw" or len(list(op.results[0].uses)) != 1:
        return False
    *makers, start = [defining_op(value) for value in op.operands]
    if start is None or not (start.name == "tensor.expand_shape" or fills_zero(start)):
        return False
    types = {str(ir.ShapedType(value.type).element_type) for value in list(op.operands)[:2]}
    return (
        all(maker is not None and maker.name == "tensor.expand_shape" for maker in makers)
        and len(types) == 1
        and types <= set(TYPES)
        and side_by_side(op) is not None
    )


def side_by_side(op: ir.Operation) -> int | None:
    """How many groups of a grouped convolution make one: what leaves tensor cores the least work, of the same work the most.

    None where there is no number so that TMA can step over their channels.
    """
    image, weight = op.operands[0], op.operands[1]
    groups, channels = shape_of(image)[1:3]
    features, bytes_ = shape_of(weight)[1], TYPES[str(ir.ShapedType(image.type).element_type)]

    def work(count: int) -> int:
        rows, sums = -(-count * features // FEWEST_ROWS), -(-count * channels * bytes_ // STEP_BYTES)
        return groups // count * rows * sums

    counts = [n for n in range(1, groups + 1) if groups % n == 0 and n * channels % channels_of(image) == 0]
    return min(counts, key=lambda count: (work(count), -count), default=None)


def image_of(parted: ir.Value, weight: bool = False) -> ir.Value:
    """The image (or weight) of four dimensions whose groups a grouped convolution's operand tells apart."""
    whole = parted.owner.operation.operands[0]
    joined = FEATURES if weight else JOINED
    sizes = [math.prod(shape_of(parted)[dim] for dim in group) for group in joined]
    if shape_of(whole) == sizes:  # it may have groups of its own, and no rows
        return whole
    if len(sizes) == len(shape_of(whole)) + 1 and [*shape_of(whole)[:2], 1, *shape_of(whole)[2:]] == sizes:  # a line
        with ir.InsertionPoint(parted.owner.operation):
            type_ = ir.RankedTensorType.get(sizes, ir.ShapedType(parted.type).element_type)
            return tensor.expand_shape(type_, whole, [[0], [1], [2, 3]], [], sizes)
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


def parted(value: ir.Value, dim: int, parts: int) -> ir.Value:
    """A view of a tensor with one of its dimensions in so many parts."""
    shape = shape_of(value)
    shape[dim : dim + 1] = [parts, shape[dim] // parts]
    groups = [[d, d + 1] if d == dim else [d + (d > dim)] for d in range(len(shape) - 1)]
    return tensor.expand_shape(ir.RankedTensorType.get(shape, ir.ShapedType(value.type).element_type), value, groups, [], shape)


def by_group(images: ir.Value, weights: ir.Value, outs: list[ir.Value], **keep: ir.Attribute) -> ir.Value:
    """A convolution in groups of an image with these told apart; `outs` and the result have them joined."""
    start = parted(outs[0], 3, shape_of(images)[3])
    made = linalg.conv_2d_nhwgc_gfhwc(images, weights, outs=[start], **keep)
    return tensor.collapse_shape(outs[0].type, made, [[0], [1], [2], [3, 4]])
