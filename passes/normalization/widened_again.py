"""A tensor is widened by each operation that reads it wide, not once for all of them.

A step of training widens a bias in the forward pass and again where the optimizer changes it, which are one operation once
equal ones are one: its result would be stored, in more bytes than it was read in, and what adds the bias could not go into the
product before it. Upstream's fuser puts a cast into the operation that reads it where no other one does.
"""

from torch_mlir import ir

from kitsune_mlir.dialects.access import affine_maps, is_tensor
from kitsune_mlir.dialects.cloning import clone_for
from kitsune_mlir.dialects.products import WIDENING, body_of, is_generic
from kitsune_mlir.dialects.sizes import element_bytes
from kitsune_mlir.dialects.verify import walk

__all__ = ["widen_again"]


def widen_again(module: ir.Operation) -> None:
    """Clone casts of whole tensors to wider types for every operation that reads them but the first, in place."""
    for op in [op for op in walk(module) if _widens(op)]:
        readers = dict.fromkeys(use.owner.operation for use in op.results[0].uses)
        clone_for(op, list(filter(is_generic, readers))[1:])


def _widens(op: ir.Operation) -> bool:
    """Whether an operation is nothing but a cast to a wider type, element by element."""
    if not is_generic(op) or len(op.operands) != 2 or len(op.results) != 1 or not is_tensor(op.operands[0]):
        return False
    body, (source, result) = body_of(op), op.operands
    if len(body) != 1 or body[0].name not in WIDENING or element_bytes(source.type) >= element_bytes(result.type):
        return False
    first, second = affine_maps(op)
    return first == second and second.is_permutation
