"""Between the tile program and LLVM: the `gpu.module` that holds the kernel, and its lowering to the LLVM dialect."""

from __future__ import annotations

import dataclasses
import re

from torch_mlir import ir, passmanager
from torch_mlir.dialects import llvm

from kitsune_mlir.codegen.gpu.backend.divisions import without_branches
from kitsune_mlir.codegen.gpu.backend.fastmath import expand_approximate_tanh, set_fastmath
from kitsune_mlir.codegen.gpu.backend.ptx import PTX, to_ptx
from kitsune_mlir.codegen.gpu.backend.relax_atomics import relax_atomics
from kitsune_mlir.errors import CompileError

__all__ = ["Text", "finalize", "target_attribute", "to_assembly", "to_llvm_ir", "to_text"]

PIPELINE = (
    "convert-vector-to-scf",
    "expand-strided-metadata",
    "lower-affine",
    "convert-complex-to-standard",
    "math-extend-to-supported-types{target-type=f32}",
    "convert-scf-to-cf",  # first: generic atomics become loops of basic blocks
    "finalize-memref-to-llvm",
    "convert-complex-to-llvm",
    "arith-expand",
    "convert-math-to-funcs{min-width-of-fpowi-exponent=65}",  # ipowi only
    "convert-math-to-nvvm",  # libdevice calls
    "convert-math-to-llvm",  # what is left: trunc, ctpop, ...
    "convert-vector-to-llvm",
    "convert-index-to-llvm",
    "convert-nvvm-to-llvm",  # operations that become inline PTX
    "convert-arith-to-llvm",
    "convert-cf-to-llvm",
    "convert-ub-to-llvm",
    "convert-func-to-llvm",
    "reconcile-unrealized-casts",
)
"""The MLIR passes that `finalize` runs on a `builtin.module`, in this order: memrefs become pointers first."""


def finalize(module: ir.Operation, fastmath: str = "contract") -> None:
    """Lower all kernels of a module to the LLVM dialect.

    Args:
        fastmath: flags added to those of all arith and math operations (`fastmath.set_fastmath`).

    Raises:
        CompileError: a pass failed.
    """
    with module.context:
        set_fastmath(module, fastmath)
        expand_approximate_tanh(module)
        try:
            passes = passmanager.PassManager.parse(f"builtin.module({','.join(PIPELINE)})")
            passes.enable_verifier(False)  # after each pass it takes a third of the time; the result is verified below
            passes.run(module)
            module.verify()
        except ir.MLIRError as error:
            raise CompileError(f"lowering to LLVM failed: {error}") from error
        relax_atomics(module)


def to_llvm_ir(module: ir.Module, fastmath: str = "contract") -> str:
    """Lower a module of `llvm.func` kernels (marked `nvvm.kernel`), which is left unchanged, to LLVM IR text; as `finalize`.

    Raises:
        CompileError: a pass failed, or an operation has no lowering (all such operations are named).
    """
    clone = module.operation.clone().operation
    finalize(clone, fastmath)
    return _translate(clone)


def target_attribute(chip: str, unroll: bool) -> ir.Attribute:
    """`#nvvm.target` of a `gpu.module`: the processor, and whether LLVM is to unroll loops."""
    return ir.Attribute.parse(f'#nvvm.target<chip = "{chip}", features = "{PTX}"{", flags = {unroll}" if unroll else ""}>')


@dataclasses.dataclass(frozen=True)
class Text:
    """LLVM IR of a kernel, the processor that it is for, and whether LLVM is to unroll loops."""

    llvm_ir: str
    chip: str
    unroll: bool


def to_assembly(text: Text) -> str:
    """PTX of a kernel; needs no MLIR, so that threads may do it. Errors as of `ptx.to_ptx`."""
    return without_branches(to_ptx(text.llvm_ir, text.chip, text.unroll))


def to_text(holder: ir.Operation) -> Text:
    """LLVM IR of a `gpu.module` in the LLVM dialect, for the processor that its `#nvvm.target` names.

    Raises:
        CompileError: it has no such target, or holds operations of other dialects.
    """
    target = str(holder.attributes["targets"]) if "targets" in holder.attributes else ""
    named = re.search(r'chip = "(\w+)"', target)
    if named is None:
        raise CompileError(f"the gpu.module {holder.attributes['sym_name']} has no target with a chip")
    with holder.context, holder.location:
        module = ir.Module.create()
        for op in holder.regions[0].blocks[0].operations:
            op.operation.clone(ir.InsertionPoint(module.body))
        llvm_ir = _translate(module.operation)
    return Text(llvm_ir, named[1], "unroll" in target)


def _translate(module: ir.Operation) -> str:
    """LLVM IR text (LLVM 24's spelling) of a module in the LLVM dialect.

    Raises:
        CompileError: the module holds operations of other dialects (all of them are named).
    """
    left = _foreign_operations(module)
    if left:
        # Translating these would end the process, not raise.
        raise CompileError(f"no lowering to LLVM IR for: {', '.join(sorted(left))}")
    with module.context:
        text = llvm.translate_module_to_llvmir(module)
    if text is None:
        raise CompileError("the module could not be translated to LLVM IR")
    return text


def _foreign_operations(root: ir.Operation) -> set[str]:
    found: set[str] = set()

    def visit(operation: ir.Operation) -> ir.WalkResult:
        name = operation.name
        if not name.startswith(("llvm.", "nvvm.")) and name != "builtin.module":
            found.add(name)
        return ir.WalkResult.ADVANCE

    root.walk(visit)
    return found
