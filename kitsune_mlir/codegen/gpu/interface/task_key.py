"""What tasks do, as text that does not say what they do it with: equal for tasks that an engine plans and emits alike."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.interface.operands import ALIGNMENT
from kitsune_mlir.dialects.structure import structure
from kitsune_mlir.dialects.tile_records import Buffer, TaskView
from kitsune_mlir.dialects.verify import captures

__all__ = ["IGNORED", "task_key", "tasks_key"]

IGNORED = frozenset({"sym_name", "launch"})
"""Attributes that say nothing about what a task does."""


def task_key(task: TaskView) -> tuple[str, ...]:
    """Equal for tasks that do the same operations on operands of the same types, kinds and relations."""
    outside = [value.owner for value in captures(task.op)]
    constants = {op.results[0]: op for op in outside if not isinstance(op, ir.Block) and op.name == "arith.constant"}
    return tasks_key([task], {buffer.value: buffer for buffer in task.buffers}, constants)


def tasks_key(
    tasks: Sequence[TaskView],
    buffers: Mapping[ir.Value, Buffer],
    constants: Mapping[ir.Value, ir.Operation],
    ignored: Collection[str] = IGNORED,
) -> tuple[str, ...]:
    """The same for tasks that one kernel does.

    Args:
        buffers: all that the tasks use.
        constants: what stands outside of the tasks.
        ignored: attributes that do not count.
    """
    numbers: dict[ir.Value, int] = {}
    lines = [line for task in tasks for line in structure(task.op, numbers, ignored)]
    lines += [f"given: {[load.given for load in task.loads]}" for task in tasks]
    places: dict[tuple[int, int], int] = {}
    for value, number in numbers.items():
        if value in buffers:
            buffer = buffers[value]
            place = places.setdefault(buffer.memory, len(places))
            lines.append(f"{number}: {buffer.role}, memory {place}, {buffer.offset % ALIGNMENT} bytes behind {ALIGNMENT}")
        elif value in constants:
            lines.append(f"{number}: {constants[value].attributes['value']}")
    return tuple(lines)
