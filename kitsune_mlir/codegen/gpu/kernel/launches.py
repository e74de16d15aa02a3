"""A tile program as several kernels: a `separate` one is cut where the launch number of its tasks changes, one whose code would
be too long (`kernel/length.py`) where its tasks are dealt to launches.

Every part is a tile program with the arguments of the whole and the tasks of one launch. A kernel begins to compute when the
one before has ended, so waits for tasks of earlier launches are left out, and so are posts that nobody waits for any more.
Kernels overlap all the same (programmatic dependent launch): a primary kernel lets the next begin as soon as there is room for
it, and a secondary one fetches instructions, tensor maps and weights before it waits for the end of the one before. As each
waits for all of the one before, which has waited for those before it, a task may read what any earlier launch wrote.

The first kernel of a program for several sizes comes after one that copies inputs (`runtime/copy_kernel.py`), which lets it
begin early, too. What came before that one is not known, and may have written weights: it waits before anything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.kernel.spare import spare_bytes
from kitsune_mlir.dialects.attribute_table import (
    COUNTED,
    PDL_FIRST,
    PDL_PRIMARY,
    PDL_SECONDARY,
    PROGRAM_OVERWRITES,
    SPARE,
    VALID_ROWS,
    WRITTEN,
)
from kitsune_mlir.dialects.cloning import clone_with, replace_uses_inside
from kitsune_mlir.dialects.verify import captures, walk
from kitsune_mlir.dialects.written_arguments import written_arguments, written_before

__all__ = ["cut_launches", "launches_of", "mark_first"]

_WAITS = ("kitsune.wait", "kitsune.wait_rows")


def launches_of(function: ir.Operation) -> list[int]:
    """The launch numbers of a separate program's tasks, in order; empty for a program that is one launch."""
    attributes = function.attributes
    if "kitsune.mode" not in attributes or ir.StringAttr(attributes["kitsune.mode"]).value != "separate":
        return []
    numbers = dict.fromkeys(_launch(task) for task in _tasks(function))
    return list(numbers) if len(numbers) > 1 else []


def mark_first(function: ir.Operation) -> None:
    """Say of a tile program for several sizes that its inputs are copied by a launch before it."""
    if VALID_ROWS in function.attributes or any(COUNTED in op.attributes for op in walk(function)):
        with function.context:
            function.attributes[PDL_FIRST] = ir.UnitAttr.get()


def cut_launches(function: ir.Operation, launches: Sequence[int] | None = None) -> list[ir.Operation]:
    """Put one program for each launch in the place of a separate program, named NAME_0, NAME_1, ...; any other stays as it is.

    Args:
        launches: numbers of the tasks' launches, instead of those of a separate program.

    Returns the functions that are there now, in the order of the launches.
    """
    if launches is None:
        launches = [_launch(task) for task in _tasks(function)] if launches_of(function) else []
    if not launches:
        return [function]
    name = ir.StringAttr(function.attributes["sym_name"]).value
    tasks: dict[int, list[ir.Operation]] = {}
    for task, number in zip(_tasks(function), launches, strict=True):
        tasks.setdefault(number, []).append(task)
    others = [op.operation for op in function.regions[0].blocks[0].operations if op.operation.name != "kitsune.task"]
    order = {op: number for number, op in enumerate(others)}
    arguments = function.regions[0].blocks[0].arguments
    given = [argument.type for argument in arguments], [argument.location for argument in arguments]
    written = [written_arguments(own) for own in tasks.values()]
    used = [_with_sources(value for task in own for value in captures(task)) for own in tasks.values()]
    spare = [] if SPARE in function.attributes else spare_bytes(used, arguments[-1])
    parts = [_part(function, f"{name}_{place}", own, order, *given) for place, own in enumerate(tasks.values())]
    with function.context:
        if PDL_FIRST in function.attributes:
            parts[0].attributes[PDL_FIRST] = ir.UnitAttr.get()
        if PROGRAM_OVERWRITES in function.attributes:
            before = written_before(function)
            for part, own in zip(parts, written, strict=True):
                part.attributes[WRITTEN] = ir.DenseI64ArrayAttr.get(sorted(before))
                before |= own
        for part, ranges in zip(parts, spare, strict=False):  # parts of a launch have what it has
            part.attributes[SPARE] = ir.DenseI64ArrayAttr.get(ranges)
        for part in parts[1:]:
            part.attributes[PDL_SECONDARY] = ir.UnitAttr.get()
        for part in parts[:-1]:
            part.attributes[PDL_PRIMARY] = ir.UnitAttr.get()
    function.erase()
    return parts


def _part(
    function: ir.Operation,
    name: str,
    tasks: list[ir.Operation],
    order: dict[ir.Operation, int],
    types: list[ir.Type],
    locations: list[ir.Location],
) -> ir.Operation:
    """A program before `function` that takes over some of its tasks, and has copies of what these use.

    Args:
        order: the place of each other operation of the program; the last one returns.
        types, locations: of the program's arguments.
    """
    with function.context, function.location:
        attributes = {key: function.attributes[key] for key in function.attributes if key not in ("kitsune.mode", PDL_FIRST)}
        attributes["sym_name"] = ir.StringAttr.get(name)
        part = ir.Operation.create("func.func", attributes=attributes, regions=1, ip=ir.InsertionPoint(function))
        block = part.regions[0].blocks.append(*types, arg_locs=locations)
    _drop_signals(tasks)
    wanted = _with_sources(value for task in tasks for value in captures(task))
    given, end = block.arguments, ir.InsertionPoint(block)
    new = {value: given[ir.BlockArgument(value).arg_number] for value in wanted if isinstance(value.owner, ir.Block)}
    for op in sorted({value.owner for value in wanted if value not in new}, key=order.__getitem__):
        with end:
            clone_with(op, new)
    for task in tasks:
        task.detach_from_parent()
        end.insert(task)
        replace_uses_inside(task, new)
    next(reversed(order)).clone(end)  # the return
    return part


def _with_sources(values: Iterable[ir.Value]) -> list[ir.Value]:
    """Values, and those that they are made of, up to the program's arguments."""
    found = dict.fromkeys(values)
    waiting = list(found)
    while waiting:
        owner = waiting.pop().owner
        for operand in [] if isinstance(owner, ir.Block) else owner.operands:
            if operand not in found:
                found[operand] = None
                waiting.append(operand)
    return list(found)


def _tasks(function: ir.Operation) -> list[ir.Operation]:
    return [op.operation for op in function.regions[0].blocks[0].operations if op.operation.name == "kitsune.task"]


def _launch(task: ir.Operation) -> int:
    return ir.IntegerAttr(task.attributes["launch"]).value


def _drop_signals(tasks: list[ir.Operation]) -> None:
    """Leave out waits for posts that none of these tasks makes, posts that none waits for, and what nobody uses then."""
    inner = [op for task in tasks for op in walk(task)]
    signals = [op for op in inner if op.name in (*_WAITS, "kitsune.post")]
    made = {op.operands[0] for op in signals if op.name == "kitsune.post"}
    wanted = {op.operands[0] for op in signals if op.name in _WAITS}
    free = [op for op in inner if op.name.startswith(("arith.", "memref.")) and op.results]
    for op in signals:
        if op.operands[0] not in made & wanted:
            op.erase()
    for op in reversed(free):
        if not any(list(result.uses) for result in op.results):
            op.erase()
