"""A `separate` tile program as several kernels: it is cut where the launch number of its tasks changes.

Every part is a tile program with the arguments of the whole and the tasks of one launch. A kernel begins to compute when the
one before has ended, so waits for tasks of earlier launches are left out, and so are posts that nobody waits for any more.
Kernels overlap all the same (programmatic dependent launch): a primary kernel lets the next begin as soon as there is room for
it, and a secondary one fetches instructions, tensor maps and weights before it waits for the end of the one before. As each
waits for all of the one before, which has waited for those before it, a task may read what any earlier launch wrote.
"""

from __future__ import annotations

from torch_mlir import ir

from kitsune_mlir.dialects.attribute_table import PDL_PRIMARY, PDL_SECONDARY
from kitsune_mlir.dialects.verify import walk

__all__ = ["cut_launches", "launches_of"]

_WAITS = ("kitsune.wait", "kitsune.wait_rows")


def launches_of(function: ir.Operation) -> list[int]:
    """The launch numbers of a separate program's tasks, in order; empty for a program that is one launch."""
    attributes = function.attributes
    if "kitsune.mode" not in attributes or ir.StringAttr(attributes["kitsune.mode"]).value != "separate":
        return []
    numbers = dict.fromkeys(_launch(task) for task in _tasks(function))
    return list(numbers) if len(numbers) > 1 else []


def cut_launches(function: ir.Operation) -> list[ir.Operation]:
    """Put one program for each launch in the place of a separate program, named NAME_0, NAME_1, ...; any other stays as it is.

    Returns the functions that are there now, in the order of the launches.
    """
    numbers = launches_of(function)
    if not numbers:
        return [function]
    name = ir.StringAttr(function.attributes["sym_name"]).value
    parts = []
    for place, number in enumerate(numbers):
        with function.context, function.location:
            part = function.clone(ip=ir.InsertionPoint(function)).operation
            part.attributes["sym_name"] = ir.StringAttr.get(f"{name}_{place}")
            del part.attributes["kitsune.mode"]
            if place > 0:
                part.attributes[PDL_SECONDARY] = ir.UnitAttr.get()
            if place < len(numbers) - 1:
                part.attributes[PDL_PRIMARY] = ir.UnitAttr.get()
        for task in _tasks(part):
            if _launch(task) != number:
                task.erase()
        _drop_signals(part)
        parts.append(part)
    function.erase()
    return parts


def _tasks(function: ir.Operation) -> list[ir.Operation]:
    return [op.operation for op in function.regions[0].blocks[0].operations if op.operation.name == "kitsune.task"]


def _launch(task: ir.Operation) -> int:
    return ir.IntegerAttr(task.attributes["launch"]).value


def _drop_signals(function: ir.Operation) -> None:
    """Leave out waits for posts that no task makes, posts that no task waits for, and what nobody uses then."""
    signals = [op for op in walk(function) if op.name in (*_WAITS, "kitsune.post")]
    made = {op.operands[0] for op in signals if op.name == "kitsune.post"}
    wanted = {op.operands[0] for op in signals if op.name in _WAITS}
    for op in signals:
        if op.operands[0] not in made & wanted:
            op.erase()
    for op in reversed(list(walk(function))):
        free = op.name.startswith(("arith.", "memref.")) or op.name == "kitsune.make_semaphore"
        if free and op.results and not any(list(result.uses) for result in op.results):
            op.erase()
