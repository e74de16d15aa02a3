"""Functions over memrefs as functions over bare pointers of the kernel's module, and calls of them.

The memrefs stay inside: each is made from its pointer by building the descriptor that `finalize-memref-to-llvm` gives memrefs,
and casting it, which that pass resolves. So the kernel reads well at the gpu level and needs no memref calling convention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch_mlir import ir
from torch_mlir.dialects import arith, builtin, llvm

from kitsune_mlir.codegen.gpu.emit.value import Value
from kitsune_mlir.dialects.verify import walk

__all__ = ["call", "as_memref", "outline"]


def _pointer_type(type: ir.MemRefType) -> str:
    space = ir.IntegerAttr(type.memory_space).value if type.memory_space is not None else 0
    return f"!llvm.ptr<{space}>" if space else "!llvm.ptr"


def _lowered(type: ir.Type) -> str:
    if isinstance(type, ir.MemRefType):
        return _pointer_type(type)
    return "i64" if isinstance(type, ir.IndexType) else str(type)


def as_memref(pointer: ir.Value, type: ir.MemRefType) -> ir.Value:
    """A static, contiguous memref that starts at `pointer`, made at the current insertion point."""
    rank, bare = type.rank, _pointer_type(type).removeprefix("!llvm.")
    arrays = f", array<{rank} x i64>, array<{rank} x i64>" if rank else ""
    struct = ir.Type.parse(f"!llvm.struct<({bare}, {bare}, i64{arrays})>")
    word = ir.IntegerType.get_signless(64)
    value = llvm.mlir_undef(struct)
    value = llvm.insertvalue(value, pointer, [0])
    value = llvm.insertvalue(value, pointer, [1])
    value = llvm.insertvalue(value, llvm.mlir_constant(ir.IntegerAttr.get(word, 0)), [2])
    stride = 1
    for dim in reversed(range(rank)):
        value = llvm.insertvalue(value, llvm.mlir_constant(ir.IntegerAttr.get(word, type.shape[dim])), [3, dim])
        value = llvm.insertvalue(value, llvm.mlir_constant(ir.IntegerAttr.get(word, stride)), [4, dim])
        stride *= type.shape[dim]
    return builtin.UnrealizedConversionCastOp([type], [value]).results[0]


def outline(function: ir.Operation, name: str, module: ir.Block, symbol: Callable[[str], str]) -> None:
    """Move the body of a `func.func` without results into a new `llvm.func @name`, and its constants with it.

    Args:
        function: its arguments are memrefs (which become pointers of the same address space), index (i64), or LLVM's
            types. It is left without a body.
        module: block of the module that gets the function.
        symbol: gives a free symbol of that module for a wanted one.
    """
    block = function.regions[0].blocks[0]
    constants = [op.operation for op in function.parent.regions[0].blocks[0].operations if op.operation.name == "memref.global"]
    renamed: dict[str, str] = {}
    for constant in constants:
        old = ir.StringAttr(constant.attributes["sym_name"]).value
        renamed[old] = symbol(f"{name}_{old.strip('_')}")
        constant.attributes["sym_name"] = ir.StringAttr.get(renamed[old])
        copied = constant.clone(ir.InsertionPoint(module))
        del copied
    arguments = list(block.arguments)
    declared = ", ".join(f"%arg{n}: {_lowered(argument.type)}" for n, argument in enumerate(arguments))
    parsed = ir.Operation.parse(
        f"llvm.func internal @{name}({declared}) attributes {{always_inline}} {{ llvm.return }}", source_name=name
    )
    ir.InsertionPoint(module).insert(parsed)
    target = parsed.operation.regions[0].blocks[0]
    end = list(target.operations)[0].operation
    with ir.InsertionPoint(end):
        for old, new in zip(arguments, target.arguments, strict=True):
            if isinstance(old.type, ir.MemRefType):
                old.replace_all_uses_with(as_memref(new, ir.MemRefType(old.type)))
            elif isinstance(old.type, ir.IndexType):
                old.replace_all_uses_with(arith.index_cast(old.type, new))
            else:
                old.replace_all_uses_with(new)
    for op in list(block.operations):
        op = op.operation
        if op.name == "func.return":
            op.erase()
            continue
        for inner in (op, *walk(op)):
            if inner.name == "memref.get_global":
                old = ir.FlatSymbolRefAttr(inner.attributes["name"]).value
                inner.attributes["name"] = ir.FlatSymbolRefAttr.get(renamed.get(old, old))
        op.move_before(end)


def call(name: str, operands: Sequence[Value]) -> None:
    """Call an `llvm.func` without results."""
    llvm.CallOp(None, [operand.ir for operand in operands], [], [], callee=ir.FlatSymbolRefAttr.get(name))
