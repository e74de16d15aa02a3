"""Dimensions of lists and of tensors in another order."""

from torch_mlir import ir
from torch_mlir.dialects import linalg, tensor

from kitsune_mlir.dialects.access import shape_of

__all__ = ["permuted", "transposed"]


def permuted(values, order) -> list:
    """The values in another order."""
    return [values[i] for i in order]


def transposed(value: ir.Value, order) -> ir.Value:
    """linalg.transpose of a tensor, at the insertion point."""
    empty = tensor.empty(permuted(shape_of(value), order), ir.ShapedType(value.type).element_type)
    return linalg.transpose(value, outs=[empty], permutation=list(order)).results[0]
