"""Images with channels innermost: the order of their dimensions, and what passes write of them."""

import math
from collections.abc import Mapping

from torch_mlir import ir
from torch_mlir.dialects import linalg, tensor

from kitsune_mlir.dialects.access import affine_maps, shape_of
from kitsune_mlir.dialects.products import body_of
from kitsune_mlir.passes.layouts.permute import permuted

__all__ = ["FIRST", "LAST", "like", "product_of_pixels", "rebuilt", "renamed", "summed", "walked_last", "zero_of"]

LAST = (0, 2, 3, 1)
"""Dimension i of the channels-last form is dimension LAST[i] of the usual one."""
FIRST = (0, 3, 1, 2)
"""The inverse."""

PARALLEL = "#linalg.iterator_type<parallel>"


def product_of_pixels(images: ir.Value, weights: ir.Value, outs: list[ir.Value], **_: ir.Attribute) -> ir.Value:
    """A convolution of one tap, each pixel of the same pixel, as a product: [pixels, channels] by [features, channels]."""
    rows = [[0, 1, 2], [3]]

    def flat(value: ir.Value) -> ir.Value:
        shape, element = shape_of(value), ir.ShapedType(value.type).element_type
        return tensor.collapse_shape(ir.RankedTensorType.get([math.prod(shape[:3]), shape[3]], element), value, rows)

    m, n, k = (ir.AffineDimExpr.get(loop) for loop in range(3))
    maps = [ir.AffineMap.get(3, 0, results) for results in ([m, k], [n, k], [m, n])]
    indexing = ir.ArrayAttr.get([ir.AffineMapAttr.get(map_) for map_ in maps])
    made = linalg.contract(flat(images), flat(weights), outs=[flat(outs[0])], indexing_maps=indexing)
    return tensor.expand_shape(outs[0].type, made, rows, [], shape_of(outs[0]))


def loop_last(loop: int) -> int:
    """The number of a loop where the first four are in the order LAST."""
    return LAST.index(loop) if loop < len(LAST) else loop


def renamed(expression: ir.AffineExpr, loops: int = len(LAST)) -> ir.AffineExpr:
    """An index of a tensor in terms of loops in the order LAST, of `loops` in all."""
    if isinstance(expression, ir.AffineDimExpr):
        return ir.AffineDimExpr.get(loop_last(expression.position))
    names = [ir.AffineDimExpr.get(loop_last(d)) for d in range(loops)]
    return expression.compose(ir.AffineMap.get(loops, 0, names))


def rebuilt(op: ir.Operation, operands, maps, types) -> ir.Operation:
    """A linalg.generic with other operands and maps and the same body, before `op`."""
    with ir.InsertionPoint(op):
        copy = op.clone().operation
    for number, value in enumerate(operands):
        copy.operands[number] = value
    for result, type_ in zip(copy.results, types, strict=True):
        result.set_type(type_)
    copy.attributes["indexing_maps"] = ir.ArrayAttr.get([ir.AffineMapAttr.get(map_) for map_ in maps])
    return copy


def walked_last(op: ir.Operation, twins: Mapping[ir.Value, ir.Value]) -> ir.Operation:
    """A linalg.generic with its loops in the order LAST, before `op`, which reads and writes `twins` instead of images."""
    maps, operands = affine_maps(op), [twins.get(value, value) for value in op.operands]
    for number, old in enumerate(op.operands):
        results = list(maps[number].results)
        results = permuted(results, LAST) if old in twins else results
        maps[number] = ir.AffineMap.get(maps[number].n_dims, 0, [renamed(result, maps[number].n_dims) for result in results])
    made = rebuilt(op, operands, maps, [value.type for value in operands[-len(op.results) :]])
    for inner in body_of(made):
        if inner.name == "linalg.index":  # the body still knows the places that it asks for
            dim = ir.IntegerAttr(inner.attributes["dim"])
            inner.attributes["dim"] = ir.IntegerAttr.get(dim.type, loop_last(dim.value))
        elif inner.name == "tensor.extract" and inner.operands[0] in twins:
            for number, value in enumerate([twins[inner.operands[0]], *permuted(list(inner.operands)[1:], LAST)]):
                inner.operands[number] = value
    return made


def like(maker: ir.Operation) -> ir.Value:
    """An empty or constant-filled tensor in channels-last form."""
    result = maker.results[0]
    with ir.InsertionPoint.after(maker), maker.location:
        empty = tensor.empty(permuted(shape_of(result), LAST), ir.ShapedType(result.type).element_type)
        return empty if maker.name == "tensor.empty" else linalg.fill(maker.operands[0], outs=[empty])


def zero_of(element: ir.Type) -> ir.Value:
    attributes = {"value": ir.FloatAttr.get(element, 0.0)}
    return ir.Operation.create("arith.constant", [element], attributes=attributes).results[0]


def summed(value: ir.Value, addend: ir.Value, map_: ir.AffineMap) -> ir.Value:
    """value + addend, where `map_` says which loops of the four walk the addend."""
    identity = ir.AffineMap.get_identity(4)
    empty = tensor.empty(shape_of(value), ir.F32Type.get())
    op = ir.Operation.create(
        "linalg.generic",
        [value.type],
        [value, addend, empty],
        {
            "indexing_maps": ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in (identity, map_, identity)]),
            "iterator_types": ir.ArrayAttr.get([ir.Attribute.parse(PARALLEL)] * 4),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([2, 1]),
        },
        regions=1,
    )
    f32 = ir.F32Type.get()
    block = op.regions[0].blocks.append(f32, f32, f32, arg_locs=[ir.Location.current] * 3)
    with ir.InsertionPoint(block):
        total = ir.Operation.create("arith.addf", [f32], list(block.arguments)[:2])
        ir.Operation.create("linalg.yield", [], [total.results[0]])
    return op.results[0]
