"""`tensor.pad` by one value."""

from collections.abc import Sequence

from torch_mlir import ir

from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.products import defining_op

__all__ = ["padded", "padding_value", "pads_with_zero"]


def padding_value(pad: ir.Operation) -> ir.Value:
    """What a pad puts around its source."""
    return list(pad.regions[0].blocks[0].operations)[-1].operation.operands[0]


def pads_with_zero(pad: ir.Operation) -> bool:
    """Whether that is the constant zero."""
    maker = defining_op(padding_value(pad))
    if maker is None or maker.name != "arith.constant" or not isinstance(maker.attributes["value"], ir.FloatAttr):
        return False
    return ir.FloatAttr(maker.attributes["value"]).value == 0


def padded(source: ir.Value, low: Sequence[int], high: Sequence[int], value: ir.Value) -> ir.Value:
    """A tensor with so many elements of `value` before and after each dimension."""
    shape = [size + a + b for size, a, b in zip(shape_of(source), low, high, strict=True)]
    made = ir.Operation.create(
        "tensor.pad",
        [ir.RankedTensorType.get(shape, ir.ShapedType(source.type).element_type)],
        [source],
        {
            "static_low": ir.DenseI64ArrayAttr.get(list(low)),
            "static_high": ir.DenseI64ArrayAttr.get(list(high)),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 0, 0]),
        },
        regions=1,
    )
    index = [ir.IndexType.get()] * len(shape)
    body = made.regions[0].blocks.append(*index, arg_locs=[ir.Location.current] * len(shape))
    with ir.InsertionPoint(body):
        ir.Operation.create("tensor.yield", [], [value])
    return made.results[0]
