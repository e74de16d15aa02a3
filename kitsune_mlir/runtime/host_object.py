"""LLVM IR text to an object file for this machine.

Needs llvmlite, and no compiler module: packages use it on other processors.
"""

from __future__ import annotations

import ctypes.util
import functools

import llvmlite.binding as llvm

from kitsune_mlir.errors import CompileError

__all__ = ["emit_object", "host_machine"]


def emit_object(text: str, level: int = 2) -> bytes:
    """Compile LLVM IR text to an object file for this machine.

    Raises:
        CompileError: the IR does not parse, or it calls functions that do not exist.
    """
    machine = host_machine()
    try:
        module = llvm.parse_assembly(text)
        module.triple = llvm.get_process_triple()
        module.data_layout = str(machine.target_data)
        module.verify()
    except (RuntimeError, ValueError) as error:
        raise CompileError(f"LLVM 22 cannot read the IR: {error}") from error
    missing = [f.name for f in module.functions if f.is_declaration and not _exists(f.name)]
    if missing:
        raise CompileError(f"the code calls functions that do not exist: {', '.join(missing)}")
    options = llvm.create_pipeline_tuning_options(speed_level=level)
    options.loop_vectorization = True
    options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return machine.emit_object(module)


def _exists(name: str) -> bool:
    return name.startswith("llvm.") or llvm.address_of_symbol(name) is not None


@functools.cache
def host_machine() -> llvm.TargetMachine:
    """The target machine of the processor that this process runs on."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    libm = ctypes.util.find_library("m")
    if libm:
        llvm.load_library_permanently(libm)
    target = llvm.Target.from_triple(llvm.get_process_triple())
    features = llvm.get_host_cpu_features().flatten()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=2, reloc="pic", codemodel="default", jit=True
    )
