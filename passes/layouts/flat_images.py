"""Work over images seen as rows (a group norm's: all channels and pixels of an image are one row) as work over the images.

A row-major view of an image is none of an image that lies with its channels innermost. Element-wise work and sums over whole
rows need no view: they are the same over the image's dimensions, in any order.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch_mlir import ir
from torch_mlir.dialects import tensor

from kitsune_mlir.dialects.access import affine_maps, iterator_kinds, shape_of
from kitsune_mlir.dialects.iteration import is_reshape
from kitsune_mlir.dialects.products import body_of, defining_op, is_generic

from .images import is_image
from .nhwc import LAST, PARALLEL, rebuilt
from .permute import permuted

__all__ = ["FlatWork", "flat_work", "image_of_view", "over_images", "with_rows"]

REDUCTION = "#linalg.iterator_type<reduction>"


def image_of_view(value: ir.Value) -> ir.Value | None:
    """The image that a value is a view of, by reshapes that merge all but the first dimension; itself where it is an image."""
    while (maker := defining_op(value)) is not None and is_reshape(maker) and not is_image(value):
        value = maker.operands[0]
    return value if is_image(value) else None


@dataclass(frozen=True)
class FlatWork:
    """A generic whose loops walk rows that are images.

    Attributes:
        images: of each operand; None for those that have a number a row.
        rows: the loop that walks elements of a row; loop 0 walks rows, the others have extent 1.
        reduces: whether it is a sum over them.
    """

    images: tuple[ir.Value | None, ...]
    rows: int
    reduces: bool


def flat_work(op: ir.Operation) -> FlatWork | None:
    """What a generic does to rows that are images; None where it is something else."""
    if not is_generic(op) or not all(inner.name.startswith(("arith.", "math.")) for inner in body_of(op)):
        return None
    maps, kinds = affine_maps(op), iterator_kinds(op)
    loops = len(kinds)
    images = [_row_image(v, m, loops) for v, m in zip(op.operands, maps, strict=True)]
    first = next((number for number, image in enumerate(images[: len(images) - len(op.results)]) if image is not None), None)
    if first is None or loops < 2:
        return None
    sizes = shape_of(op.operands[first])
    rows = sizes.index(math.prod(sizes[1:]), 1)
    reduces = kinds[rows] == "reduction"
    if any(kind == "reduction" for loop, kind in enumerate(kinds) if loop != rows):
        return None
    results = range(len(images) - len(op.results), len(images))
    for number, (image, map_) in enumerate(zip(images, maps, strict=True)):
        if number in results and not reduces:
            if map_ != ir.AffineMap.get_identity(loops):
                return None
            images[number] = images[first]  # its shape
        elif image is not None and shape_of(image) != shape_of(images[first]):
            return None
        elif image is None and not all(_within(e, rows) for e in map_.results):
            return None
    return FlatWork(tuple(images), rows, reduces)


def _row_image(value: ir.Value, map_: ir.AffineMap, loops: int) -> ir.Value | None:
    """The image whose rows an operand is, read by an identity map: [images, 1, ..., elements of one]."""
    if map_ != ir.AffineMap.get_identity(loops) or is_image(value):
        return None
    image = image_of_view(value)
    if image is None or not isinstance(value.type, ir.RankedTensorType):
        return None
    wide, sizes = shape_of(image), shape_of(value)
    row = math.prod(wide[1:])
    flat = len(sizes) > 1 and sizes[0] == wide[0] and row > 1 and max(sizes[1:]) == row == math.prod(sizes[1:])
    return image if flat else None


def _within(expression: ir.AffineExpr, rows: int) -> bool:
    """Whether an index is a loop or a constant, and does not walk a row's elements."""
    if isinstance(expression, ir.AffineDimExpr):
        return expression.position != rows
    return isinstance(expression, ir.AffineConstantExpr)


def over_images(op: ir.Operation, work: FlatWork, twin: Callable[[ir.Value], ir.Value]) -> list[ir.Value]:
    """The results of the same work over batch, rows, columns and channels, in that order, before `op`.

    Args:
        twin: an image with its channels innermost.
    """
    zero, batch = ir.AffineConstantExpr.get(0), ir.AffineDimExpr.get(0)
    maps, operands, types = [], list(op.operands), [result.type for result in op.results]
    inputs = len(operands) - len(types)
    for number, (image, map_) in enumerate(zip(work.images, affine_maps(op), strict=True)):
        index = [e if isinstance(e, ir.AffineConstantExpr) else batch if e == batch else zero for e in map_.results]
        maps.append(ir.AffineMap.get_identity(4) if image is not None else ir.AffineMap.get(4, 0, index))
        if image is not None and number < inputs:
            operands[number] = twin(image)
        elif image is not None:
            element = ir.ShapedType(operands[number].type).element_type
            with ir.InsertionPoint(op):
                operands[number] = tensor.empty(permuted(shape_of(image), LAST), element)
            types[number - inputs] = operands[number].type
    copy = rebuilt(op, operands, maps, types)
    kinds = [PARALLEL, *[REDUCTION if work.reduces else PARALLEL] * 3]
    copy.attributes["iterator_types"] = ir.ArrayAttr.get([ir.Attribute.parse(kind) for kind in kinds])
    return list(copy.results)


def with_rows(image: ir.Value, shape: Sequence[int]) -> ir.Value:
    """An image seen as rows: [images, 1, ..., elements of one], at the insertion point."""
    element, sizes = ir.ShapedType(image.type).element_type, shape_of(image)
    row = math.prod(sizes[1:])
    flat = tensor.collapse_shape(ir.RankedTensorType.get([sizes[0], row], element), image, [[0], [1, 2, 3]])
    if len(shape) == 2:
        return flat
    return tensor.expand_shape(
        ir.RankedTensorType.get(list(shape), element), flat, [[0], list(range(1, len(shape)))], [], list(shape)
    )
