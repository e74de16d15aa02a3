"""Dimensions of lists and of tensors in another order."""

from torch_mlir import ir
from torch_mlir.dialects import linalg, tensor

from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.passes.layouts.by_index import parallel_generic

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
    read = ir.AffineMap.get_permutation([order.index(dim) for dim in range(len(order))])
    op, body = parallel_generic(permuted(shape_of(value), order), ir.ShapedType(value.type).element_type, [(value, read)])
    with ir.InsertionPoint(body):
        ir.Operation.create("linalg.yield", [], [body.arguments[0]])
    return op.results[0]
