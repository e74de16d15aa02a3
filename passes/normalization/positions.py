"""Tensors of positions (`arange`): one for each reader, so that upstream fuses each into its reader as a `linalg.index`.

Of one that is read along two loops, as rows and columns of a mask are, the loops would be one dimension of a stage, along
which it could not be cut (`dialects/iteration.py`).
"""

from torch_mlir import ir

from kitsune_mlir.dialects.products import body_of, is_generic
from kitsune_mlir.dialects.verify import walk

__all__ = ["part_positions"]


def part_positions(module: ir.Operation) -> None:
    """Repeat what is made of positions alone for each map that reads it."""
    for op in [op for op in walk(module) if _of_positions(op)]:
        for use in list(op.results[0].uses)[1:]:
            reader, number = use.owner.operation, use.operand_number
            if is_generic(reader):
                with ir.InsertionPoint(reader):
                    reader.operands[number] = op.clone().operation.results[0]


def _of_positions(op: ir.Operation) -> bool:
    if not is_generic(op) or len(op.operands) != 1 or len(op.results) != 1:
        return False
    body = body_of(op)
    return any(o.name == "linalg.index" for o in body) and all(o.name.startswith(("linalg.index", "arith.")) for o in body)
