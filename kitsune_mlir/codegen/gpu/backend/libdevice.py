"""NVIDIA's libdevice: the bitcode behind `__nv_expf` and its like, prepared once a process and linked into kernels.

libdevice asks `__nvvm_reflect` for the precision wanted. LLVM 22 answers 0 ("approximate") to the question about square
roots, so the questions are answered here: no flushing of denormals, correctly rounded square roots, the chip's
architecture.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import llvmlite.binding as llvm

from kitsune_mlir.errors import TargetError

__all__ = ["find_libdevice", "link_libdevice"]

_STRING = re.compile(r'^(@[\w.]+) = private [^\n]*c"(__CUDA_\w+)\\00"', re.MULTILINE)
_QUESTION = re.compile(r"call i32 @__nvvm_reflect\(ptr (@[\w.]+)\)[^\n]*")


def find_libdevice() -> Path | None:
    """Path of `libdevice.10.bc`: from the package `nvidia-nvvm` or an installed CUDA toolkit; None if there is none."""
    try:
        from cuda.pathfinder import BitcodeLibNotFoundError, find_bitcode_lib
    except ImportError:
        return None
    try:
        return Path(find_bitcode_lib("device"))
    except BitcodeLibNotFoundError:
        return None


def link_libdevice(module: llvm.ModuleRef, machine: llvm.TargetMachine, chip: str) -> None:
    """Link into `module` the libdevice functions that it declares, as internal functions, and those that they call.

    Raises:
        TargetError: no libdevice is installed.
    """
    declared = {function.name for function in module.functions if function.is_declaration}
    library = llvm.parse_bitcode(_prepared(machine, chip, frozenset(name for name in declared if name.startswith("__nv_"))))
    names = [function.name for function in library.functions if not function.is_declaration]
    module.link_in(library)
    for name in names:
        module.get_function(name).linkage = "internal"


@functools.lru_cache(maxsize=64)
def _prepared(machine: llvm.TargetMachine, chip: str, names: frozenset[str]) -> bytes:
    """Bitcode of the functions of these names and what they call: to read all of libdevice takes longer than most kernels."""
    path = find_libdevice()
    if path is None:
        raise TargetError(
            "math functions on the GPU need libdevice.10.bc: install the package 'nvidia-nvvm' (in the extra 'gpu') "
            "or set CUDA_HOME to a CUDA toolkit"
        )
    library = llvm.parse_bitcode(path.read_bytes())
    for function in library.functions:
        if not function.is_declaration and function.name not in names:
            function.linkage = "internal"  # so that what is not called is dropped
    manager = llvm.create_new_module_pass_manager()
    manager.add_global_dead_code_eliminate_pass()
    manager.run(library, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
    text = str(library)
    answers = {"__CUDA_FTZ": 0, "__CUDA_PREC_SQRT": 1, "__CUDA_ARCH": 10 * int(re.findall(r"\d+", chip)[0])}
    questions = {symbol: answers[name] for symbol, name in _STRING.findall(text)}
    answered = _QUESTION.sub(lambda match: f"add i32 0, {questions[match[1]]}", text)
    return llvm.parse_assembly(answered).as_bitcode()
