"""MLIR -> LLVM IR text -> PTX, in process.

The MLIR wheel has every pass but no NVPTX backend; llvmlite has the backend (LLVM 22). They meet in LLVM IR text, which
`backend.llvm_compat` brings from LLVM 24's spelling to LLVM 22's. An intrinsic that LLVM 22 does not know, or a libm function,
becomes a silent call to a function that exists nowhere: `to_ptx` looks for those and names them.

Math functions call NVIDIA's libdevice (`__nv_expf`, ...; accurate to 1-2 ulp, the code that nvcc uses), whose bitcode
is linked in (`backend/libdevice.py`). With `fastmath<afn>` on a math operation its approximation is taken instead
(`backend/fastmath.py`).
"""

from __future__ import annotations

import functools
import re

import llvmlite.binding as llvm
from torch_mlir import ir, passmanager
from torch_mlir.dialects import llvm as llvm_dialect

from kitsune_mlir.codegen.gpu.backend.fastmath import expand_approximate_tanh, set_fastmath
from kitsune_mlir.codegen.gpu.backend.libdevice import link_libdevice
from kitsune_mlir.codegen.gpu.backend.llvm_compat import downgrade_floats, mark_inline_asm
from kitsune_mlir.errors import CompileError, TargetError

__all__ = ["PIPELINE", "to_llvm_ir", "to_ptx", "translate"]

TRIPLE = "nvptx64-nvidia-cuda"

PTX = "+ptx87"
"""Target feature that names the PTX version: 8.7 is what CUDA 13.0 drivers assemble."""

PIPELINE: tuple[str, ...] = (
    "convert-vector-to-scf",
    "arith-expand",
    "convert-scf-to-cf",
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
"""The MLIR passes that `to_llvm_ir` runs on a `builtin.module`, in this order."""


def to_llvm_ir(module: ir.Module, fastmath: str = "contract") -> str:
    """Lower a module of `llvm.func` kernels and translate it to LLVM IR text (LLVM 24's spelling).

    Args:
        module: holds `llvm.func` (kernels marked `nvvm.kernel`) and globals; bodies may use scf, cf, arith, math,
            vector, index, ub and nvvm operations on scalars, vectors and `!llvm.ptr`; no memref. It is left
            unchanged.
        fastmath: flags added to those of every arith and math operation; see `backend/fastmath.py`.

    Raises:
        CompileError: a pass failed, or an operation has no lowering (all such operations are named).
    """
    clone = module.operation.clone().operation
    with clone.context:
        set_fastmath(clone, fastmath)
        expand_approximate_tanh(clone)
        try:
            passmanager.PassManager.parse(f"builtin.module({','.join(PIPELINE)})").run(clone)
        except ir.MLIRError as error:
            raise CompileError(f"lowering to LLVM failed: {error}") from error
    return translate(clone)


def translate(module: ir.Operation) -> str:
    """LLVM IR text (LLVM 24's spelling) of a module in the LLVM dialect.

    Raises:
        CompileError: the module holds operations of other dialects (all of them are named).
    """
    left = _foreign_operations(module)
    if left:
        # Translating these would end the process, not raise.
        raise CompileError(f"no lowering to LLVM IR for: {', '.join(sorted(left))}")
    with module.context:
        text = llvm_dialect.translate_module_to_llvmir(module)
    if text is None:
        raise CompileError("the module could not be translated to LLVM IR")
    return text


def to_ptx(llvm_ir: str, chip: str = "sm_90a", ptx: str = PTX, opt: int = 2, unroll: bool = False) -> str:
    """Compile LLVM IR text (LLVM 24's or LLVM 22's spelling) to PTX.

    Args:
        chip: processor name, as ptxas has it.
        ptx: target feature that names the PTX version.
        opt: optimisation level of the middle end (0 leaves the IR as it is).
        unroll: let LLVM unroll loops. Off, because generated code is unrolled where it should be, and wgmma code in
            particular gets slower and larger when unrolled again.

    Raises:
        CompileError: the IR does not parse or verify, or the PTX calls functions that do not exist (they are named).
        TargetError: libdevice is needed and not installed, or `chip` is unknown.
    """
    _initialize()
    try:
        module = llvm.parse_assembly(mark_inline_asm(downgrade_floats(llvm_ir)))
    except (RuntimeError, ValueError) as error:
        raise CompileError(f"LLVM 22 cannot read the IR: {error}") from error
    module.triple = TRIPLE
    machine = _machine(chip, ptx)
    module.data_layout = str(machine.target_data)
    if "@__nv_" in llvm_ir:
        link_libdevice(module, machine, chip)
    try:
        module.verify()
    except RuntimeError as error:
        raise CompileError(f"the LLVM IR is invalid: {error}") from error
    if opt:
        _optimize(module, machine, opt, unroll)
    text = machine.emit_assembly(module)
    _check_calls(text, module)
    return text


@functools.cache
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@functools.cache
def _machine(chip: str, ptx: str) -> llvm.TargetMachine:
    target = llvm.Target.from_triple(TRIPLE)
    try:
        return target.create_target_machine(cpu=chip, features=ptx, opt=3)
    except RuntimeError as error:
        raise TargetError(f"LLVM has no target machine for '{chip}' with '{ptx}': {error}") from error


def _optimize(module: llvm.ModuleRef, machine: llvm.TargetMachine, level: int, unroll: bool) -> None:
    options = llvm.create_pipeline_tuning_options(speed_level=level)
    options.loop_unrolling = unroll
    # Both pack float pairs into 64-bit registers, and ptxas then serialises wgmma (it must copy accumulators round it).
    options.loop_vectorization = False
    options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)


def _foreign_operations(root: ir.Operation) -> set[str]:
    found: set[str] = set()

    def visit(operation: ir.Operation) -> ir.WalkResult:
        name = operation.name
        if not name.startswith(("llvm.", "nvvm.")) and name != "builtin.module":
            found.add(name)
        return ir.WalkResult.ADVANCE

    root.walk(visit)
    return found


def _check_calls(ptx: str, module: llvm.ModuleRef) -> None:
    called = set(re.findall(r"^\.extern \.func\s+(?:\([^)]*\)\s*)?([\w.$]+)", ptx, re.MULTILINE))
    if not called:
        return
    spelled = {re.sub(r"[.$]", "_", f.name): f.name for f in module.functions if f.is_declaration}
    names = sorted(spelled.get(re.sub(r"[.$]", "_", name), name) for name in called)
    raise CompileError(
        "the PTX calls functions that do not exist (intrinsics unknown to LLVM 22, or libm functions): " + ", ".join(names)
    )
