"""Between the tile program and LLVM: the `gpu.module` that holds the kernel, and its lowering to the LLVM dialect."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from torch_mlir import ir, passmanager

from kitsune_mlir.codegen.gpu.atomics import relax_atomics
from kitsune_mlir.codegen.gpu.engine import Limits
from kitsune_mlir.codegen.gpu.executor import Decision, build
from kitsune_mlir.codegen.gpu.fastmath import expand_approximate_tanh, set_fastmath
from kitsune_mlir.codegen.gpu.ptx import PIPELINE
from kitsune_mlir.codegen.gpu.ring_lowering import lower_queues
from kitsune_mlir.codegen.gpu.tasks import ProgramView
from kitsune_mlir.errors import CompileError
from kitsune_mlir.runtime.manifest import Manifest

__all__ = ["MANIFEST", "Emitted", "MEMREF_PIPELINE", "finalize", "program_functions", "replace_program", "unwrap"]

MANIFEST = "kitsune.manifest"
"""Attribute of a `gpu.module`: the kernel's manifest as JSON."""

MEMREF_PIPELINE: tuple[str, ...] = (
    "convert-vector-to-scf",
    "expand-strided-metadata",
    "lower-affine",
    "convert-complex-to-standard",
    "math-extend-to-supported-types{target-type=f32}",
    "convert-scf-to-cf",  # first: generic atomics become loops of basic blocks
    "finalize-memref-to-llvm",
    "convert-complex-to-llvm",
)
"""What brings memrefs to pointers; `ptx.PIPELINE` comes after it."""


@dataclasses.dataclass(frozen=True)
class Emitted:
    """A `gpu.module` that took a tile program's place, its manifest, and who does each task."""

    op: ir.Operation
    manifest: Manifest
    decisions: tuple[Decision, ...]


def program_functions(module: ir.Operation) -> list[ir.Operation]:
    """The tile programs of a module."""
    operations = [op.operation for op in module.regions[0].blocks[0].operations]
    return [op for op in operations if op.name == "func.func" and "kitsune.program" in op.attributes]


def replace_program(function: ir.Operation, limits: Limits, watch: Callable[[Decision], None] | None = None) -> Emitted:
    """Put a `gpu.module` with the kernel in the place of a tile program's function, under the function's name.

    `watch` is called with who does each task, while the task is there to be looked at.

    Raises:
        CompileError, UnsupportedError: see `executor.build`.
    """
    lower_queues(function)
    program = ProgramView(function)
    executor = build(program, program.name, limits)
    with function.context, function.location:
        holder = ir.Operation.create(
            "gpu.module",
            regions=1,
            attributes={
                "sym_name": ir.StringAttr.get(program.name),
                MANIFEST: ir.StringAttr.get(executor.manifest.to_json()),
            },
            ip=ir.InsertionPoint(function),
        )
        block = holder.regions[0].blocks.append()
        point = ir.InsertionPoint(block)
        for op in list(executor.module.body.operations):
            op.operation.detach_from_parent()
            point.insert(op.operation)
        if watch is not None:
            for decision in executor.decisions:
                watch(decision)
        function.erase()
    return Emitted(holder, executor.manifest, executor.decisions)


def finalize(module: ir.Operation, fastmath: str = "contract") -> None:
    """Lower every `gpu.module` in a module to the LLVM dialect.

    Args:
        fastmath: flags added to those of all arith and math operations (`fastmath.set_fastmath`).

    Raises:
        CompileError: a pass failed.
    """
    with module.context:
        set_fastmath(module, fastmath)
        expand_approximate_tanh(module)
        pipeline = ",".join((*MEMREF_PIPELINE, *PIPELINE))
        try:
            passes = passmanager.PassManager.parse(f"builtin.module({pipeline})")
            passes.enable_verifier(False)  # after each pass it takes a third of the time; the result is verified below
            passes.run(module)
            module.verify()
        except ir.MLIRError as error:
            raise CompileError(f"lowering to LLVM failed: {error}") from error
        relax_atomics(module)


def unwrap(holder: ir.Operation) -> ir.Module:
    """A module with copies of what a `gpu.module` holds, as the translation to LLVM IR wants it."""
    with holder.context, holder.location:
        module = ir.Module.create()
        for op in holder.regions[0].blocks[0].operations:
            op.operation.clone(ir.InsertionPoint(module.body))
        return module
