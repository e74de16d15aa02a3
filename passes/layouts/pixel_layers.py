"""Layers over pixels: two convolutions of one tap with nothing but element-wise work between them (an MLP of each pixel).

They are products of rows, which a chain can have in one stage, and whose epilogues are those of products.
"""

from torch_mlir import ir

from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.products import defining_op
from kitsune_mlir.dialects.sizes import HALF_TYPES

from .images import channels_of, is_convolution, is_element_wise, is_image

__all__ = ["pixel_layers"]

MOST_BETWEEN = 32
"""Operations between two layers that are looked at: an activation is a dozen."""


def pixel_layers(operations: list[ir.Operation]) -> set[ir.Value]:
    """The results of convolutions that are such layers."""
    found: set[ir.Value] = set()
    for op in operations:
        if _is_of_pixels(op) and (second := _read_by(op)) is not None:
            found |= {op.results[0], second.results[0]}
    return found


def _is_of_pixels(op: ir.Operation) -> bool:
    """Whether a convolution of 16-bit numbers has one tap and makes each pixel of the same pixel; not of padded images, of
    channels that TMA cannot step over, or of one pixel (`is_one_pixel`). (Exact f32 means something else for products.)"""
    if not is_convolution(op):
        return False
    image, weight, _ = op.operands
    pixels = shape_of(image)[2:]
    if shape_of(weight)[2:] != [1, 1] or pixels == [1, 1] or pixels != shape_of(op.results[0])[2:]:
        return False
    if str(ir.ShapedType(image.type).element_type) not in HALF_TYPES:
        return False
    maker = defining_op(image)
    padded = maker is not None and maker.name == "tensor.pad"
    return not padded and not any(channels % channels_of(image) for channels in shape_of(weight)[:2])


def _read_by(op: ir.Operation) -> ir.Operation | None:
    """The convolution of pixels that alone reads what element-wise work makes of `op`'s result, of no other image."""
    reached, pending, second = {op.results[0]}, [op.results[0]], None
    between: list[ir.Operation] = []
    while pending:
        for use in pending.pop().uses:
            user = use.owner.operation
            if (second is not None and user == second) or user in between:
                continue
            if user.name == "linalg.generic" and is_element_wise(user) and len(between) < MOST_BETWEEN:
                between.append(user)
                reached |= set(user.results)
                pending += list(user.results)
            elif second is None and _is_of_pixels(user) and use.operand_number == 0:
                second = user
            else:
                return None
    read = [value for user in between for value in list(user.operands)[: len(user.operands) - len(user.results)]]
    return second if all(value in reached or not is_image(value) for value in read) else None
