"""Inline PTX, for what no typed operation reaches. All inline PTX of the project goes through `inline_ptx`.

What needs it, and why (tried with the MLIR of LLVM 24 and the NVPTX backend of LLVM 22):

* `wgmma.mma_async` with A in registers: the typed operation takes descriptors only. The last `wgmma.wait_group`: the
  accumulators must be operands of it, else LLVM moves arithmetic on them above it.
* `mbarrier.arrive` on another block's barrier: the typed one is `.release.cluster`, a full memory barrier each time.
* `red`, and `atom` with an order or scope: `llvm.atomicrmw` silently drops both. Vector reductions (`.v4.bf16x2`)
have none.
* `cp.reduce.async.bulk`: the intrinsic was renamed between LLVM 22 and 24.
* `fresh`: LLVM has no way to keep address arithmetic inside a loop, beside the code that uses it.
* Cache hints on plain loads and stores; `tanh.approx` (see `backend/fastmath.py`); `%globaltimer`.

A call with side effects is marked `convergent` when the IR text is written (`backend.llvm_compat.mark_inline_asm`).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch_mlir import ir
from torch_mlir.dialects import llvm

from kitsune_mlir.codegen.gpu.emit.value import TypeLike, Value, as_type, wrap

__all__ = ["fresh", "inline_ptx", "pinned"]


def inline_ptx(
    code: str, constraints: str, operands: Sequence[Value] = (), results: Sequence[TypeLike] = (), pure: bool = False
) -> list[Value]:
    """Emit `code` with LLVM's inline assembly syntax: `$0`, `$1`, ... are first the results, then the operands.

    Args:
        constraints: LLVM's constraint string: `=f` result f32, `=r` i32, `=l` i64, `=h` i16; operands the same
            without `=`; a number ties an operand to that result; `~{memory}` where memory is read or written.
        results: types of the results; more than one come back as a struct, which is taken apart here.
        pure: no side effects: may be moved, merged and dropped.
    """
    types = [as_type(type) for type in results]
    if len(types) > 1:
        result = ir.Type.parse(f"!llvm.struct<({', '.join(map(str, types))})>")
    else:
        result = types[0] if types else None
    operation = llvm.InlineAsmOp(
        result, [operand.ir for operand in operands], code, constraints, has_side_effects=None if pure else True
    )
    if result is None:
        return []
    if len(types) == 1:
        return [wrap(operation.res)]
    return [wrap(llvm.extractvalue(type, operation.res, [index])) for index, type in enumerate(types)]


def fresh(value: Value) -> Value:
    """The same i32, in a way that the compiler cannot see.

    What is computed from it is computed where it stands: not hoisted out of a loop, where it would hold registers all the time.
    """
    return inline_ptx("mov.b32 $0, $1;", "=r,r", [value], ["i32"])[0]


def pinned(values: Sequence[Value]) -> list[Value]:
    """The same i32 or f32 values; they are computed here, and not moved to their uses by LLVM."""
    letters = ["f" if str(value.type) == "f32" else "r" for value in values]
    constraints = [f"={letter}" for letter in letters] + [str(index) for index in range(len(values))]
    return inline_ptx("// pinned", ",".join(constraints), values, [value.type for value in values])
