"""Which tasks of a program are equal but for their operands, so that one body of code can do them all.

Two tasks are alike if they do the same operations on operands of the same types, kinds and relations: another buffer at each
place, other semaphores, but inputs where the other has inputs, and one buffer twice where the other has one twice. An engine
then plans and emits the same for both; what differs is looked up when the kernel runs (`interface/operands.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.interface.operands import ALIGNMENT
from kitsune_mlir.dialects.structure import structure
from kitsune_mlir.dialects.tile_reader import ProgramView
from kitsune_mlir.dialects.tile_records import TaskView

__all__ = ["LEAST_SAVED", "equal_tasks", "signals"]

LEAST_SAVED = 16
"""So many bodies, and half of all, must be saved before a program looks operands up.

That takes 0.2 us a run of tasks on an H200: 0.6 % of eight layers of Llama-3-8B, but 6 % of eight that are an eighth as wide.
"""


_IGNORED = {"sym_name", "launch"}


def equal_tasks(program: ProgramView) -> list[int] | None:
    """For each task the number of the first one like it; None where sharing saves too little."""
    first: dict[tuple[str, ...], int] = {}
    found = [first.setdefault(_key(program, task), task.number) for task in program.tasks]
    saved = len(found) - len(first)
    return found if saved >= max(LEAST_SAVED, len(first)) else None


def _key(program: ProgramView, task: TaskView) -> tuple[str, ...]:
    numbers: dict[ir.Value, int] = {}
    lines = list(structure(task.op, numbers, _IGNORED))
    places: dict[tuple[int, int], int] = {}
    for value, number in numbers.items():
        if value in program.buffers:
            buffer = program.buffers[value]
            place = places.setdefault(buffer.memory, len(places))
            lines.append(f"{number}: {buffer.role}, memory {place}, {buffer.offset % ALIGNMENT} bytes behind {ALIGNMENT}")
        elif value in program.constants:
            lines.append(f"{number}: {program.constants[value].attributes['value']}")
    return tuple(lines)


def signals(tasks: Sequence[TaskView]) -> tuple[tuple[int, ...], ...]:
    """Which semaphores the tasks wait for and post to, numbered as they are met: equal where tasks relate alike."""
    met: dict[int, int] = {}
    return tuple(tuple(met.setdefault(one.semaphore.first, len(met)) for one in (*task.waits, *task.posts)) for task in tasks)
