"""bf16 on its way to LLVM: the 16-bit integers of the same bits.

MLIR's passes make integers and f32 of all arithmetic of bf16, once casts go through f32; what is left moves bits. LLVM 22 has
holes there. On x86 processors with instructions for bf16 its selection ends the process on vectors of 9, 17 or 33 of them; on
those without it takes some choices through f32 and calls `__truncsfbf2`, which no process need have.
"""

from __future__ import annotations

import re

from torch_mlir import ir

from kitsune_mlir.dialects.verify import operations_named

__all__ = ["bf16_as_integers", "cast_through_f32"]

_CASTS = ("arith.extf", "arith.truncf", "arith.sitofp", "arith.uitofp", "arith.fptosi", "arith.fptoui")

_TOKEN = re.compile(
    r"""
      "(?:[^"\\]|\\.)*"                     # a string: left alone
    | (?<![\w.%@$-])(?P<type>bfloat)\b
    | (?<![\w.%@$-])0xR(?P<bits>[0-9A-Fa-f]{4})\b
    | (?<=[.v\d])bf16(?=[.(])               # in the name of an intrinsic function, such as llvm.masked.load.v8bf16.p0
    """,
    re.VERBOSE,
)


def bf16_as_integers(text: str) -> str:
    """`text`, as LLVM 22 spells it, with i16 in the place of `bfloat`."""
    return "\n".join(_TOKEN.sub(_integer, line) if "bf" in line else line for line in text.split("\n"))


def _integer(match: re.Match[str]) -> str:
    if match["bits"]:
        return f"u0x{match['bits']}"
    return match[0] if match[0].startswith('"') else "i16"


def cast_through_f32(module: ir.Operation) -> None:
    """Casts between bf16 and anything but f32 become two, as in torch: MLIR's passes expand those of f32 only."""
    for op in operations_named(module, *_CASTS):
        value, result = op.operands[0], op.results[0]
        narrow = [_is(type_, ir.BF16Type) for type_ in (value.type, result.type)]
        if not any(narrow) or _is(value.type, ir.F32Type) or _is(result.type, ir.F32Type):
            continue
        with ir.InsertionPoint(op), op.location:
            first, second = ("arith.extf", op.name) if narrow[0] else (op.name, "arith.truncf")
            wide = ir.Operation.create(first, [_like(value.type, ir.F32Type.get())], [value]).results[0]
            result.replace_all_uses_with(ir.Operation.create(second, [result.type], [wide]).results[0])
        op.erase()


def _is(type_: ir.Type, element: type) -> bool:
    return isinstance(type_.element_type if isinstance(type_, ir.VectorType) else type_, element)


def _like(type_: ir.Type, element: ir.Type) -> ir.Type:
    return ir.VectorType.get(type_.shape, element) if isinstance(type_, ir.VectorType) else element
