"""Atomics that upstream does not lower: any update of an element becomes a loop of compare-and-swap on its bits.

They are relaxed, at the scope of the device, as those are that upstream lowers (`relax_atomics`).
"""

from __future__ import annotations

from torch_mlir import ir
from torch_mlir.dialects import arith, llvm, memref, scf

from kitsune_mlir.codegen.gpu.backend.relax_atomics import MONOTONIC
from kitsune_mlir.dialects.sizes import element_bytes
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.errors import UnsupportedError

__all__ = ["expand_atomics"]

# arith::AtomicRMWKind, in its order.
_KINDS = (
    *("addf", "addi", "andi", "assign", "maximumf", "maxnumf", "maxsi", "maxui"),
    *("minimumf", "minnumf", "minsi", "minui", "mulf", "muli", "ori", "xori"),
)
_NOT_UPSTREAM = ("mulf", "muli")


def expand_atomics(function: ir.Operation) -> None:
    """Expand `memref.generic_atomic_rmw`, and those `memref.atomic_rmw` that LLVM's instruction does not have."""
    for op in [op for op in walk(function) if op.name in ("memref.generic_atomic_rmw", "memref.atomic_rmw")]:
        if op.name == "memref.generic_atomic_rmw":
            _expand(op, op.operands[0], list(op.operands)[1:])
        else:
            kind = _KINDS[ir.IntegerAttr(op.attributes["kind"]).value]
            if kind in _NOT_UPSTREAM or str(op.results[0].type) == "i1":
                _expand(op, op.operands[1], list(op.operands)[2:], kind)


def _expand(op: ir.Operation, target: ir.Value, indices: list[ir.Value], kind: str = "") -> None:
    element = op.results[0].type
    size = element_bytes(element)
    if size > 8 or isinstance(element, ir.ComplexType):
        raise UnsupportedError(op.name, "an atomic update takes at most 8 bytes", str(element), str(op.location))
    bits = ir.IntegerType.get_signless(8 * size)
    with ir.InsertionPoint(op), op.location:
        pointer = _address(target, indices, size)
        loop = scf.WhileOp([bits], [llvm.load(bits, pointer, alignment=size)])
        before = loop.regions[0].blocks.append(bits, arg_locs=[op.location])
        after = loop.regions[1].blocks.append(bits, arg_locs=[op.location])
        with ir.InsertionPoint(before):
            new = _update(op, kind, _from_bits(before.arguments[0], element))
            outcome = ir.Operation.create(
                "llvm.cmpxchg",
                results=[ir.Type.parse(f"!llvm.struct<({bits}, i1)>")],
                operands=[pointer, before.arguments[0], _to_bits(new, bits)],
                attributes={
                    "success_ordering": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), MONOTONIC),
                    "failure_ordering": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), MONOTONIC),
                    "syncscope": ir.StringAttr.get("device"),
                },
            ).results[0]
            seen = llvm.extractvalue(bits, outcome, [0])
            swapped = llvm.extractvalue(ir.IntegerType.get_signless(1), outcome, [1])
            again = arith.xori(swapped, arith.constant(ir.IntegerType.get_signless(1), True))
            scf.ConditionOp(again, [seen])
        with ir.InsertionPoint(after):
            scf.YieldOp([after.arguments[0]])
        old = _from_bits(loop.results[0], element)
    op.results[0].replace_all_uses_with(old)
    op.erase()


def _update(op: ir.Operation, kind: str, current: ir.Value) -> ir.Value:
    """Emit the new value of the element, from its current one."""
    if kind == "assign":
        return op.operands[0]
    if kind:
        create = ir.Operation.create(f"arith.{kind}", results=[current.type], operands=[op.operands[0], current])
        return create.results[0]
    block = op.regions[0].blocks[0]
    block.arguments[0].replace_all_uses_with(current)
    *inner, end = [o.operation for o in block.operations]
    value = end.operands[0]
    for moved in inner:
        ir.InsertionPoint.current.insert(moved.detach_from_parent())
    return value


def _address(target: ir.Value, indices: list[ir.Value], size: int) -> ir.Value:
    """A pointer to an element, made of the memref's base, offset and strides."""
    metadata = memref.extract_strided_metadata(target)
    rank = len(indices)
    index = ir.IndexType.get()
    at = metadata[1]
    for position, value in enumerate(indices):
        at = arith.addi(at, arith.muli(value, metadata[2 + rank + position]))
    base = memref.extract_aligned_pointer_as_index(target)
    address = arith.addi(base, arith.muli(at, arith.constant(index, size)))
    word = arith.index_cast(ir.IntegerType.get_signless(64), address)
    return llvm.inttoptr(ir.Type.parse("!llvm.ptr"), word)


def _to_bits(value: ir.Value, bits: ir.Type) -> ir.Value:
    if value.type == bits:
        return value
    if str(value.type) == "i1":
        return arith.extui(bits, value)
    if isinstance(value.type, ir.IndexType):
        return arith.index_cast(bits, value)
    return arith.bitcast(bits, value)


def _from_bits(value: ir.Value, element: ir.Type) -> ir.Value:
    if value.type == element:
        return value
    if str(element) == "i1":
        return arith.trunci(element, value)
    if isinstance(element, ir.IndexType):
        return arith.index_cast(element, value)
    return arith.bitcast(element, value)
