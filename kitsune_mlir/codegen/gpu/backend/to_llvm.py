"""Between the tile program and LLVM: the `gpu.module` that holds the kernel, and its lowering to the LLVM dialect."""

from __future__ import annotations

import re

from torch_mlir import ir, passmanager

from kitsune_mlir.codegen.gpu.backend.divisions import without_branches
from kitsune_mlir.codegen.gpu.backend.fastmath import expand_approximate_tanh, set_fastmath
from kitsune_mlir.codegen.gpu.backend.ptx import PIPELINE, PTX, to_ptx, translate
from kitsune_mlir.codegen.gpu.backend.relax_atomics import relax_atomics
from kitsune_mlir.errors import CompileError

__all__ = ["MEMREF_PIPELINE", "finalize", "target_attribute", "to_assembly"]


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


def target_attribute(chip: str, unroll: bool) -> ir.Attribute:
    """`#nvvm.target` of a `gpu.module`: the processor, and whether LLVM is to unroll loops."""
    return ir.Attribute.parse(f'#nvvm.target<chip = "{chip}", features = "{PTX}"{", flags = {unroll}" if unroll else ""}>')


def to_assembly(holder: ir.Operation) -> tuple[str, str]:
    """LLVM IR and PTX of a `gpu.module` in the LLVM dialect, for the processor that its `#nvvm.target` names.

    Raises:
        CompileError: it has no such target, or holds operations of other dialects; see `ptx.to_ptx`.
    """
    target = str(holder.attributes["targets"]) if "targets" in holder.attributes else ""
    named = re.search(r'chip = "(\w+)"', target)
    if named is None:
        raise CompileError(f"the gpu.module {holder.attributes['sym_name']} has no target with a chip")
    with holder.context, holder.location:
        module = ir.Module.create()
        for op in holder.regions[0].blocks[0].operations:
            op.operation.clone(ir.InsertionPoint(module.body))
        llvm_ir = translate(module.operation)
    return llvm_ir, without_branches(to_ptx(llvm_ir, named[1], unroll="unroll" in target))
