"""Images with channels innermost: the order of their dimensions, and what passes write of them."""

import math

from torch_mlir import ir
from torch_mlir.dialects import linalg, tensor

from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.products import body_of
from kitsune_mlir.passes.layouts.permute import permuted

__all__ = ["FIRST", "LAST", "like", "product_of_pixels", "rebuilt", "renamed", "summed", "walk_last", "zero_of"]

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


def renamed(expression: ir.AffineExpr) -> ir.AffineExpr:
    """An index of a tensor in terms of loops in the order LAST."""
    if isinstance(expression, ir.AffineDimExpr):
        return ir.AffineDimExpr.get(LAST.index(expression.position))
    names = [ir.AffineDimExpr.get(LAST.index(d)) for d in range(4)]
    return expression.compose(ir.AffineMap.get(4, 0, names))


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


def walk_last(op: ir.Operation) -> None:
    """Let a body whose loops are now in the order LAST still know the places that it asks for."""
    for inner in body_of(op):
        if inner.name == "linalg.index":
            dim = ir.IntegerAttr(inner.attributes["dim"])
            inner.attributes["dim"] = ir.IntegerAttr.get(dim.type, LAST.index(dim.value))


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
