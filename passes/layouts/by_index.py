"""Tensors made from another one by index, so that they can be cut along every dimension: padding, weights of groups as one."""

from collections.abc import Sequence

from torch_mlir import ir
from torch_mlir.dialects import arith, tensor

from kitsune_mlir.dialects.access import shape_of


def padded_by_index(source: ir.Value, lows: list[int], highs: list[int], outside: ir.Value) -> ir.Value:
    """A tensor with `lows` elements of a constant before it and `highs` after it, as a generic that reads it by index."""
    extents, element = shape_of(source), ir.ShapedType(source.type).element_type
    shape = [low + extent + high for low, extent, high in zip(lows, extents, highs, strict=True)]
    op, body = parallel_generic(shape, element)
    index = ir.IndexType.get()
    with ir.InsertionPoint(body):
        places, inside = [], None
        for dim, low in enumerate(lows):
            place = place_along(dim)
            if shape[dim] != extents[dim]:
                place = arith.subi(place, arith.constant(index, low))
                # Unsigned: what lies before the first element is beyond the last.
                here = arith.cmpi(arith.CmpIPredicate.ult, place, arith.constant(index, extents[dim]))
                inside = here if inside is None else arith.andi(inside, here)
                place = arith.maxsi(place, arith.constant(index, 0))
                place = arith.minsi(place, arith.constant(index, extents[dim] - 1))
            places.append(place)
        found = tensor.extract(source, places)
        found = found if inside is None else arith.select(inside, found, outside)
        ir.Operation.create("linalg.yield", [], [found])
    return op.results[0]


def block_diagonal(weight: ir.Value, count: int, rows: int) -> ir.Value:
    """The weight of a convolution in groups with every `count` groups as one: zeros between them.

    Channels are the last dimension, features the first; `weight` has the channels of one group.

    Args:
        rows: features of a group.
    """
    features, *taps, channels = shape_of(weight)
    element, index = ir.ShapedType(weight.type).element_type, ir.IndexType.get()
    zero = arith.constant(element, ir.FloatAttr.get(element, 0.0))
    op, body = parallel_generic([features, *taps, channels * count], element)
    with ir.InsertionPoint(body):
        first, *between, last = (place_along(dim) for dim in range(len(taps) + 2))
        group = arith.remui(arith.divui(first, arith.constant(index, rows)), arith.constant(index, count))
        within = arith.cmpi(arith.CmpIPredicate.eq, group, arith.divui(last, arith.constant(index, channels)))
        found = tensor.extract(weight, [first, *between, arith.remui(last, arith.constant(index, channels))])
        ir.Operation.create("linalg.yield", [], [arith.select(within, found, zero)])
    return op.results[0]


def parallel_generic(
    shape: list[int], element: ir.Type, reads: Sequence[tuple[ir.Value, ir.AffineMap]] = ()
) -> tuple[ir.Operation, ir.Block]:
    """A generic over a new tensor, and its body, which is empty; `reads` are tensors that it reads in order, by maps."""
    maps = [*(map_ for _, map_ in reads), ir.AffineMap.get_identity(len(shape))]
    operands = [*(value for value, _ in reads), tensor.empty(shape, element)]
    op = ir.Operation.create(
        "linalg.generic",
        [operands[-1].type],
        operands,
        {
            "indexing_maps": ir.ArrayAttr.get([ir.AffineMapAttr.get(map_) for map_ in maps]),
            "iterator_types": ir.ArrayAttr.get([ir.Attribute.parse("#linalg.iterator_type<parallel>")] * len(shape)),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(reads), 1]),
        },
        regions=1,
    )
    elements = [ir.ShapedType(operand.type).element_type for operand in operands]
    return op, op.regions[0].blocks.append(*elements, arg_locs=[ir.Location.current] * len(operands))


def filled(shape: list[int], value: ir.Attribute) -> ir.Value:
    """A tensor that has one number everywhere, as a generic, which can be cut: a constant is as large as it is."""
    op, body = parallel_generic(shape, value.type)
    with ir.InsertionPoint(body):
        ir.Operation.create("linalg.yield", [], [arith.constant(value.type, value)])
    return op.results[0]


def place_along(dim: int) -> ir.Value:
    """linalg.index along one loop."""
    number = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim)
    return ir.Operation.create("linalg.index", [ir.IndexType.get()], attributes={"dim": number}).results[0]
