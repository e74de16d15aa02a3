"""LLVM IR text -> PTX, in process.

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

from kitsune_mlir.codegen.gpu.backend.libdevice import link_libdevice
from kitsune_mlir.codegen.gpu.backend.llvm_compat import downgrade_floats, mark_inline_asm
from kitsune_mlir.errors import CompileError, TargetError

__all__ = ["PTX", "to_ptx"]

TRIPLE = "nvptx64-nvidia-cuda"

PTX = "+ptx87"
"""Target feature that names the PTX version: 8.7 is what CUDA 13.0 drivers assemble."""


def to_ptx(llvm_ir: str, chip: str = "sm_90a", unroll: bool = False) -> str:
    """Compile LLVM IR text (LLVM 24's or LLVM 22's spelling) to PTX.

    Args:
        chip: processor name, as ptxas has it.
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
    machine = _machine(chip)
    module.data_layout = str(machine.target_data)
    if "@__nv_" in llvm_ir:
        link_libdevice(module, machine, chip)
    try:
        module.verify()
    except RuntimeError as error:
        raise CompileError(f"the LLVM IR is invalid: {error}") from error
    _optimize(module, machine, unroll)
    text = machine.emit_assembly(module)
    _check_calls(text, module)
    return text


@functools.cache
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@functools.cache
def _machine(chip: str) -> llvm.TargetMachine:
    target = llvm.Target.from_triple(TRIPLE)
    try:
        return target.create_target_machine(cpu=chip, features=PTX, opt=3)
    except RuntimeError as error:
        raise TargetError(f"LLVM has no target machine for '{chip}' with '{PTX}': {error}") from error


def _optimize(module: llvm.ModuleRef, machine: llvm.TargetMachine, unroll: bool) -> None:
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_unrolling = unroll
    # Both pack float pairs into 64-bit registers, and ptxas then serialises wgmma (it must copy accumulators round it).
    options.loop_vectorization = False
    options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)


def _check_calls(ptx: str, module: llvm.ModuleRef) -> None:
    called = set(re.findall(r"^\.extern \.func\s+(?:\([^)]*\)\s*)?([\w.$]+)", ptx, re.MULTILINE))
    if not called:
        return
    spelled = {re.sub(r"[.$]", "_", f.name): f.name for f in module.functions if f.is_declaration}
    names = sorted(spelled.get(re.sub(r"[.$]", "_", name), name) for name in called)
    raise CompileError(
        "the PTX calls functions that do not exist (intrinsics unknown to LLVM 22, or libm functions): " + ", ".join(names)
    )
