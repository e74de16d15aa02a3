"""Which tasks of a program, and which launches, are equal but for their operands, so that one body of code can do them all.

Two tasks are alike if they do the same operations on operands of the same types, kinds and relations: another buffer at each
place, other semaphores, but inputs where the other has inputs, and one buffer twice where the other has one twice. An engine
then plans and emits the same for both; what differs is looked up when the kernel runs (`interface/operands.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence

from kitsune_mlir.codegen.gpu.interface.task_key import IGNORED, tasks_key
from kitsune_mlir.dialects.attribute_table import ATTENTION, OPERAND_SUM, PAIRS, SPARE, WRITTEN
from kitsune_mlir.dialects.tile_reader import ProgramView
from kitsune_mlir.dialects.tile_records import TaskView
from kitsune_mlir.dialects.verify import walk

__all__ = ["LEAST_SAVED", "equal_tasks", "launch_key", "signals"]

LEAST_SAVED = 16
"""So many bodies, and half of all, must be saved before a program looks operands up.

That takes 0.2 us a run of tasks on an H200: 0.6 % of eight layers of Llama-3-8B, but 6 % of eight that are an eighth as wide.
"""

_NUMBERS = {ATTENTION, OPERAND_SUM, PAIRS}
"""Attributes of operations that are part of one thing: which number it has among those of the program says nothing."""


def equal_tasks(program: ProgramView, always: bool = False) -> list[int] | None:
    """For each task the number of the first one like it; None where sharing saves too little.

    Args:
        always: whatever it saves.
    """
    first: dict[tuple[str, ...], int] = {}
    keys = [(*_marks([task]), *_key(program, [task], IGNORED | _NUMBERS)) for task in program.tasks]
    found = [first.setdefault(key, task.number) for key, task in zip(keys, program.tasks, strict=True)]
    saved = len(found) - len(first)
    return found if saved >= (1 if always else max(LEAST_SAVED, len(first))) else None


def launch_key(program: ProgramView) -> tuple[Hashable, ...]:
    """Equal for programs of one launch whose kernels differ in nothing but the memory that their pointers show."""
    function = program.function
    attributes = [(name, function.attributes[name]) for name in sorted({*function.attributes} - {"sym_name", SPARE, WRITTEN})]
    signalled = {one.semaphore for task in program.tasks for one in (*task.waits, *task.posts)}
    slots = [str((one.first, one.slots)) for one in sorted(signalled, key=lambda one: one.first)]
    buffers = {buffer.memory: buffer for task in program.tasks for buffer in task.buffers}.values()
    overlaps = [str([one.overlaps(other) for other in buffers]) for one in buffers]
    body = _key(program, program.tasks, IGNORED | _NUMBERS)
    return (*attributes, *slots, str(signals(program.tasks)), *overlaps, *_marks(program.tasks), *body)


def _marks(tasks: Sequence[TaskView]) -> list[str]:
    """Which operations of tasks are parts of one thing (`_NUMBERS`)."""
    met: dict[str, int] = {}
    return [
        f"{place}: {name} {met.setdefault(f'{name} {op.attributes[name]}', len(met))}"
        for place, op in enumerate(op for task in tasks for op in walk(task.op))
        for name in sorted(_NUMBERS & {*op.attributes})
    ]


def _key(program: ProgramView, tasks: Sequence[TaskView], ignored: Collection[str] = IGNORED) -> tuple[str, ...]:
    return tasks_key(tasks, program.buffers, program.constants, ignored)


def signals(tasks: Sequence[TaskView]) -> tuple[tuple[int, ...], ...]:
    """Which semaphores the tasks wait for and post to, numbered as they are met: equal where tasks relate alike."""
    met: dict[int, int] = {}
    return tuple(tuple(met.setdefault(one.semaphore.first, len(met)) for one in (*task.waits, *task.posts)) for task in tasks)
