"""A tile program compiled for a GPU: every form on the way, the cubin, and what a launch needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.backend.cubin import CHIPS, KernelResources, assemble_best
from kitsune_mlir.codegen.gpu.backend.to_llvm import finalize, to_assembly
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions
from kitsune_mlir.codegen.gpu.kernel.executor import Decision
from kitsune_mlir.codegen.gpu.kernel.launches import cut_launches
from kitsune_mlir.codegen.gpu.lower import replace_program
from kitsune_mlir.dialects.tile_reader import program_functions
from kitsune_mlir.errors import AssemblyTimeout, CompileError, TargetError
from kitsune_mlir.runtime.manifest import Manifest

__all__ = ["EngineChoice", "GpuCode", "compile_gpu", "compile_launches", "joined", "ptx_of"]


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
        gpu_ir: the kernel at the level of gpu, nvvm, scf, arith and memref.
        llvm_ir: LLVM IR text.
    """

    ptx: str
    cubin: bytes
    manifest: Manifest
    engines: tuple[EngineChoice, ...]
    resources: KernelResources
    warnings: tuple[str, ...]
    gpu_ir: str
    llvm_ir: str


def compile_launches(
    module: ir.Module | ir.Operation,
    name: str,
    options: KernelOptions | None = None,
    watch: Callable[[Decision], None] | None = None,
) -> tuple[GpuCode, ...]:
    """Compile the tile program `name`: one kernel, or one for each launch of a separate program, in their order.

    Arguments and errors are those of `compile_gpu`.
    """
    with module.context:
        clone = module.operation.clone().operation
        found = [f for f in program_functions(clone) if ir.StringAttr(f.attributes["sym_name"]).value == name]
        parts = [ir.StringAttr(part.attributes["sym_name"]).value for one in found for part in cut_launches(one)]
        return tuple(compile_gpu(clone, part, options, watch) for part in parts or [name])


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
    options = options or KernelOptions()
    if options.chip not in CHIPS:
        raise TargetError(f"no target machine for '{options.chip}'; known: {', '.join(sorted(CHIPS))}")
    with module.context, ir.Location.unknown():
        clone = module.operation.clone().operation
        functions = program_functions(clone)
        for op in [op.operation for op in clone.regions[0].blocks[0].operations]:
            if op not in functions or ir.StringAttr(op.attributes["sym_name"]).value != name:
                op.erase()
        if not (left := program_functions(clone)):
            raise CompileError(f"the module holds no tile program '{name}'")
        emitted = replace_program(left[0], options, watch)
        try:
            clone.verify()
        except ir.MLIRError as error:
            raise CompileError(f"kernel '{name}' is invalid: {error}") from error
        gpu_ir = str(clone)
        finalize(clone)
        llvm_ir, ptx = to_assembly(emitted.op)
    try:
        cubin = assemble_best(ptx, options.chip, options.ptxas_seconds)
    except AssemblyTimeout as error:
        stages = tuple(decision.plan.task.name for decision in emitted.decisions)
        raise AssemblyTimeout(error.kernel, error.limit, error.seconds, stages) from error
    return GpuCode(
        ptx=ptx,
        cubin=cubin.data,
        manifest=emitted.manifest,
        engines=tuple(_choice(decision) for decision in emitted.decisions),
        resources=cubin.kernels[emitted.manifest.kernel],
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
    return joined([to_assembly(kernel)[1] for kernel in kernels])


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
