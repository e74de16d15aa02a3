"""Several tile programs as one: what a kernel that runs any of them in any order (`kernel/epochs.py`) is emitted from.

Arguments, semaphores and tasks of one program follow those of the one before, so that a program's numbers of pointers,
counters, tensor maps and pieces of work are neighbours. Code uses the numbers of the whole; a run of a program brings addresses
from which its program's first number is already taken off.

Each task whose end nobody waits for posts to a semaphore of its program's own: how many of these posts there have been says
whether a run has ended.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from torch_mlir import ir

from kitsune_mlir.dialects.cloning import replace_uses_inside
from kitsune_mlir.dialects.tile_reader import ProgramView
from kitsune_mlir.dialects.tile_records import Buffer, TaskView, Wait
from kitsune_mlir.errors import UnsupportedError

__all__ = ["MergedView", "Part", "is_root", "merge"]


@dataclasses.dataclass(frozen=True)
class Part:
    """Where one of the programs is in the whole.

    Attributes:
        arguments: numbers of its arguments: inputs, results, its arena.
        tasks: numbers of its tasks.
        slots: numbers of the counters of its semaphores, the last one of which says when it has ended.
        inputs: how many of the arguments are that.
        overwrites: for each result the input whose memory it has; -1 for none.
        sizes: bytes of each argument.
        ending: tasks, by number, that post when they end.
    """

    arguments: range
    tasks: range
    slots: range
    inputs: int
    overwrites: tuple[int, ...]
    sizes: tuple[int, ...]
    ending: frozenset[int]

    @property
    def done(self) -> int:
        """The counter that says when it has ended."""
        return self.slots[-1]


class MergedView(ProgramView):
    """The merged program as code is generated from it.

    Args:
        function: what `merge` gave.
        parts: the programs of which it is.
    """

    def __init__(self, function: ir.Operation, parts: Sequence[Part]):
        self.parts = tuple(parts)
        self._held = {part.arguments[part.inputs + n] for part in parts for n, over in enumerate(part.overwrites) if over >= 0}
        super().__init__(function)

    def place_of(self, argument: int) -> tuple[str, int]:
        """What an argument is to its program: its role, and which of them."""
        part = next(part for part in self.parts if argument in part.arguments)
        number, last = argument - part.arguments.start, len(part.arguments) - 1
        if number < part.inputs:
            return "input", number
        return ("arena", 0) if number == last else ("result", number - part.inputs)

    def holds_values(self, buffer: Buffer) -> bool:
        """As of `TileProgram`."""
        return buffer.role == "result" and buffer.argument in self._held

    def _overwrites(self, arguments: list[ir.Value]) -> tuple[int, ...]:
        return (0,) if self._held else ()


def is_root(program: ProgramView, task: TaskView) -> bool:
    """Whether a task has to look for the end of what its run depends on: some tile waits for no earlier task of its program, or
    some thread may read what the run is given before its block has waited."""
    given = any(buffer.role == "input" or program.holds_values(buffer) for buffer in task.buffers)
    return given or not any(map(_certain, task.waits))


def _certain(wait: Wait) -> bool:
    """Whether every tile waits by this for some post of its own program, whatever its coordinates are."""
    if wait.named is not None or wait.rounds is not None or wait.count < 1:
        return False
    return wait.single or (wait.constant is not None and wait.constant[2] > wait.constant[1])


def merge(functions: Sequence[ir.Operation], name: str) -> tuple[ir.Operation, list[Part]]:
    """One function with the tasks of all, in the place of the first; the others are left empty.

    Raises:
        UnsupportedError: a program's tasks have shares of the multiprocessors, or hand tiles on through rings: a tile of it may
            wait for a later one.
    """
    first = functions[0]
    views = [_checked(function) for function in functions]
    with first.context, first.location:
        types = [argument.type for view in views for argument in view.block.arguments]
        made = ir.Operation.create(
            "func.func",
            attributes={
                "sym_name": ir.StringAttr.get(name),
                "function_type": ir.TypeAttr.get(ir.FunctionType.get(types, [])),
                "kitsune.program": ir.UnitAttr.get(),
                "kitsune.arguments": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), len(types) - 1),
                "kitsune.results": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 0),
            },
            regions=1,
            ip=ir.InsertionPoint(first),
        )
        block = made.regions[0].blocks.append(*types, arg_locs=[ir.Location.unknown()] * len(types))
        parts, arguments, tasks, slots = [], 0, 0, 0
        for view in views:
            count = len(view.block.arguments)
            part = Part(
                arguments=range(arguments, arguments + count),
                tasks=range(tasks, tasks + len(view.tasks)),
                slots=range(slots, slots + view.slots + 1),
                inputs=view.inputs,
                overwrites=view.overwrites,
                sizes=(*view.argument_bytes("input"), *view.argument_bytes("result"), *view.argument_bytes("arena")),
                ending=frozenset(tasks + task.number for task in _ending(view.tasks)),
            )
            _move(view, block, part)
            parts.append(part)
            arguments, tasks, slots = part.arguments.stop, part.tasks.stop, part.slots.stop
        with ir.InsertionPoint(block):
            ir.Operation.create("func.return")
    return made, parts


def _checked(function: ir.Operation) -> ProgramView:
    mode = function.attributes["kitsune.mode"] if "kitsune.mode" in function.attributes else None
    view = ProgramView(function)
    if mode is not None and ir.StringAttr(mode).value == "spatial":
        limit = "programs of which no tile waits for a later one ('temporal' or 'separate')"
        raise UnsupportedError(f"program '{view.name}' in a kernel of epochs", limit, "'spatial'", str(function.location))
    return view


def _ending(tasks: Sequence[TaskView]) -> Iterable[TaskView]:
    """The tasks of which no later one waits for all tiles."""
    posts: dict[int, int] = {}
    for task in tasks:
        for post in task.posts:
            posts[post.semaphore.first] = posts.get(post.semaphore.first, 0) + task.tiles
    whole = {
        wait.semaphore.first
        for task in tasks
        for wait in task.waits
        if (found := wait.constant) is not None
        and found[1:3] == (0, wait.semaphore.slots)
        and wait.count * wait.semaphore.slots == posts.get(wait.semaphore.first)
    }
    return (task for task in tasks if not any(post.semaphore.first in whole for post in task.posts))


def _move(view: ProgramView, block: ir.Block, part: Part) -> None:
    """Move a program's operations to the end of a block, and let the tasks that end it say so."""
    ending = {view.tasks[number - part.tasks.start].op for number in part.ending}
    new = {old: block.arguments[number] for old, number in zip(view.block.arguments, part.arguments, strict=True)}
    end, first = ir.InsertionPoint(block), None
    *operations, _ = [op.operation for op in view.block.operations]
    for op in operations:
        if op.name == "kitsune.task" and first is None:
            with end:
                first = _semaphore()
        if op in ending and first is not None:
            _post(op, first)
        op.detach_from_parent()
        end.insert(op)
        replace_uses_inside(op, new)


def _semaphore() -> ir.Value:
    slots = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 1)
    type_ = ir.Type.parse("!kitsune.semaphore")
    return ir.Operation.create("kitsune.make_semaphore", results=[type_], attributes={"slots": slots}).results[0]


def _post(task: ir.Operation, semaphore: ir.Value) -> None:
    inner = task.regions[0].blocks[0]
    last = list(inner.operations)[-1]
    with ir.InsertionPoint(last):
        index = ir.IndexType.get()
        zero = ir.Operation.create("arith.constant", results=[index], attributes={"value": ir.IntegerAttr.get(index, 0)})
        ir.Operation.create("kitsune.post", operands=[semaphore, zero.results[0]])
