"""Dimensions of lists and of tensors in another order."""

from torch_mlir import ir
from torch_mlir.dialects import linalg, tensor

from kitsune_mlir.dialects.access import affine_maps, shape_of
from kitsune_mlir.passes.layouts.by_index import parallel_generic

__all__ = ["order_of", "permuted", "reordered", "transposed"]


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


def order_of(op: ir.Operation) -> list[int] | None:
    """The dimension of what a movement reads that each one of its result is; None if it does more, or moves nothing."""
    given, made = affine_maps(op)
    if not given.is_permutation or made != ir.AffineMap.get_identity(made.n_dims):
        return None
    loops = [ir.AffineDimExpr(expression).position for expression in given.results]
    order = [loops.index(dim) for dim in range(len(loops))]
    return order if order != sorted(order) else None
