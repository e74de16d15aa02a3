"""Machine code of a tile program for this processor, and how it is loaded. Needs llvmlite, and no compiler module."""

from __future__ import annotations

import bisect
import ctypes
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import llvmlite.binding as llvm

from kitsune_mlir.errors import KitsuneError, TargetError
from kitsune_mlir.runtime.host_object import emit_object, host_machine

__all__ = ["CONTROL_SLOTS", "CutTask", "HostCode", "Loaded", "check_cut", "control_words", "host_cpu", "link", "linked"]

CONTROL_SLOTS = 32
"""Word of the control block where the semaphores' slots begin."""

COUNT_BYTES = 8
"""Size of a count in memory."""

_numbers = itertools.count()
_held: list[object] = []  # what keeps functions in memory


@functools.cache
def host_cpu() -> str:
    """Name and features of this processor, as LLVM has them: code runs on another machine only if this text is the same."""
    host_machine()
    return f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"


def control_words(slots: int, cut: int = 0) -> int:
    """Words, of 32 bits, of the control block of a program.

    Args:
        slots: its arrival counters.
        cut: tasks of which a call may leave out tiles; each has a word behind the counters.
    """
    return CONTROL_SLOTS + max(1, slots) + cut


@dataclass(frozen=True)
class CutTask:
    """A task of which a call leaves out tiles that no valid row needs (`kitsune.valid_rows`).

    Attributes:
        word: of the control block: how many places are left out along a dimension of the grid, from its end.
        extent: how many there are.
        counts: inputs that each hold a count, an i64.
        thresholds: for each of them, of each place: tiles there are needed if the count is more. They never fall.
    """

    word: int
    extent: int
    counts: tuple[int, ...]
    thresholds: tuple[tuple[int, ...], ...]

    def left_out(self, values: Mapping[int, int]) -> int:
        """What the word is in a call with these counts."""
        needed = (bisect.bisect_left(each, values[count]) for count, each in zip(self.counts, self.thresholds, strict=True))
        return self.extent - max(needed)


@dataclass(frozen=True)
class HostCode:
    """A compiled tile program.

    Attributes:
        name: symbol of the entry, `void name(void **pointers, int32_t *control, void *scratch, int64_t requests)`.
        object_file: ELF (Mach-O, COFF) relocatable object.
        llvm_ir: the LLVM IR text it was made from.
        messages: texts of the program's assertions; error number 1 is the first.
        arguments: number of pointers: inputs, results, arena.
        argument_bytes: size of each input, then of each result.
        task_count: number of tile tasks.
        semaphore_slots: number of arrival counters.
        control_bytes: size of a request's control block, zeroed before each run: four times `control_words`.
        scratch_bytes: size of each worker's scratch area.
        arena_bytes: size of a request's arena.
        cpu: `host_cpu()` of the machine that it was compiled on.
        overwrites: for each result the input whose memory it must be given, and whose values it holds before; -1 for none.
            Empty is none at all.
        cut: tasks of which a call may leave out tiles.
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
    cut: tuple[CutTask, ...] = ()

    def load(self) -> Loaded:
        """Link the code into this process; code for another processor is compiled again from its LLVM IR.

        Raises:
            TargetError: the code cannot be linked.
            CompileError: the LLVM IR cannot be compiled here.
        """
        if self.cpu == host_cpu():
            return Loaded(self.name, self.object_file)
        return Loaded(self.name, emit_object(self.llvm_ir))


def check_cut(code: HostCode) -> None:
    """ValueError where a task of which tiles are left out has a word, a count or thresholds that the program has not."""
    first = control_words(code.semaphore_slots)
    for number, task in enumerate(code.cut):
        if task.word != first + number:
            raise ValueError(f"the word of a cut task is {task.word}, not {first + number}")
        lengths = [len(each) for each in task.thresholds]
        if not task.counts or lengths != [task.extent] * len(task.counts):
            raise ValueError(f"a cut task of extent {task.extent} has {len(task.counts)} counts and other thresholds")
        if any(not 0 <= count < len(code.argument_bytes) or code.argument_bytes[count] != COUNT_BYTES for count in task.counts):
            raise ValueError(f"the counts of a cut task are arguments {task.counts}")


@functools.cache
def _jit() -> llvm.LLJIT:
    """JITLink, which keeps an object's sections together: the older linker ends the process where they lie too far apart."""
    return llvm.create_lljit_compiler(host_machine(), use_jit_link=True)


def link(name: str, object_file: bytes, symbols: Sequence[str]) -> tuple[object, dict[str, int]]:
    """Link code into this process; an object for as long as whose life it stays there, and the addresses of its symbols.

    Raises:
        TargetError: it cannot be linked.
    """
    builder = llvm.JITLibraryBuilder().add_object_img(object_file).add_current_process()
    for symbol in symbols:
        builder.export_symbol(symbol)
    try:
        tracker = builder.link(_jit(), f"{name}.{next(_numbers)}")
        return tracker, {symbol: tracker[symbol] for symbol in symbols}
    except (RuntimeError, KeyError) as error:
        raise TargetError(f"'{name}' cannot be linked into this process: {error}") from error


@functools.cache
def linked(name: str, module: Callable[[], str], symbol: str) -> int | None:
    """The address of a function, whose code stays in this process; None where it cannot be compiled or linked.

    Args:
        name: of the code.
        module: gives its LLVM IR.
        symbol: the function.
    """
    try:
        kept, addresses = link(name, emit_object(module()), [symbol])
    except KitsuneError:
        return None
    _held.append(kept)
    return addresses[symbol]


class Loaded:
    """Code in memory. It stays there as long as this object lives.

    Attributes:
        call: `call(pointers, control, scratch, requests)`, addresses as integers; releases Python's global lock.
    """

    def __init__(self, name: str, object_file: bytes):
        self._tracker, addresses = link(name, object_file, [name])
        self.call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(addresses[name])
