"""Runs a GPU kernel on the processor, one thread after the other: LLVM compiles the kernel's own IR for this machine.

For kernels without anything between threads (barriers, shuffles, TMA, wgmma): one block, data in f32 or integers. Reductions
to global memory become plain additions, shared memory an ordinary array. What it shows is which addresses a kernel touches.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence

import llvmlite.binding as llvm
import numpy as np

from kitsune_mlir.codegen.gpu.backend.llvm_compat import downgrade_floats
from kitsune_mlir.codegen.gpu.backend.to_llvm import to_llvm_ir
from kitsune_mlir.codegen.gpu.emit.smem import SHARED_LIMIT
from kitsune_mlir.codegen.gpu.kernel.kernel import Kernel

_THREAD = re.compile(r"call [^\n]*@llvm\.nvvm\.read\.ptx\.sreg\.tid\.x\(\)[^\n]*")
_REDUCTION = re.compile(r'call void asm sideeffect "red\.relaxed\.gpu\.global\.add(?:\.v(\d))?\.f32 [^"]*", "[^"]*"')
_POINTER = "ptr addrspace(1)"


def _addition(count: int) -> str:
    """A function that adds `count` floats to what lies at a pointer."""
    lines = [f"define internal void @add{count}({_POINTER} %p, {', '.join(f'float %v{i}' for i in range(count))}) {{"]
    for i in range(count):
        lines += [
            f"  %p{i} = getelementptr float, {_POINTER} %p, i32 {i}",
            f"  %o{i} = load float, {_POINTER} %p{i}",
            f"  %s{i} = fadd float %o{i}, %v{i}",
            f"  store float %s{i}, {_POINTER} %p{i}",
        ]
    return "\n".join([*lines, "  ret void", "}"])


def run_natively(kernel: Kernel, arguments: Sequence[np.ndarray], shared: int = 0) -> np.ndarray:
    """Run all threads of one block.

    Args:
        arguments: an array for each of the kernel's parameters, which are all pointers.
        shared: what every byte of shared memory is at the start.

    Returns:
        All of shared memory afterwards, as bytes.
    """
    text = downgrade_floats(to_llvm_ir(kernel.module))
    text = text.replace("define ptx_kernel ", "define ").replace("target datalayout", "; target datalayout")
    text = _THREAD.sub("load i32, ptr @thread", text)
    text = text.replace("@__nv_fmaf", "@llvm.fma.f32")
    text = _REDUCTION.sub(lambda match: f"call void @add{match[1] or 1}", text)
    text, declared = re.subn(r"@smem = external ([^\n]*?)\[0 x i8\]", rf"@smem = \1[{SHARED_LIMIT} x i8] zeroinitializer", text)
    assert declared == 1
    text += "\n@thread = global i32 0\n" + "\n".join(_addition(count) for count in (1, 2, 4)) + "\n"
    assert "asm" not in re.sub(r'"[^"]*"', "", text), "inline PTX that has no counterpart on a processor"
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(text)
    module.triple = llvm.get_process_triple()
    module.verify()
    machine = llvm.Target.from_triple(module.triple).create_target_machine()
    with llvm.create_mcjit_compiler(module, machine) as engine:
        engine.finalize_object()
        scratch = (ctypes.c_uint8 * SHARED_LIMIT).from_address(engine.get_global_value_address("smem"))
        ctypes.memset(scratch, shared, SHARED_LIMIT)
        thread = ctypes.c_int32.from_address(engine.get_global_value_address("thread"))
        types = [ctypes.c_void_p] * len(arguments)
        function = ctypes.CFUNCTYPE(None, *types)(engine.get_function_address(kernel.name))
        for number in range(kernel.threads):
            thread.value = number
            function(*(argument.ctypes.data for argument in arguments))
        return np.array(scratch)
