"""Atomic updates that LLVM has no instruction for become compare-and-swap loops on integers of the same width."""

from __future__ import annotations

from torch_mlir import ir
from torch_mlir.dialects import arith

from kitsune_mlir.dialects.cloning import clone_with
from kitsune_mlir.dialects.verify import operations_named

__all__ = ["lower_atomics"]

_OPERATIONS = {
    arith.AtomicRMWKind.addf: "arith.addf",
    arith.AtomicRMWKind.mulf: "arith.mulf",
    arith.AtomicRMWKind.maximumf: "arith.maximumf",
    arith.AtomicRMWKind.minimumf: "arith.minimumf",
    arith.AtomicRMWKind.maxnumf: "arith.maxnumf",
    arith.AtomicRMWKind.minnumf: "arith.minnumf",
    arith.AtomicRMWKind.muli: "arith.muli",
}
"""Kinds of `memref.atomic_rmw` that are rewritten, with the operation that each stands for."""


def lower_atomics(root: ir.Operation) -> None:
    """Rewrite the atomic updates under `root` that upstream does not lower (on floats, and multiplications)."""
    found = operations_named(root, "memref.atomic_rmw", "memref.generic_atomic_rmw")
    both = {name: [op for op in found if op.name == name] for name in ("memref.atomic_rmw", "memref.generic_atomic_rmw")}
    for op in both["memref.atomic_rmw"]:
        kind = arith.AtomicRMWKind(ir.IntegerAttr(op.attributes["kind"]).value)
        native = kind == arith.AtomicRMWKind.addf and ir.FloatType(op.operands[0].type).width >= 32
        if kind in _OPERATIONS and not native:
            value, target, *indices = op.operands
            name = _OPERATIONS[kind]
            _replace(op, target, indices, lambda old, v=value, n=name: ir.Operation.create(n, [v.type], [old, v]).results[0])
    for op in both["memref.generic_atomic_rmw"]:
        target, *indices = op.operands
        if isinstance(ir.MemRefType(target.type).element_type, ir.FloatType):
            _replace(op, target, indices, lambda old, o=op: _inline(o, old))


def _replace(op: ir.Operation, target: ir.Value, indices: list[ir.Value], update) -> None:
    """Put a loop on the integer bits of `target` in the place of `op`; `update(old)` emits the new value."""
    type_ = ir.MemRefType(target.type)
    element = type_.element_type
    stored = ir.IntegerType.get_signless(element.width)
    with ir.InsertionPoint(op), op.location:
        if stored != element:
            integers = ir.MemRefType.get(type_.shape, stored, type_.layout)
            target = ir.Operation.create("builtin.unrealized_conversion_cast", [integers], [target]).results[0]
        made = ir.Operation.create("memref.generic_atomic_rmw", [stored], [target, *indices], regions=1)
        block = made.regions[0].blocks.append(stored)
        with ir.InsertionPoint(block):
            old = block.arguments[0]
            new = update(old if stored == element else arith.bitcast(element, old))
            ir.Operation.create("memref.atomic_yield", [], [new if stored == element else arith.bitcast(stored, new)])
        result = made.results[0] if stored == element else arith.bitcast(element, made.results[0])
    op.results[0].replace_all_uses_with(result)
    op.erase()


def _inline(op: ir.Operation, old: ir.Value) -> ir.Value:
    """The body of a `memref.generic_atomic_rmw`, with `old` for its argument; returns what it yields."""
    block = op.regions[0].blocks[0]
    mapping: dict[ir.Value, ir.Value] = {block.arguments[0]: old}
    *body, end = [o.operation for o in block.operations]
    for inner in body:
        clone_with(inner, mapping)
    return mapping.get(end.operands[0], end.operands[0])
