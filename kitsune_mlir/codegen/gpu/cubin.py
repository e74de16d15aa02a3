"""PTX -> cubin by nvJitLink, in process and without a GPU, with what ptxas reports about each kernel."""

from __future__ import annotations

import dataclasses
import re

from kitsune_mlir.errors import CompileError, TargetError

__all__ = ["CHIPS", "Cubin", "KernelResources", "assemble"]

CHIPS = frozenset({"sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_103", "sm_103a", "sm_120", "sm_120a"})
"""Chips that nvJitLink is asked for. It ends the process on a name that it does not know."""


@dataclasses.dataclass(frozen=True)
class KernelResources:
    """What one kernel uses on the device.

    Attributes:
        name: the kernel's symbol.
        registers: registers per thread.
        stack_bytes: local-memory frame per thread: spills, and arrays that are indexed at run time (libdevice's sine).
        spill_store_bytes: bytes that ptxas writes to local memory per thread because registers ran out.
        spill_load_bytes: bytes that it reads back.
        shared_bytes: statically declared shared memory; what a launch asks for comes on top.
        barriers: named barriers.
    """

    name: str
    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    shared_bytes: int
    barriers: int

    @property
    def spills(self) -> bool:
        """Whether registers are spilled to local memory."""
        return bool(self.spill_store_bytes or self.spill_load_bytes)


@dataclasses.dataclass(frozen=True)
class Cubin:
    """An assembled module.

    Attributes:
        data: the ELF image, for `cuModuleLoadData`.
        chip: processor it was assembled for.
        kernels: resources by kernel name.
        warnings: ptxas' remarks on lost performance ("wgmma.mma_async instructions are serialized ...") and its warnings.
        log: ptxas' whole report.
    """

    data: bytes
    chip: str
    kernels: dict[str, KernelResources]
    warnings: tuple[str, ...]
    log: str


def assemble(ptx: str, chip: str = "sm_90a", opt: int = 3, max_registers: int | None = None) -> Cubin:
    """Assemble PTX text for `chip`.

    Args:
        opt: ptxas' optimisation level, 0 to 3.
        max_registers: cap on registers per thread for every kernel of the module; None leaves it to ptxas and `.maxnreg`.

    Raises:
        CompileError: ptxas rejects the text; the message is ptxas' own, followed by the lines that it points at.
        TargetError: `chip` is not one of `CHIPS`, or the packages `cuda-bindings` and `nvidia-nvjitlink` are missing.
    """
    if chip not in CHIPS:
        raise TargetError(f"no assembler for '{chip}'; known: {', '.join(sorted(CHIPS))}")
    try:
        from cuda.bindings import nvjitlink
    except ImportError as error:
        raise TargetError("assembling a cubin needs the packages 'cuda-bindings' and 'nvidia-nvjitlink'") from error
    options = [f"-arch={chip}", f"-O{opt}", "-verbose"]
    if max_registers is not None:
        options.append(f"-maxrregcount={max_registers}")
    text = ptx.encode()
    try:
        handle = nvjitlink.create(len(options), options)
    except (nvjitlink.nvJitLinkError, RuntimeError) as error:
        raise TargetError(f"nvJitLink cannot assemble for '{chip}': {error}") from error
    try:
        try:
            nvjitlink.add_data(handle, nvjitlink.InputType.PTX, text, len(text), "kernel.ptx")
            nvjitlink.complete(handle)
        except nvjitlink.nvJitLinkError as error:
            message = _read(nvjitlink.get_error_log_size, nvjitlink.get_error_log, handle) or str(error)
            raise CompileError(f"ptxas: {message}{_quote_lines(message, ptx)}") from error
        data = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, data)
        log = _read(nvjitlink.get_info_log_size, nvjitlink.get_info_log, handle)
    finally:
        nvjitlink.destroy(handle)
    return Cubin(bytes(data), chip, _parse_resources(log), _parse_warnings(log), log)


def _read(size, get, handle: int) -> str:
    length = size(handle)
    if length <= 0:
        return ""
    buffer = bytearray(length)
    get(handle, buffer)
    return buffer.rstrip(b"\0").decode(errors="replace").strip()


def _parse_resources(log: str) -> dict[str, KernelResources]:
    """Resources by kernel from ptxas' verbose report: one "Compiling entry function" section per kernel."""
    kernels: dict[str, KernelResources] = {}
    for section in re.split(r"(?=ptxas info\s*: Compiling entry function )", log)[1:]:
        named = re.search(r"Compiling entry function '([^']+)'", section)
        frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", section)
        used = re.search(r"Used (\d+) registers", section)
        if not (named and frame and used):
            raise CompileError(f"ptxas' report has an unknown form:\n{section}")
        shared = re.search(r"(\d+) bytes smem", section[: section.find("Compile time")])
        barriers = re.search(r"used (\d+) barriers", section)
        stack, stores, loads = (int(number) for number in frame.groups())
        kernels[named[1]] = KernelResources(
            named[1],
            int(used[1]),
            stack,
            stores,
            loads,
            int(shared[1]) if shared else 0,
            int(barriers[1]) if barriers else 0,
        )
    return kernels


def _parse_warnings(log: str) -> tuple[str, ...]:
    lines = (line.strip() for line in log.splitlines())
    return tuple(dict.fromkeys(line for line in lines if re.search(r"warning|Performance Loss", line, re.IGNORECASE)))


def _quote_lines(message: str, ptx: str) -> str:
    """The lines of `ptx` that the message names ("line 10;"), numbered, at most five."""
    lines = ptx.splitlines()
    numbers = list(dict.fromkeys(int(number) for number in re.findall(r"line (\d+)", message)))[:5]
    return "".join(f"\n  {number}: {lines[number - 1].strip()}" for number in numbers if 0 < number <= len(lines))
