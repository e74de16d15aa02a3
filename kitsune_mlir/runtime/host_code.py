"""Machine code of a tile program for this processor, and how it is loaded. Needs llvmlite, and no compiler module."""

from __future__ import annotations

import ctypes.util
import functools
import itertools
from dataclasses import dataclass

import llvmlite.binding as llvm

from kitsune_mlir.errors import TargetError

__all__ = ["HostCode", "Loaded", "host_cpu"]

_numbers = itertools.count()


@functools.cache
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    libm = ctypes.util.find_library("m")
    if libm:
        llvm.load_library_permanently(libm)


@functools.cache
def host_cpu() -> str:
    """Name and features of this processor, as LLVM has them: code runs on another machine only if this text is the same."""
    _initialize()
    return f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"


@dataclass(frozen=True)
class HostCode:
    """A compiled tile program.

    Attributes:
        name: symbol of the entry, `void name(void **pointers, int32_t *control, void *scratch)`.
        object_file: ELF (Mach-O, COFF) relocatable object.
        llvm_ir: the LLVM IR text it was made from.
        messages: texts of the program's assertions; error number 1 is the first.
        arguments: number of pointers: inputs, results, arena.
        task_count: number of tile tasks.
        semaphore_slots: number of arrival counters.
        control_bytes: size of the control block, zeroed before each run.
        scratch_bytes: size of each worker's scratch area.
        arena_bytes: size of the arena.
        cpu: `host_cpu()` of the machine that it was compiled on.
    """

    name: str
    object_file: bytes
    llvm_ir: str
    messages: tuple[str, ...]
    arguments: int
    task_count: int
    semaphore_slots: int
    control_bytes: int
    scratch_bytes: int
    arena_bytes: int
    cpu: str

    def load(self) -> Loaded:
        """Link the code into this process.

        Raises:
            TargetError: the code was compiled for another processor (compile `llvm_ir` again), or a symbol is missing.
        """
        if self.cpu != host_cpu():
            raise TargetError(f"'{self.name}' was compiled for another processor ({self.cpu.split()[0]})")
        return Loaded(self)


@functools.cache
def _jit() -> llvm.LLJIT:
    _initialize()
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2, jit=True
    )
    return llvm.create_lljit_compiler(machine)


class Loaded:
    """Code in memory. It stays there as long as this object lives."""

    def __init__(self, code: HostCode):
        library = llvm.JITLibraryBuilder().add_object_img(code.object_file).add_current_process().export_symbol(code.name)
        try:
            self._tracker = library.link(_jit(), f"{code.name}.{next(_numbers)}")
            self.address: int = self._tracker[code.name]
        except (RuntimeError, KeyError) as error:
            raise TargetError(f"'{code.name}' cannot be linked into this process: {error}") from error
        self.call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(self.address)
