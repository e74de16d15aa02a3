"""From a tile program to a `gpu.module` with its kernel."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeVar

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.backend.to_llvm import target_attribute
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions
from kitsune_mlir.codegen.gpu.kernel.executor import Decision, Executor, build
from kitsune_mlir.codegen.gpu.kernel.footprint import Footprint
from kitsune_mlir.codegen.gpu.kernel.launches import cut_launches, launches_of, mark_first
from kitsune_mlir.codegen.gpu.kernel.length import LongKernel, launches_within, operations_by_place, operations_of
from kitsune_mlir.codegen.gpu.kernel.live import tell_ends
from kitsune_mlir.codegen.gpu.kernel.schedule import planned_for
from kitsune_mlir.codegen.gpu.kernel.spatial.lower_queues import lower_queues
from kitsune_mlir.codegen.gpu.kernel.task_equality import equal_tasks
from kitsune_mlir.dialects.tile_reader import ProgramView
from kitsune_mlir.runtime.manifest import Manifest

__all__ = ["Emitted", "MANIFEST", "each_launch", "replace_program"]

T = TypeVar("T")

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

    def apart(self) -> tuple[int, ...]:
        """For each task the number of its launch, if each run of tasks had one; empty where they cannot be several."""
        runs = self.needs.schedule.runs
        return tuple(n for n, run in enumerate(runs) for _ in run) if len(runs) > 1 and self.needs.placement.everywhere else ()


def each_launch(function: ir.Operation, emit: Callable[[ir.Operation], T]) -> list[T]:
    """What `emit` makes of each launch of a tile program, in order; where that raises `LongKernel`, of the launches of which it
    becomes several."""
    if launches_of(function):
        tell_ends(function)
    mark_first(function)
    waiting, made = cut_launches(function), []
    while waiting:
        part = waiting.pop(0)
        try:
            made.append(emit(part))
        except LongKernel as long:
            tell_ends(part)
            waiting[:0] = cut_launches(part, long.launches)
    return made


def _built(program: ProgramView, options: KernelOptions) -> Executor:
    """The kernel of a program. Where its code is long, tasks that are alike share a body, which takes less time than a launch.

    Raises:
        LongKernel: it had better be several all the same.
    """
    executor = build(program, program.name, options)
    total = _too_many(executor, options)
    if not total:
        return executor
    lengths = _lengths(executor, total)
    first = equal_tasks(program, always=True) if not executor.needs.schedule.shared else None
    if first is not None and len({*first}) < len(first) and _of_bodies(executor, lengths, first) <= options.most_operations:
        shared = build(program, program.name, options, share=True)
        if shared.needs.schedule.shared and not _too_many(shared, options):
            return shared
    _cut(executor, program.name, options.most_operations, total, lengths)
    return executor


def _too_many(executor: Executor, options: KernelOptions) -> int:
    """How many operations a kernel has that could be several and has more than it may; 0 for any other."""
    most, placement = options.most_operations, executor.needs.placement
    if not most or options.requests > 1 or not placement.everywhere or len(executor.needs.schedule.runs) < 2:
        return 0
    total = operations_of(executor.module.operation)
    return total if total > most else 0


def _lengths(executor: Executor, total: int) -> list[int]:
    """Operations of each body of a kernel of `total`. What stands between tasks, and what they share, goes to all alike."""
    schedule = executor.needs.schedule
    places = operations_by_place(executor.module.operation)
    firsts = [schedule.plans[schedule.runs[members[0]][0]].task.name for members in schedule.bodies]
    with executor.module.context:
        lengths = [max(1, places[str(ir.Location.name(first))]) for first in firsts]
    return [length * total // sum(lengths) for length in lengths]


def _of_bodies(executor: Executor, lengths: Sequence[int], first: Sequence[int]) -> int:
    """Operations of a kernel in which tasks that are alike share a body; `first`: as of `equal_tasks`."""
    schedule = executor.needs.schedule
    new = [n for n, run in enumerate(schedule.runs) if any(first[task] == task for task in run)]
    return sum(lengths[schedule.body_of(n)[0]] for n in new)


def _cut(executor: Executor, name: str, most: int, total: int, lengths: Sequence[int]) -> None:
    """LongKernel where several launches take less time to compile; `lengths`: operations of each body."""
    schedule = executor.needs.schedule
    runs = [(len(run), schedule.body_of(number)[0]) for number, run in enumerate(schedule.runs)]
    launches = launches_within(runs, lengths, 2 * most)
    if launches[-1]:
        raise LongKernel(name, f"has {total} operations; option 'most_operations' allows {most}", launches)


def replace_program(function: ir.Operation, options: KernelOptions, watch: Callable[[Decision], None] | None = None) -> Emitted:
    """Put a `gpu.module` with the kernel in the place of a tile program's function, under the function's name.

    `watch` is called with who does each task, while the task is there to be looked at.

    Raises:
        CompileError, UnsupportedError: see `executor.build`.
        LongKernel: it has more operations than `options.most_operations`, or more parameters than a kernel may have, and its
            tasks could be several launches. The function stays.
    """
    lower_queues(function)
    program = ProgramView(function)
    executor = _built(program, options)
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
