"""Between the tile program and LLVM: the `gpu.module` that holds the kernel, and its lowering to the LLVM dialect."""

from __future__ import annotations

from torch_mlir import ir, passmanager

from kitsune_mlir.codegen.gpu.backend.fastmath import expand_approximate_tanh, set_fastmath
from kitsune_mlir.codegen.gpu.backend.ptx import PIPELINE
from kitsune_mlir.codegen.gpu.backend.relax_atomics import relax_atomics
from kitsune_mlir.errors import CompileError

__all__ = ["MEMREF_PIPELINE", "finalize", "unwrap"]


MEMREF_PIPELINE: tuple[str, ...] = (
    "convert-vector-to-scf",
    "expand-strided-metadata",
    "lower-affine",
    "convert-complex-to-standard",
    "math-extend-to-supported-types{target-type=f32}",
    "convert-scf-to-cf",  # first: generic atomics become loops of basic blocks
    "finalize-memref-to-llvm",
    "convert-complex-to-llvm",
)
"""What brings memrefs to pointers; `ptx.PIPELINE` comes after it."""


def finalize(module: ir.Operation, fastmath: str = "contract") -> None:
    """Lower every `gpu.module` in a module to the LLVM dialect.

    Args:
        fastmath: flags added to those of all arith and math operations (`fastmath.set_fastmath`).

    Raises:
        CompileError: a pass failed.
    """
    with module.context:
        set_fastmath(module, fastmath)
        expand_approximate_tanh(module)
        pipeline = ",".join((*MEMREF_PIPELINE, *PIPELINE))
        try:
            passes = passmanager.PassManager.parse(f"builtin.module({pipeline})")
            passes.enable_verifier(False)  # after each pass it takes a third of the time; the result is verified below
            passes.run(module)
            module.verify()
        except ir.MLIRError as error:
            raise CompileError(f"lowering to LLVM failed: {error}") from error
        relax_atomics(module)


def unwrap(holder: ir.Operation) -> ir.Module:
    """A module with copies of what a `gpu.module` holds, as the translation to LLVM IR wants it."""
    with holder.context, holder.location:
        module = ir.Module.create()
        for op in holder.regions[0].blocks[0].operations:
            op.operation.clone(ir.InsertionPoint(module.body))
        return module
