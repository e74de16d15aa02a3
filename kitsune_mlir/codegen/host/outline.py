"""Reads a tile program and takes each task's body out into a `func.func` of its own.

A body becomes `func.func private @name(coordinates: index..., memrefs...)`: the waits and posts stay behind (they belong to the
driver, `scheduler.py`), because the memrefs of a body are marked `llvm.noalias`, which would allow LLVM to read them before a
wait inside the same function. Bodies that are equal up to the memrefs they use are taken out once.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch_mlir import ir
from torch_mlir.dialects import func

from kitsune_mlir.codegen.host.scatter_sums import widen_scatters
from kitsune_mlir.codegen.recurrence_loops import expand_recurrences
from kitsune_mlir.codegen.scatter_loops import counts_read, expand_scatters
from kitsune_mlir.dialects.cloning import clone_with
from kitsune_mlir.dialects.tile_program import SIGNALS
from kitsune_mlir.dialects.tile_reader import ProgramView
from kitsune_mlir.dialects.tile_records import Buffer, TaskView
from kitsune_mlir.dialects.verify import captures
from kitsune_mlir.errors import UnsupportedError

__all__ = ["Body", "Program", "Task", "read_program"]

_SYNCHRONISATION = (*SIGNALS, "kitsune.yield")


@dataclass
class Body:
    """One outlined task body. `task` is the first task that has it, for messages."""

    function: func.FuncOp
    task: str

    @property
    def name(self) -> str:
        """The symbol of the function."""
        return ir.StringAttr(self.function.operation.attributes["sym_name"]).value


@dataclass
class Task:
    """A task as it was read, the body that it calls and the memrefs that it passes, in order."""

    view: TaskView
    body: Body
    memrefs: list[ir.Value]


@dataclass
class Program:
    """A tile program taken apart: as it was read, its tasks in order and its distinct bodies."""

    view: ProgramView
    tasks: list[Task]
    bodies: list[Body]

    @property
    def tiles(self) -> int:
        """Number of tile tasks of the whole program."""
        return sum(task.view.tiles for task in self.tasks)


def read_program(operation: ir.Operation, into: ir.Block) -> Program:
    """Take the tile program `operation` (a `func.func` with `kitsune.program`) apart.

    The bodies are appended to the block `into` (a module's); `operation` stays as it is.

    Raises:
        UnsupportedError: the program holds something that the contract (docs/tile-program.md) does not allow, or a ring.
    """
    view = ProgramView(operation)
    bodies: dict[str, Body] = {}
    return Program(view, [_outline(task, view, bodies, into) for task in view.tasks], list(bodies.values()))


def _outline(task: TaskView, program: ProgramView, bodies: dict[str, Body], into: ir.Block) -> Task:
    if task.uses_ring:
        raise UnsupportedError("kitsune.wait_rounds", "workers of the host share no rings", location=str(task.op.location))
    captured = captures(task.op)
    used = _used_by_body(task.op.regions[0].blocks[0])
    memrefs = [v for v in captured if isinstance(v.type, ir.MemRefType) and v in used]
    counts = {number: program.block.arguments[number] for number in counts_read(task.op)}
    memrefs += [value for value in counts.values() if value not in memrefs]
    function = _body_function(task.op, captured, memrefs, program.buffers, counts)
    key = function.operation.get_asm(enable_debug_info=False)  # all are called "body" so far: equal bodies have equal text
    if key in bodies:
        function.operation.erase()
        return Task(task, bodies[key], memrefs)
    into.append(function)
    function.operation.attributes["sym_name"] = ir.StringAttr.get(f"{program.name}_body{len(bodies)}")
    bodies[key] = Body(function, task.name)
    return Task(task, bodies[key], memrefs)


def _used_by_body(block: ir.Block) -> set[ir.Value]:
    """Values used by the ops of a task other than waits and posts."""
    used: set[ir.Value] = set()
    for op in block.operations:
        if op.operation.name in _SYNCHRONISATION:
            continue
        used.update(op.operation.operands)
        used.update(captures(op))
    return used


def _body_function(
    task: ir.Operation,
    captured: list[ir.Value],
    memrefs: list[ir.Value],
    buffers: dict[ir.Value, Buffer],
    counts: dict[int, ir.Value],
) -> func.FuncOp:
    block = task.regions[0].blocks[0]
    rank = len(block.arguments)
    types = [ir.IndexType.get()] * rank + [v.type for v in memrefs]
    with task.location:
        function = func.FuncOp("body", (types, []), visibility="private", ip=False)
        entry = function.add_entry_block()
        unit, empty = ir.UnitAttr.get(), ir.DictAttr.get({})
        distinct = ir.DictAttr.get({"llvm.noalias": unit})
        held = [buffers[v] for v in memrefs if v in buffers]  # a count that nobody else reads is none of them
        shared = [v in buffers and any(buffers[v].overlaps(w) for w in held if w is not buffers[v]) for v in memrefs]
        function.arg_attrs = ir.ArrayAttr.get([empty] * rank + [empty if s else distinct for s in shared])
    mapping: dict[ir.Value, ir.Value] = dict(zip([*block.arguments, *memrefs], entry.arguments, strict=True))
    with ir.InsertionPoint(entry):
        for value in captured:  # constants are cloned into the body; semaphores stay with the driver
            if not isinstance(value.type, ir.MemRefType) and not isinstance(value.owner, ir.Block):
                if value.owner.name == "arith.constant":
                    mapping[value] = value.owner.operation.clone().operation.results[0]
        for op in block.operations:
            if op.operation.name not in _SYNCHRONISATION:
                clone_with(op.operation, mapping)
        with task.location:
            func.ReturnOp([])
    widen_scatters(function.operation)
    expand_scatters(function.operation, {number: mapping[value] for number, value in counts.items()})
    expand_recurrences(function.operation)
    _drop_unused(entry)
    return function


def _drop_unused(block: ir.Block) -> None:
    """Erase index arithmetic that only the synchronisation used, so that it does not tell equal bodies apart."""
    for op in reversed(list(block.operations)):
        op = op.operation
        if op.name.startswith("arith.") and not any(True for result in op.results for _ in result.uses):
            op.erase()
