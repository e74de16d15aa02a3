"""Machine code of a tile program for this processor, and how it is loaded. Needs llvmlite, and no compiler module."""

from __future__ import annotations

import ctypes
import functools
import itertools
from dataclasses import dataclass

import llvmlite.binding as llvm

from kitsune_mlir.errors import TargetError
from kitsune_mlir.runtime.host_object import emit_object, host_machine

__all__ = ["CONTROL_SLOTS", "HostCode", "Loaded", "control_words", "host_cpu"]

CONTROL_SLOTS = 32
"""Word of the control block where the semaphores' slots begin."""

_numbers = itertools.count()


@functools.cache
def host_cpu() -> str:
    """Name and features of this processor, as LLVM has them: code runs on another machine only if this text is the same."""
    host_machine()
    return f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"


def control_words(slots: int) -> int:
    """Words, of 32 bits, of the control block of a program with so many arrival counters."""
    return CONTROL_SLOTS + max(1, slots)


@dataclass(frozen=True)
class HostCode:
    """A compiled tile program.

    Attributes:
        name: symbol of the entry, `void name(void **pointers, int32_t *control, void *scratch)`.
        object_file: ELF (Mach-O, COFF) relocatable object.
        llvm_ir: the LLVM IR text it was made from.
        messages: texts of the program's assertions; error number 1 is the first.
        arguments: number of pointers: inputs, results, arena.
        argument_bytes: size of each input, then of each result.
        task_count: number of tile tasks.
        semaphore_slots: number of arrival counters.
        control_bytes: size of the control block, zeroed before each run: four times `control_words`.
        scratch_bytes: size of each worker's scratch area.
        arena_bytes: size of the arena.
        cpu: `host_cpu()` of the machine that it was compiled on.
        overwrites: for each result the input whose memory it must be given, and whose values it holds before; -1 for none.
            Empty is none at all.
    """

    name: str
    object_file: bytes
    llvm_ir: str
    messages: tuple[str, ...]
    arguments: int
    argument_bytes: tuple[int, ...]
    task_count: int
    semaphore_slots: int
    control_bytes: int
    scratch_bytes: int
    arena_bytes: int
    cpu: str
    overwrites: tuple[int, ...] = ()

    def load(self) -> Loaded:
        """Link the code into this process; code for another processor is compiled again from its LLVM IR.

        Raises:
            TargetError: the code cannot be linked.
            CompileError: the LLVM IR cannot be compiled here.
        """
        if self.cpu == host_cpu():
            return Loaded(self.name, self.object_file)
        return Loaded(self.name, emit_object(self.llvm_ir))


@functools.cache
def _jit() -> llvm.LLJIT:
    return llvm.create_lljit_compiler(host_machine())


class Loaded:
    """Code in memory. It stays there as long as this object lives.

    Attributes:
        call: `call(pointers, control, scratch)`, addresses as integers; releases Python's global lock.
    """

    def __init__(self, name: str, object_file: bytes):
        library = llvm.JITLibraryBuilder().add_object_img(object_file).add_current_process().export_symbol(name)
        try:
            self._tracker = library.link(_jit(), f"{name}.{next(_numbers)}")
            address = self._tracker[name]
        except (RuntimeError, KeyError) as error:
            raise TargetError(f"'{name}' cannot be linked into this process: {error}") from error
        self.call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(address)
