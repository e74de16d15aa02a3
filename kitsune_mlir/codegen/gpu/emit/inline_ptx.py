"""Inline PTX, for what no typed operation reaches. All inline PTX of the project goes through `inline_ptx`.

It is `nvvm.inline_ptx`, or `llvm.inline_asm` where results have the registers of operands or nothing has side effects: the
former always has effects, and gives no results for operands that it changes.

What needs it, and why (tried with the MLIR of LLVM 24 and the NVPTX backend of LLVM 22):

* `wgmma.mma_async` with A in registers: the typed operation takes descriptors only. The last `wgmma.wait_group`: the
  accumulators must be operands of it, else LLVM moves arithmetic on them above it.
* `mbarrier.arrive` on another block's barrier: the typed one is `.release.cluster`, a full memory barrier each time, or
  `.relaxed.cluster`, which orders nothing.
* `red`, and `atom` with an order or scope: `llvm.atomicrmw` silently drops both (`llvm.cmpxchg` keeps them). Vector
  reductions (`.v4.bf16x2`) have none.
* `cp.async`: the typed operation takes 64-bit addresses of shared memory, so that all that makes them has 64 bits, too.
* `cp.reduce.async.bulk`: the intrinsic was renamed between LLVM 22 and 24.
* The poll of a semaphore: LLVM would rotate and duplicate the loop.
* `fresh`: LLVM has no way to keep address arithmetic inside a loop, beside the code that uses it.
* Cache hints on plain loads and stores.

A call with side effects is marked `convergent` when the IR text is written (`backend.llvm_compat.mark_inline_asm`).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch_mlir import ir
from torch_mlir.dialects import llvm, nvvm

from kitsune_mlir.codegen.gpu.emit.value import TypeLike, Value, as_type, wrap

__all__ = ["fresh", "inline_ptx", "pinned"]


def inline_ptx(
    code: str,
    operands: Sequence[Value] = (),
    results: Sequence[TypeLike] = (),
    *,
    memory: bool = False,
    pure: bool = False,
    tied: Sequence[Value] = (),
) -> list[Value]:
    """Emit PTX in which `$0`, `$1`, ... are first the results, then `tied`, then the operands; the results.

    Args:
        operands: i16, i32, i64, f32, f64 or pointers to global memory (shared memory: `memory.shared_address`).
        results: their types.
        memory: it reads or writes memory.
        pure: no side effects: may be moved, merged and dropped.
        tied: values that are in the results' registers before, one for each result.
    """
    types = [as_type(type) for type in results]
    values = [value.ir for value in (*tied, *operands)]
    if not pure and not tied:
        return [wrap(result) for result in nvvm.InlinePtxOp(types, values, [], code, memoryClobber=memory or None).results]
    # `nvvm.inline_ptx` always has side effects, and instead of results it changes what later uses of a tied value see.
    constraints = [f"={_register(type)}" for type in types] + [str(number) for number in range(len(tied))]
    constraints += [_register(operand.type) for operand in operands] + (["~{memory}"] if memory else [])
    result = types[0] if len(types) == 1 else ir.Type.parse(f"!llvm.struct<({', '.join(map(str, types))})>")
    made = llvm.InlineAsmOp(result, values, code, ",".join(constraints), has_side_effects=None if pure else True).res
    return [wrap(made)] if len(types) == 1 else [wrap(llvm.extractvalue(type, made, [n])) for n, type in enumerate(types)]


def _register(type: ir.Type) -> str:
    """LLVM's constraint for a register of a type."""
    return {"i16": "h", "i32": "r", "i64": "l", "f32": "f", "f64": "d"}.get(str(type), "l")


def fresh(value: Value) -> Value:
    """The same i32, in a way that the compiler cannot see.

    What is computed from it is computed where it stands: not hoisted out of a loop, where it would hold registers all the time.
    """
    return inline_ptx("mov.b32 $0, $1;", [value], ["i32"])[0]


def pinned(values: Sequence[Value]) -> list[Value]:
    """The same i32 or f32 values; they are computed here, and not moved to their uses by LLVM."""
    return inline_ptx("// pinned", results=[value.type for value in values], tied=values)
