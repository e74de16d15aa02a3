"""Sums and products of 16-bit numbers at indices are made in f32 and rounded once, as PyTorch does on a processor."""

from __future__ import annotations

from torch_mlir import ir
from torch_mlir.dialects import tensor

from kitsune_mlir.dialects.sizes import HALF_TYPES
from kitsune_mlir.dialects.verify import operations_named

__all__ = ["widen_scatters"]

ROUNDING = ("arith.addf", "arith.mulf")


def widen_scatters(root: ir.Operation) -> None:
    """Put a `tm_tensor.scatter` of f32 between casts in the place of each that rounds to 16 bits after each number."""
    for op in operations_named(root, "tm_tensor.scatter"):
        block = op.regions[0].blocks[0]
        element = ir.ShapedType(op.results[0].type).element_type
        body = [inner.operation for inner in block.operations]
        if str(element) not in HALF_TYPES or len(body) != 2 or body[0].name not in ROUNDING:
            continue
        updates, indices, start = op.operands
        with ir.InsertionPoint(op), op.location:
            wide = ir.F32Type.get()
            operands = [_cast(updates, "arith.extf", wide), indices, _cast(start, "arith.extf", wide)]
            attributes = {name: op.attributes[name] for name in op.attributes}
            made = ir.Operation.create("tm_tensor.scatter", [operands[2].type], operands, attributes, regions=1)
            inner = made.regions[0].blocks.append(wide, wide, arg_locs=[op.location] * 2)
            with ir.InsertionPoint(inner):
                # Either order: both operations commute.
                total = ir.Operation.create(body[0].name, [wide], list(inner.arguments)).results[0]
                ir.Operation.create("tm_tensor.yield", [], [total])
            op.results[0].replace_all_uses_with(_cast(made.results[0], "arith.truncf", element))
        op.erase()


def _cast(value: ir.Value, operation: str, element: ir.Type) -> ir.Value:
    """A tensor of floats in another type."""
    shape = list(ir.ShapedType(value.type).shape)
    identity = ir.AffineMapAttr.get(ir.AffineMap.get_identity(len(shape)))
    parallel = ir.Attribute.parse("#linalg.iterator_type<parallel>")
    attributes = {
        "indexing_maps": ir.ArrayAttr.get([identity] * 2),
        "iterator_types": ir.ArrayAttr.get([parallel] * len(shape)),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 1]),
    }
    type_ = ir.RankedTensorType.get(shape, element)
    made = ir.Operation.create("linalg.generic", [type_], [value, tensor.empty(shape, element)], attributes, regions=1)
    elements = (ir.ShapedType(value.type).element_type, element)
    block = made.regions[0].blocks.append(*elements, arg_locs=[ir.Location.current] * 2)
    with ir.InsertionPoint(block):
        number = ir.Operation.create(operation, [element], [block.arguments[0]]).results[0]
        ir.Operation.create("linalg.yield", [], [number])
    return made.results[0]
