"""PTX -> cubin, without a GPU, with what ptxas reports about each kernel.

Two assemblers hold the same compiler. nvJitLink runs in process but always makes relocatable code, and then ptxas
**ignores `setmaxnreg`** ("to maintain compatibility across compilation units"; `Cubin.warnings` shows it): warp-specialised
kernels spill. The `ptxas` program (package `nvidia-cuda-nvcc`) compiles whole programs, so it is preferred.
"""

from __future__ import annotations

import dataclasses
import re
import tempfile
import time
from pathlib import Path

from kitsune_mlir.codegen.gpu.backend.ptxas import TooSlow, find_ptxas, link, run
from kitsune_mlir.codegen.gpu.backend.sass import products_in_cubin, products_in_ptx
from kitsune_mlir.errors import AssemblyTimeout, CompileError, TargetError

__all__ = ["CHIPS", "Cubin", "KernelResources", "assemble", "assemble_best", "find_ptxas"]

CHIPS = frozenset({"sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_103", "sm_103a", "sm_120", "sm_120a"})
"""Chips that can be asked for. nvJitLink ends the process on a name that it does not know."""

LONG_SEQUENCE = 32
"""Products of `_FULL_REGISTERS` from which on ptxas spills at level 3: 48 do, in 4 layers of 256 columns."""
_FULL_REGISTERS = re.compile(r"wgmma\.mma_async\.sync\.aligned\.m64n256k\S+ \{[^}]*\}, \{")
"""A product whose sums and factor take 192 registers."""


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
        warnings: ptxas' remarks on lost performance ("wgmma.mma_async instructions are serialized ...") and its
            warnings.
        log: ptxas' whole report.
    """

    data: bytes
    chip: str
    kernels: dict[str, KernelResources]
    warnings: tuple[str, ...]
    log: str


def assemble(ptx: str, chip: str = "sm_90a", opt: int = 3, assembler: str = "auto", seconds: float | None = None) -> Cubin:
    """Assemble PTX text for `chip`.

    Args:
        opt: ptxas' optimisation level, 0 to 3.
        assembler: "ptxas", "nvjitlink", or "auto": ptxas where it is installed.
        seconds: wall time that it may take; None is no limit.

    Raises:
        AssemblyTimeout: it takes longer than `seconds`, and was ended.
        CompileError: ptxas rejects the text; the message is ptxas' own, followed by the lines that it points at.
        TargetError: `chip` is not one of `CHIPS`, or no assembler is installed.
    """
    if chip not in CHIPS:
        raise TargetError(f"no assembler for '{chip}'; known: {', '.join(sorted(CHIPS))}")
    options = [f"-arch={chip}", f"-O{opt}"]
    program = find_ptxas() if assembler in ("auto", "ptxas") else None
    if program is None and assembler == "ptxas":
        raise TargetError("ptxas is not installed: install the package 'nvidia-cuda-nvcc' (in the extra 'gpu')")
    begun = time.monotonic()
    try:
        data, log = _assembled(program, ptx, options, seconds)
    except TooSlow:
        raise AssemblyTimeout(", ".join(_kernels(ptx)), seconds or 0.0, time.monotonic() - begun) from None
    return Cubin(data, chip, _parse_resources(log), _parse_warnings(log), log)


def assemble_best(ptx: str, chip: str = "sm_90a", seconds: float | None = None) -> Cubin:
    """Assemble so that registers suffice: with fewer blocks a multiprocessor than wanted, else with less optimisation.

    At level 3 ptxas (CUDA 13.0) moves code across waits in long sequences of products whose factors are registers, until it
    spills and serialises wgmma; at level 1 the same code fits. But at level 1 ptxas may drop products, with a warning that it
    serialises wgmma or without one (seen: 10 of 129, found by a wrong result), so products are counted. Where there are so many
    of the widest of these products that level 3 would spill (it takes 14 s to spill in 8 layers of 256 columns, level 1 takes
    7 s), level 1 comes first.

    Args:
        seconds: wall time of all attempts together; None is no limit. Once there is something right, an attempt to better it
            that takes too long is given up.

    Raises:
        AssemblyTimeout: nothing right was made in that time. Another level is no way out: what takes ptxas so long are calls
            amid many live registers (`backend/divisions.py`), and level 1, which has them too, took 0.4 to 1 of level 3's time.
        CompileError: every way drops products; or as `assemble`.
    """
    wanted, begun = products_in_ptx(ptx), time.monotonic()
    right: list[Cubin] = []
    made: dict[tuple[str, int], Cubin | None] = {}

    def attempt(text: str, opt: int) -> Cubin | None:
        """What ptxas makes of it; None where it takes too long and there is something right."""
        if (text, opt) not in made:
            left = None if seconds is None else max(0.0, begun + seconds - time.monotonic())
            try:
                made[text, opt] = cubin = assemble(text, chip, opt, seconds=left)
            except AssemblyTimeout as error:
                if not right:
                    raise AssemblyTimeout(error.kernel, seconds or 0.0, time.monotonic() - begun) from None
                made[text, opt] = None
            else:
                if products_in_cubin(cubin.data) >= wanted and not (opt == 1 and cubin.warnings):
                    right.append(cubin)
        return made[text, opt]

    less = attempt(ptx, 1) if len(_FULL_REGISTERS.findall(ptx)) >= LONG_SEQUENCE else None
    if less is not None and less in right and not _spills(less):
        return less
    full = attempt(ptx, 3)
    while full is not None and _spills(full) and (fewer := _fewer_blocks(ptx)) and (following := attempt(fewer, 3)) is not None:
        ptx, full = fewer, following
    if full is None or _spills(full) or full.warnings or full not in right:
        less = attempt(ptx, 1)
    choices = [cubin for cubin in (full, less) if cubin in right] or right
    if not choices:
        kept = max(products_in_cubin(cubin.data) for cubin in made.values() if cubin is not None)
        raise CompileError(f"ptxas drops {wanted - kept} of {wanted} tensor-core products")

    def cost(cubin: Cubin) -> tuple[int, int]:
        return (len(cubin.warnings), sum(kernel.spill_store_bytes for kernel in cubin.kernels.values()))

    return min(choices, key=cost)


def _spills(cubin: Cubin) -> bool:
    return any(kernel.spills for kernel in cubin.kernels.values())


def _fewer_blocks(ptx: str) -> str:
    """The text with one block less that has to fit a multiprocessor; "" if that is none."""
    wanted = [int(count) for count in re.findall(r"^\.minnctapersm (\d+)", ptx, re.MULTILINE)]
    if not wanted or max(wanted) < 2:
        return ""
    return re.sub(r"^\.minnctapersm \d+", f".minnctapersm {max(wanted) - 1}", ptx, flags=re.MULTILINE)


def _assembled(program: Path | None, ptx: str, options: list[str], seconds: float | None) -> tuple[bytes, str]:
    """The cubin, and the report, of the program `ptxas`, or of nvJitLink where there is none."""
    with tempfile.TemporaryDirectory(prefix="kitsune-") as folder:
        source, target = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        if program is not None:
            status, log = run([str(program), *options, "--verbose", str(source), "-o", str(target)], seconds)
            done = status == 0
        else:
            try:
                done, log = link(source, target, options, seconds)
            except ImportError as error:
                raise TargetError(
                    "assembling a cubin needs the package 'nvidia-cuda-nvcc', or 'cuda-bindings' and 'nvidia-nvjitlink' "
                    "(all in the extra 'gpu')"
                ) from error
        log = log.replace(str(source), source.name)
        if not done:
            raise CompileError(f"ptxas: {log.strip()}{_quote_lines(log, ptx)}")
        return target.read_bytes(), log


def _kernels(ptx: str) -> list[str]:
    """The names of a text's kernels."""
    return re.findall(r"\.entry\s+(\w+)", ptx)


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
