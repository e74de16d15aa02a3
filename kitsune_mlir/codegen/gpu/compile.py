"""A tile program compiled for a GPU: every form on the way, the cubin, and what a launch needs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Hashable, MutableMapping, Sequence
from concurrent.futures import Future
from typing import Any

from torch_mlir import ir

from kitsune_mlir.cache.store import Store
from kitsune_mlir.codegen.gpu.backend.assembling import Assembling
from kitsune_mlir.codegen.gpu.backend.cubin import CHIPS, Cubin, KernelResources
from kitsune_mlir.codegen.gpu.backend.to_llvm import finalize, to_assembly, to_text
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions
from kitsune_mlir.codegen.gpu.kernel.executor import Decision
from kitsune_mlir.codegen.gpu.kernel.length import LongKernel
from kitsune_mlir.codegen.gpu.kernel.task_equality import launch_key
from kitsune_mlir.codegen.gpu.lower import Emitted, each_launch, replace_program
from kitsune_mlir.dialects.structure import text_of
from kitsune_mlir.dialects.tile_reader import ProgramView, program_functions
from kitsune_mlir.dialects.unchanged import lasting
from kitsune_mlir.errors import AssemblyTimeout, CompileError, TargetError
from kitsune_mlir.runtime.manifest import Manifest

__all__ = ["EngineChoice", "GpuCode", "Made", "compile_gpu", "compile_launches", "joined", "ptx_of", "with_one_arena"]


@dataclasses.dataclass(frozen=True)
class EngineChoice:
    """Who does a task, in plain values for `explain`.

    Attributes:
        task: its name.
        engine: the engine that took it.
        tiles: number of its tiles.
        parameters: what the engine decided (tile shapes, stages, ...).
        declined: (engine, reason) of those asked before.
        pieces, whole: blocks that share a tile; tiles at the beginning that are not shared.
        cycles, copied, joined: as the plan has them (`interface.plan.Plan`).
    """

    task: str
    engine: str
    tiles: int
    parameters: dict[str, Any]
    declined: tuple[tuple[str, str], ...]
    pieces: int = 1
    whole: int = 0
    copied: bool = False
    joined: bool = False
    cycles: int = 0


@dataclasses.dataclass(frozen=True)
class GpuCode:
    """A compiled tile program.

    Attributes:
        ptx: the assembly text.
        cubin: the ELF image.
        manifest: what a launch needs (`runtime.cuda_executor.CudaExecutor` takes it with the cubin).
        engines: one choice a task.
        resources: registers, spills and shared memory as ptxas reports them.
        warnings: ptxas' remarks on lost performance.
        gpu_ir: the kernel at the level of gpu, nvvm, scf, arith and memref; where an earlier launch has it, which one that is.
        llvm_ir: LLVM IR text, or as `gpu_ir`.
    """

    ptx: str
    cubin: bytes
    manifest: Manifest
    engines: tuple[EngineChoice, ...]
    resources: KernelResources
    warnings: tuple[str, ...]
    gpu_ir: str
    llvm_ir: str


@dataclasses.dataclass(frozen=True)
class _Kernel:
    """A kernel that is being assembled."""

    name: str
    emitted: Emitted
    gpu_ir: str
    llvm_ir: str
    assembled: Future[tuple[str, Cubin]]

    @property
    def is_assembled(self) -> bool:
        """Whether there is code: not if it was given up, because of an error in this kernel or in another."""
        return self._is_over and self.assembled.exception() is None

    @property
    def took_too_long(self) -> bool:
        """Whether it was given up because ptxas took too long for it."""
        return self._is_over and isinstance(self.assembled.exception(), AssemblyTimeout)

    @property
    def _is_over(self) -> bool:
        return self.assembled.done() and not self.assembled.cancelled()


Made = MutableMapping[tuple[Hashable, ...], "_Kernel | LongKernel"]
"""Kernels by what is equal of launches that they are for (`task_equality.launch_key`) and the options; or why there is none."""


def compile_launches(
    module: ir.Module | ir.Operation,
    name: str,
    options: KernelOptions | None = None,
    watch: Callable[[Decision], None] | None = None,
    store: Store | None = None,
    made: Made | None = None,
) -> tuple[GpuCode, ...]:
    """Compile the tile program `name`: one kernel, or one for each launch of a separate program, in their order.

    Launches that are equal but for the memory that they work on have one kernel, which is made once and has the name of the
    first of them. Arguments and errors are those of `compile_gpu`.

    Args:
        store: where assembled kernels are kept; None is nowhere.
        made: kernels of launches of earlier plans, which equal ones have again, and this plan's are added. A launch whose
            kernel took ptxas too long there, and that has several runs of tasks, becomes a launch for each.
    """
    with module.context, ir.Location.unknown(), lasting():
        alone = _alone(module.operation, name)
        return with_one_arena(_compiled(_program_of(alone), options or KernelOptions(), watch, store, made))


def with_one_arena(kernels: Sequence[GpuCode]) -> tuple[GpuCode, ...]:
    """Kernels of one program, whose launches on a stream share the largest of their arenas."""
    arena = max(kernel.manifest.arena_bytes for kernel in kernels)
    return tuple(dataclasses.replace(one, manifest=dataclasses.replace(one.manifest, arena_bytes=arena)) for one in kernels)


def compile_gpu(
    module: ir.Module | ir.Operation,
    name: str,
    options: KernelOptions | None = None,
    watch: Callable[[Decision], None] | None = None,
) -> GpuCode:
    """Compile the tile program `name` of a module, which is left as it is.

    The same, in steps: `kitsune-opt --kitsune-to-gpu=OPTIONS --kitsune-finalize-nvvm --emit=ptx`, and ptxas.

    Args:
        options: how; None is the defaults.
        watch: see `lower.replace_program`.

    Raises:
        AssemblyTimeout: ptxas takes longer than it may.
        CompileError: there is no such program, no engine takes a task, or LLVM or ptxas reject the code.
        TargetError: there is no such chip.
        UnsupportedError: the program holds something that the contract does not have.
    """
    with module.context, ir.Location.unknown():
        alone = _alone(module.operation, name)
        options = dataclasses.replace(options or KernelOptions(), most_operations=0)
        return _compiled(_program_of(alone), options, watch, one=True)[0]


def _alone(module: ir.Operation, name: str) -> ir.Module:
    """A module with a copy of the tile program `name` and nothing else."""
    found = next((f for f in program_functions(module) if ir.StringAttr(f.attributes["sym_name"]).value == name), None)
    if found is None:
        raise CompileError(f"the module holds no tile program '{name}'")
    alone = ir.Module.create()
    for key in module.attributes:
        alone.operation.attributes[key] = module.attributes[key]
    found.clone(ir.InsertionPoint(alone.body))
    return alone


def _program_of(alone: ir.Module) -> ir.Operation:
    return next(iter(program_functions(alone.operation)))


def _compiled(
    whole: ir.Operation,
    options: KernelOptions,
    watch: Callable[[Decision], None] | None,
    store: Store | None = None,
    made: Made | None = None,
    one: bool = False,
) -> tuple[GpuCode, ...]:
    """The code of each launch of a tile program, or with `one` of all of it in one."""
    if options.chip not in CHIPS:
        raise TargetError(f"no target machine for '{options.chip}'; known: {', '.join(sorted(CHIPS))}")
    made = {} if made is None else made
    first: dict[tuple[Hashable, ...], _Kernel] = {}
    apart: dict[tuple[Hashable, ...], Sequence[int]] = {}
    for key, known in made.items():
        if isinstance(known, LongKernel):
            apart[key] = known.launches
        elif known.is_assembled:
            first[key] = known
        elif known.took_too_long:
            apart[key] = known.emitted.apart()
    alone = ir.StringAttr(whole.attributes["sym_name"]).value
    with Assembling(options.chip, options.ptxas_seconds, store) as assembling:

        def emit(function: ir.Operation) -> tuple[str, _Kernel, Manifest, Sequence[Decision]]:
            name = ir.StringAttr(function.attributes["sym_name"]).value
            if name == alone:
                new = _emitted(function, name, options, watch, assembling)
                return name, new, new.emitted.manifest, new.emitted.decisions
            program = ProgramView(function)  # of a launch: it has no queues
            key = (options, *launch_key(program))
            if launches := apart.get(key):
                raise LongKernel(name, "is as long as one that took too long, or had too many operations", launches)
            if (known := first.get(key)) is None:
                try:
                    new = first[key] = made[key] = _emitted(function, name, options, watch, assembling)
                except LongKernel as long:  # equal launches are not emitted to find that out
                    apart[key], made[key] = long.launches, long
                    raise
                return name, new, new.emitted.manifest, new.emitted.decisions
            manifest, decisions = known.emitted.equal_launch(program)
            if watch is not None:
                for decision in decisions:
                    watch(decision)
            return name, known, manifest, decisions

        return tuple(_code(*launch) for launch in ([emit(whole)] if one else each_launch(whole, emit)))


def _emitted(
    function: ir.Operation,
    name: str,
    options: KernelOptions,
    watch: Callable[[Decision], None] | None,
    assembling: Assembling,
) -> _Kernel:
    """The kernel of a tile program, which stays."""
    alone = ir.Module.create()
    emitted = replace_program(function.clone(ir.InsertionPoint(alone.body)).operation, options, watch)
    try:
        alone.operation.verify()
    except ir.MLIRError as error:
        raise CompileError(f"kernel '{name}' is invalid: {error}") from error
    gpu_ir = text_of(alone)
    finalize(alone.operation)
    text = to_text(emitted.op)
    return _Kernel(name, emitted, gpu_ir, text.llvm_ir, assembling.submit(text))


def _code(name: str, kernel: _Kernel, manifest: Manifest, decisions: Sequence[Decision]) -> GpuCode:
    """What a launch called `name` has of a kernel, once that is assembled; the assembly text has the name of the launch."""
    try:
        ptx, cubin = kernel.assembled.result()
    except AssemblyTimeout as error:
        stages = tuple(decision.plan.task.name for decision in decisions)
        raise AssemblyTimeout(error.kernel, error.limit, error.seconds, stages) from error

    gpu_ir, llvm_ir = kernel.gpu_ir, kernel.llvm_ir
    if name != kernel.name:
        ptx = re.sub(rf"{re.escape(kernel.name)}(?!\d)", name, ptx)
        # Of deep models the texts of all launches would take longer than what they are of.
        gpu_ir = f"// {name} is {kernel.name} on other memory\n"
        llvm_ir = f"; {name} is {kernel.name} on other memory\n"
    return GpuCode(
        ptx=ptx,
        cubin=cubin.data,
        manifest=manifest,
        engines=tuple(map(_choice, decisions)),
        resources=cubin.kernels[manifest.kernel],
        warnings=cubin.warnings,
        gpu_ir=gpu_ir,
        llvm_ir=llvm_ir,
    )


def joined(forms: Sequence[str]) -> str:
    """Texts of a program's kernels as one."""
    return forms[0] if len(forms) == 1 else "\n".join(f"// launch {n}\n{text}" for n, text in enumerate(forms))


def ptx_of(module: ir.Operation) -> str:
    """The assembly text of all `gpu.module`s of a module, which `kitsune-finalize-nvvm` has lowered.

    Raises:
        CompileError: there is none; or as `to_assembly`.
    """
    kernels = [op.operation for op in module.regions[0].blocks[0].operations if op.operation.name == "gpu.module"]
    if not kernels:
        raise CompileError("the module holds no gpu.module to write PTX of")
    return joined([to_assembly(to_text(kernel)) for kernel in kernels])


def _choice(decision: Decision) -> EngineChoice:
    plan = decision.plan
    declined = tuple((decline.engine, decline.reason) for decline in decision.declined)
    return EngineChoice(
        *(plan.task.name, plan.engine, plan.task.tiles, dict(plan.parameters), declined),
        pieces=plan.split.pieces if plan.split else 1,
        whole=plan.split.whole if plan.split else 0,
        copied=plan.copied,
        joined=plan.joined,
        cycles=plan.cycles,
    )
