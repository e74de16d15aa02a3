"""Finding the narrow tensor behind a widened one: what lets a product read bf16 where torch-mlir computes casts first."""

from torch_mlir import ir
from torch_mlir.dialects import linalg, tensor

from kitsune_mlir.dialects.access import affine_maps, shape_of
from kitsune_mlir.dialects.iteration import is_reshape
from kitsune_mlir.dialects.products import body_of, defining_op, is_movement

DEPTH = 8  # movements between a cast and a product; longer chains are not what the importer writes


def narrow(value: ir.Value, depth: int = DEPTH) -> ir.Value | None:
    """A tensor of a narrower float type of which `value` is the exact widening, or None.

    Looks through movement of data (transposes, broadcasts, reshapes, concatenation), which is made again on the narrow
    tensor, beside the original. The original is left for dead-code elimination, or for other users.
    """
    op = defining_op(value)
    if op is None or depth == 0 or not isinstance(value.type, ir.ShapedType):
        return None
    if not isinstance(ir.ShapedType(value.type).element_type, ir.FloatType):
        return None
    if is_movement(op) and body_of(op):
        if body_of(op)[0].name != "arith.extf":
            return None
        first, second = affine_maps(op)
        return op.operands[0] if first == second else _moved(op, op.operands[0])
    if is_movement(op):
        source = narrow(op.operands[0], depth - 1)
        return None if source is None else _moved(op, source)
    if op.name == "linalg.transpose":
        source = narrow(op.operands[0], depth - 1)
        return None if source is None else _transposed(op, source)
    if is_reshape(op) and len(op.operands) == 1:
        source = narrow(op.operands[0], depth - 1)
        return None if source is None else _reshaped(op, source)
    if op.name == "tensor.concat":
        parts = [narrow(v, depth - 1) for v in op.operands]
        if any(p is None for p in parts) or len({ir.ShapedType(p.type).element_type for p in parts if p is not None}) != 1:
            return None
        return _concatenated(op, [p for p in parts if p is not None])
    return None


def _like(op: ir.Operation, source: ir.Value) -> ir.Type:
    return ir.RankedTensorType.get(shape_of(op.results[0]), ir.ShapedType(source.type).element_type)


def _moved(op: ir.Operation, source: ir.Value) -> ir.Value:
    """The moving generic `op` without its cast, on `source`."""
    element = ir.ShapedType(source.type).element_type
    with ir.InsertionPoint(op), op.location:
        empty = tensor.empty(shape_of(op.results[0]), element)
        new = ir.Operation.create(
            "linalg.generic",
            [_like(op, source)],
            [source, empty],
            {n: op.attributes[n] for n in ("indexing_maps", "iterator_types", "operandSegmentSizes")},
            regions=1,
        )
        block = new.regions[0].blocks.append(element, element, arg_locs=[op.location] * 2)
        with ir.InsertionPoint(block):
            ir.Operation.create("linalg.yield", [], [block.arguments[0]])
    return new.results[0]


def _transposed(op: ir.Operation, source: ir.Value) -> ir.Value:
    with ir.InsertionPoint(op), op.location:
        empty = tensor.empty(shape_of(op.results[0]), ir.ShapedType(source.type).element_type)
        order = list(ir.DenseI64ArrayAttr(op.attributes["permutation"]))
        return linalg.transpose(source, outs=[empty], permutation=order).operation.results[0]


def _reshaped(op: ir.Operation, source: ir.Value) -> ir.Value:
    names = ("reassociation", "static_output_shape")
    with ir.InsertionPoint(op), op.location:
        attributes = {n: op.attributes[n] for n in names if n in op.attributes}
        return ir.Operation.create(op.name, [_like(op, source)], [source], attributes).results[0]


def _concatenated(op: ir.Operation, parts: list[ir.Value]) -> ir.Value:
    with ir.InsertionPoint(op), op.location:
        return ir.Operation.create(op.name, [_like(op, parts[0])], parts, {"dim": op.attributes["dim"]}).results[0]
