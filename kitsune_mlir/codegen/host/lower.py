"""From functions on memrefs, vectors and loops to LLVM IR text, and from there to an object file for this machine."""

from __future__ import annotations

from torch_mlir import ir, passmanager
from torch_mlir.dialects import llvm as llvm_dialect

from kitsune_mlir.codegen.gpu.backend.llvm_compat import downgrade_floats
from kitsune_mlir.codegen.host.asserts import replace_aborts
from kitsune_mlir.codegen.host.bf16 import bf16_as_integers, cast_through_f32
from kitsune_mlir.dialects.verify import names_in
from kitsune_mlir.errors import CompileError
from kitsune_mlir.runtime.host_object import emit_object

__all__ = ["PIPELINE", "emit_object", "to_llvm_ir"]

EXPAND = "arith-expand{include-bf16=true}"

PIPELINE: tuple[str, ...] = (
    "scf-forall-to-for",
    "memref-expand",
    "convert-vector-to-scf",
    "expand-strided-metadata",
    "lower-affine",
    "canonicalize",
    "cse",
    "convert-scf-to-cf",
    "convert-complex-to-libm",
    "convert-complex-to-standard",
    EXPAND,
    "convert-math-to-funcs{min-width-of-fpowi-exponent=65}",  # ipowi only
    "convert-math-to-llvm{approximate-log1p=false}",
    "convert-math-to-libm",
    "convert-complex-to-llvm",
    "convert-vector-to-llvm",
    "convert-index-to-llvm",
    "convert-arith-to-llvm",
    "finalize-memref-to-llvm",  # after arith: atomic updates want their bodies lowered
    "convert-cf-to-llvm",
    "convert-ub-to-llvm",
    "convert-func-to-llvm{use-bare-ptr-memref-call-conv=true}",
    "reconcile-unrealized-casts",
)
"""The upstream passes that `to_llvm_ir` runs, in this order."""


def to_llvm_ir(module: ir.Operation, entry: str, worker: str) -> tuple[str, list[str]]:
    """Lower a module to LLVM IR text (in LLVM 22's spelling) with the function `entry`; also the messages of its assertions.

    `entry(ptr pointers, ptr control, ptr scratch, i64 requests)` calls `worker`. The module is consumed.

    Raises:
        CompileError: a pass failed, or an operation has no lowering (all such operations are named).
    """
    expand = PIPELINE.index(EXPAND)
    try:
        passmanager.PassManager.parse(f"builtin.module({','.join(PIPELINE[:expand])})").run(module)
        cast_through_f32(module)  # here: canonicalization makes one cast of two
        passmanager.PassManager.parse(f"builtin.module({','.join(PIPELINE[expand:])})").run(module)
    except ir.MLIRError as error:
        raise CompileError(f"lowering to LLVM failed: {error}") from error
    messages = replace_aborts(module)
    left = {name for name in names_in(module) if not name.startswith("llvm.") and name != "builtin.module"}
    if left:  # translating these would end the process, not raise
        raise CompileError(f"no lowering to LLVM IR for: {', '.join(sorted(left))}")
    text = llvm_dialect.translate_module_to_llvmir(module)
    if text is None:
        raise CompileError("the module could not be translated to LLVM IR")
    return bf16_as_integers(downgrade_floats(text)) + _entry(entry, worker), messages


def _entry(name: str, worker: str) -> str:
    passed = "ptr %pointers, ptr %control, ptr %scratch, i64 %requests"
    return f'\ndefine void @"{name}"({passed}) {{\n  call void @"{worker}"({passed})\n  ret void\n}}\n'
