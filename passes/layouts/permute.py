"""Dimensions of lists and of tensors in another order."""

from torch_mlir import ir
from torch_mlir.dialects import linalg, tensor

from kitsune_mlir.dialects.access import shape_of

__all__ = ["permuted", "reordered", "transposed"]


def permuted(values, order) -> list:
    """The values in another order."""
    return [values[i] for i in order]


def transposed(value: ir.Value, order) -> ir.Value:
    """linalg.transpose of a tensor, at the insertion point."""
    empty = tensor.empty(permuted(shape_of(value), order), ir.ShapedType(value.type).element_type)
    return linalg.transpose(value, outs=[empty], permutation=list(order)).results[0]


def reordered(value: ir.Value, order: list[int]) -> ir.Value:
    """The same as a linalg.generic, which passes after normalisation read."""
    type_ = ir.RankedTensorType(value.type)
    empty = tensor.empty(permuted(shape_of(value), order), type_.element_type)
    rank = len(order)
    read = ir.AffineMap.get_permutation([order.index(dim) for dim in range(rank)])
    attributes = {
        "indexing_maps": ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in (read, ir.AffineMap.get_identity(rank))]),
        "iterator_types": ir.ArrayAttr.get([ir.Attribute.parse("#linalg.iterator_type<parallel>")] * rank),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 1]),
    }
    op = ir.Operation.create("linalg.generic", [empty.type], [value, empty], attributes, regions=1)
    block = op.regions[0].blocks.append(*[type_.element_type] * 2, arg_locs=[op.location] * 2)
    with ir.InsertionPoint(block):
        ir.Operation.create("linalg.yield", [], [block.arguments[0]])
    return op.results[0]
