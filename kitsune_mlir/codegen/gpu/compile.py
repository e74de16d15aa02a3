"""A tile program compiled for a GPU: every form on the way, the cubin, and what a launch needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.backend.cubin import KernelResources, assemble_best
from kitsune_mlir.codegen.gpu.backend.divisions import without_branches
from kitsune_mlir.codegen.gpu.backend.ptx import to_ptx, translate
from kitsune_mlir.codegen.gpu.backend.to_llvm import finalize, unwrap
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions
from kitsune_mlir.codegen.gpu.kernel.executor import Decision
from kitsune_mlir.codegen.gpu.kernel.launches import cut_launches
from kitsune_mlir.codegen.gpu.lower import program_functions, replace_program
from kitsune_mlir.errors import AssemblyTimeout, CompileError
from kitsune_mlir.machine.target import Target, find_target
from kitsune_mlir.runtime.manifest import Manifest

__all__ = ["EngineChoice", "GpuCode", "compile_gpu", "compile_launches"]

PLAIN_REGISTERS = 128
"""Kernels whose tasks are content with as many registers hold no tensor-core loops."""


@dataclasses.dataclass(frozen=True)
class EngineChoice:
    """Who does a task, in plain values for `explain`.

    Attributes:
        task: its name.
        engine: the engine that took it.
        tiles: number of its tiles.
        parameters: what the engine decided (tile shapes, stages, ...).
        declined: (engine, reason) of those asked before.
    """

    task: str
    engine: str
    tiles: int
    parameters: dict[str, Any]
    declined: tuple[tuple[str, str], ...]


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


def compile_launches(module: ir.Module, name: str, target: Target | str, **options: Any) -> tuple[GpuCode, ...]:
    """Compile the tile program `name`: one kernel, or one for each launch of a separate program, in their order.

    Options and errors are those of `compile_gpu`.
    """
    with module.context:
        clone = module.operation.clone().operation
        found = [f for f in program_functions(clone) if ir.StringAttr(f.attributes["sym_name"]).value == name]
        parts = [ir.StringAttr(part.attributes["sym_name"]).value for one in found for part in cut_launches(one)]
        return tuple(compile_gpu(clone, part, target, **options) for part in parts or [name])


def compile_gpu(
    module: ir.Module | ir.Operation,
    name: str,
    target: Target | str,
    debug: bool = False,
    fastmath: str = "contract",
    timestamps: bool = False,
    matmul_precision: str = "highest",
    convolution_precision: str = "highest",
    ptxas_seconds: float | None = None,
    watch: Callable[[Decision], None] | None = None,
) -> GpuCode:
    """Compile the tile program `name` of a module, which is left as it is.

    Args:
        target: a GPU target, or its name.
        debug: waits are bounded, and the first that gives up is reported (`CudaExecutor.check`) instead of hanging.
        timestamps: every block writes when it began and ended each task (`CudaExecutor.timeline`).
        fastmath: floating-point freedom; see `backend/fastmath.py`.
        matmul_precision, convolution_precision: of f32 products and convolutions; see `engine.KernelOptions`.
        ptxas_seconds: wall time that ptxas may take for a kernel; None is no limit.
        watch: see `assemble.replace_program`.

    Raises:
        AssemblyTimeout: ptxas takes longer.
        CompileError: there is no such program, no engine takes a task, or LLVM or ptxas reject the code.
        UnsupportedError: the program holds something that the contract does not have.
    """
    target = find_target(target) if isinstance(target, str) else target
    if not target.is_gpu:
        raise CompileError(f"target '{target.name}' is no GPU")
    with module.context, ir.Location.unknown():
        clone = module.operation.clone().operation
        functions = program_functions(clone)
        for op in [op.operation for op in clone.regions[0].blocks[0].operations]:
            if op not in functions or ir.StringAttr(op.attributes["sym_name"]).value != name:
                op.erase()
        if not (left := program_functions(clone)):
            raise CompileError(f"the module holds no tile program '{name}'")
        limits = KernelOptions(
            chip=target.chip,
            debug=debug,
            timestamps=timestamps,
            workers=target.workers,
            matmul_precision=matmul_precision,
            convolution_precision=convolution_precision,
        )
        emitted = replace_program(left[0], limits, watch)
        try:
            clone.verify()
        except ir.MLIRError as error:
            raise CompileError(f"kernel '{name}' is invalid: {error}") from error
        gpu_ir = str(clone)
        finalize(clone, fastmath)
        llvm_ir = translate(unwrap(emitted.op).operation)
    # Unrolling batches loads of plain loops; code written for many registers is unrolled where it should be.
    unroll = all(decision.plan.registers <= PLAIN_REGISTERS for decision in emitted.decisions)
    ptx = without_branches(to_ptx(llvm_ir, target.chip, unroll=unroll))
    try:
        cubin = assemble_best(ptx, target.chip, ptxas_seconds)
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


def _choice(decision: Decision) -> EngineChoice:
    plan = decision.plan
    declined = tuple((decline.engine, decline.reason) for decline in decision.declined)
    return EngineChoice(plan.task.name, plan.engine, plan.task.tiles, dict(plan.parameters), declined)
