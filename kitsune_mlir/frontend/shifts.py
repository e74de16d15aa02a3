"""Shifts by as many bits as numbers have, by more, or by less than none: PyTorch shifts everything out; LLVM leaves it open."""

from __future__ import annotations

from torch_mlir import ir
from torch_mlir.dialects import arith

from kitsune_mlir.dialects.access import constant_of

__all__ = ["settle_shifts"]

_SHIFTS = ("arith.shli", "arith.shrsi", "arith.shrui")


def settle_shifts(block: ir.Block) -> None:
    """Guard the shifts by other numbers than constants in the bodies of a function's operations, in place."""
    for op in [o.operation for o in block.operations if o.operation.name == "linalg.generic"]:
        for inner in [o.operation for o in op.regions[0].blocks[0].operations if o.operation.name in _SHIFTS]:
            known = constant_of(inner.operands[1])
            if known is None or not 0 <= known < ir.IntegerType(inner.operands[1].type).width:
                with ir.InsertionPoint(inner), inner.location:
                    _guard(inner)


def _guard(op: ir.Operation) -> None:
    value, by = op.operands
    width = ir.IntegerType(by.type).width
    # Without a sign, a number below zero is a large one.
    beyond = arith.cmpi(arith.CmpIPredicate.uge, by, arith.constant(by.type, width))
    if op.name == "arith.shrsi":  # nothing but the sign is left
        op.operands[1] = arith.select(beyond, arith.constant(by.type, width - 1), by)
        return
    op.operands[1] = arith.select(beyond, arith.constant(by.type, 0), by)
    with ir.InsertionPoint.after(op):
        made = arith.select(beyond, arith.constant(value.type, 0), op.results[0])
    op.results[0].replace_all_uses_except(made, made.owner.operation)
