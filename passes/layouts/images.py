"""What `kitsune-channels-last` recognises: convolutions that it rewrites, and what can follow them."""

from torch_mlir import ir

from kitsune_mlir.dialects.access import affine_maps, iterator_kinds, shape_of
from kitsune_mlir.dialects.products import body_of, defining_op
from kitsune_mlir.dialects.sizes import HALF_TYPES

STRIDE_BYTES = 16  # the least stride that TMA takes
TYPES = {"bf16": 2, "f16": 2, "f32": 4}  # bytes


def is_image(value: ir.Value) -> bool:
    """Whether a value is a tensor of batch, channels, rows and columns."""
    return isinstance(value.type, ir.RankedTensorType) and ir.RankedTensorType(value.type).rank == 4


def channels_of(value: ir.Value) -> int:
    """Channels that TMA can step over."""
    return STRIDE_BYTES // TYPES[str(ir.ShapedType(value.type).element_type)]


def is_convolution(op: ir.Operation) -> bool:
    """Whether tensor cores could do a convolution."""
    if op.name != "linalg.conv_2d_nchw_fchw":
        return False
    types = {str(ir.ShapedType(value.type).element_type) for value in list(op.operands)[:2]}
    accumulates = str(ir.ShapedType(op.results[0].type).element_type) == "f32"
    return len(types) == 1 and types <= set(TYPES) and accumulates


def is_one_pixel(op: ir.Operation) -> bool:
    """Whether a convolution of 16-bit numbers is of images of one pixel with channels that TMA cannot step over: a product of a
    few rows, for which nothing has to be widened (a squeeze-and-excite's). Exact f32 means something else for products."""
    image, weight, _ = op.operands
    one = shape_of(image)[2:] == shape_of(weight)[2:] == [1, 1] and str(ir.ShapedType(image.type).element_type) in HALF_TYPES
    return one and shape_of(image)[1] % channels_of(image) != 0


def is_depthwise(op: ir.Operation) -> bool:
    """Whether every channel has a weight of its own, which is a whole argument or value of four dimensions."""
    if op.name != "linalg.depthwise_conv_2d_nchw_chw":
        return False
    maker = defining_op(op.operands[1])
    types = {str(ir.ShapedType(value.type).element_type) for value in list(op.operands)[:2]}
    accumulates = str(ir.ShapedType(op.results[0].type).element_type) == "f32"
    if maker is None or maker.name != "tensor.collapse_shape" or not is_image(maker.operands[0]):
        return False
    return shape_of(maker.operands[0])[1] == 1 and len(types) == 1 and types <= set(TYPES) and accumulates


def is_element_wise(op: ir.Operation) -> bool:
    """A generic over the points of images, each perhaps with terms, whose body computes with numbers and with where it is,
    and may read tensors by index."""
    kinds = iterator_kinds(op)
    identity = ir.AffineMap.get(len(kinds), 0, [ir.AffineDimExpr.get(loop) for loop in range(4)])
    return (
        kinds[:4] == ["parallel"] * 4
        and set(kinds[4:]) <= {"reduction"}
        and all(map_ == identity for map_ in affine_maps(op)[-len(op.results) :])
        and all(inner.name.startswith(("arith.", "math.", "linalg.index", "tensor.extract")) for inner in body_of(op))
    )


def images_read_by_index(op: ir.Operation) -> list[ir.Value]:
    """The images of which a generic's body reads elements."""
    read = (inner.operands[0] for inner in body_of(op) if inner.name == "tensor.extract")
    return [value for value in dict.fromkeys(read) if is_image(value)]
