"""From a tile program to a `gpu.module` with its kernel."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.backend.to_llvm import target_attribute
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions
from kitsune_mlir.codegen.gpu.kernel.executor import Decision, build
from kitsune_mlir.codegen.gpu.kernel.footprint import Footprint
from kitsune_mlir.codegen.gpu.kernel.schedule import planned_for
from kitsune_mlir.codegen.gpu.kernel.spatial.lower_queues import lower_queues
from kitsune_mlir.dialects.tile_reader import ProgramView
from kitsune_mlir.runtime.manifest import Manifest

__all__ = ["Emitted", "MANIFEST", "replace_program"]

MANIFEST = "kitsune.manifest"
"""Attribute of a `gpu.module`: the kernel's manifest as JSON."""

PLAIN_REGISTERS = 128
"""Kernels whose tasks are content with as many registers hold no tensor-core loops."""


@dataclasses.dataclass(frozen=True)
class Emitted:
    """A `gpu.module` that took a tile program's place, its manifest, who does each task, and what it takes of the device."""

    op: ir.Operation
    manifest: Manifest
    decisions: tuple[Decision, ...]
    needs: Footprint

    def equal_launch(self, program: ProgramView) -> tuple[Manifest, tuple[Decision, ...]]:
        """The same of a launch that is equal (`task_equality.launch_key`): it has this kernel and memory of its own."""
        plans = tuple(map(planned_for, self.needs.schedule.plans, program.tasks))
        schedule = dataclasses.replace(self.needs.schedule, plans=plans)
        needs = Footprint(program, self.manifest.kernel, self.needs.options, schedule, self.needs.placement)
        manifest = dataclasses.replace(needs.manifest(), shared_bytes=self.manifest.shared_bytes)
        return manifest, tuple(map(Decision, plans, schedule.declined))


def replace_program(function: ir.Operation, options: KernelOptions, watch: Callable[[Decision], None] | None = None) -> Emitted:
    """Put a `gpu.module` with the kernel in the place of a tile program's function, under the function's name.

    `watch` is called with who does each task, while the task is there to be looked at.

    Raises:
        CompileError, UnsupportedError: see `executor.build`.
    """
    lower_queues(function)
    program = ProgramView(function)
    executor = build(program, program.name, options)
    # Unrolling batches loads of plain loops; code written for many registers is unrolled where it should be.
    unroll = all(decision.plan.registers <= PLAIN_REGISTERS for decision in executor.decisions)
    with function.context, function.location:
        holder = ir.Operation.create(
            "gpu.module",
            regions=1,
            attributes={
                "sym_name": ir.StringAttr.get(program.name),
                "targets": ir.ArrayAttr.get([target_attribute(options.chip, unroll)]),
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
    return Emitted(holder, executor.manifest, executor.decisions, executor.needs)
