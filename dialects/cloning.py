"""Clones of operations with other operands, also where regions use them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch_mlir import ir

__all__ = ["clone_for", "clone_with", "replace_uses_inside"]


def clone_with(op: ir.Operation, mapping: dict[ir.Value, ir.Value]) -> ir.Operation:
    """Clone `op` at the insertion point, its operands and the values its regions use replaced by `mapping`, and extend it."""
    copy = op.clone().operation
    replace_uses_inside(copy, mapping)
    mapping.update(zip(op.results, copy.results, strict=True))
    return copy


def replace_uses_inside(op: ir.Operation, mapping: Mapping[ir.Value, ir.Value]) -> None:
    """Replace operands of `op` and of everything nested in it by `mapping`."""
    for i, value in enumerate(op.operands):
        if value in mapping:
            op.operands[i] = mapping[value]
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                replace_uses_inside(inner.operation, mapping)


def clone_for(op: ir.Operation, readers: Sequence[ir.Operation]) -> None:
    """Let each of some operations read a clone of an op with one result, which stands before it."""
    for reader in readers:
        with ir.InsertionPoint(reader):
            copy = op.clone().operation
        for number, operand in enumerate(reader.operands):
            if operand == op.results[0]:
                reader.operands[number] = copy.results[0]
