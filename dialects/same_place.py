"""Whether elements of one tensor are made of the same elements of another one: what may then lie in its memory."""

from torch_mlir import ir

from .access import affine_maps, is_tensor, iterator_kinds
from .products import defining_op, is_generic

__all__ = ["made_in_place"]

_HANDED_ON = ("kitsune.yield", "builtin.unrealized_conversion_cast", "bufferization.materialize_in_destination")


def made_in_place(made: ir.Value, source: ir.Value, block: ir.Block) -> bool:
    """Whether `made` may be written over `source` by who evaluates the block's maps element by element, or one after the other.

    All that the block makes of `source`, `made` among it, takes from it the element at its own place; and nothing reads
    `source` itself after the operation that makes `made`.
    """
    maker = defining_op(made)
    if maker is None:
        return False
    aligned = [source]
    for value in aligned:
        for use in value.uses:
            user = use.owner.operation
            if user.block != block:
                if _is_inside(user, block):
                    return False  # a body reads it by index
                continue
            if user.name in _HANDED_ON:
                continue
            late = value == source and user != maker and not user.is_before_in_block(maker)
            if late or not _takes_same_place(user, use.operand_number):
                return False
            if user.results[0] not in aligned:
                aligned.append(user.results[0])
    return made in aligned


def _is_inside(op: ir.Operation, block: ir.Block) -> bool:
    while op.parent is not None:
        if op.block == block:
            return True
        op = op.parent.operation
    return False


def _takes_same_place(op: ir.Operation, operand: int) -> bool:
    """Whether an op makes each element of its one result of the same element of an operand."""
    if not is_generic(op) or len(op.results) != 1 or "reduction" in iterator_kinds(op):
        return False
    maps = affine_maps(op)
    return is_tensor(op.operands[operand]) and maps[operand] == maps[-1] and maps[-1].is_permutation
