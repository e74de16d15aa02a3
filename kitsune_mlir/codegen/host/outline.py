"""Reads a tile program and takes each task's body out into a `func.func` of its own.

A body becomes `func.func private @name(coordinates: index..., memrefs...)`: the waits and posts stay behind (they belong to the
driver, `scheduler.py`), because the memrefs of a body are marked `llvm.noalias`, which would allow LLVM to read them before a
wait inside the same function. Bodies that are equal up to the memrefs they use are taken out once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch_mlir import ir
from torch_mlir.dialects import func

from kitsune_mlir.codegen.scatter_loops import expand_scatter_adds
from kitsune_mlir.dialects.cloning import clone_with
from kitsune_mlir.dialects.sizes import tensor_bytes
from kitsune_mlir.dialects.verify import captures
from kitsune_mlir.errors import UnsupportedError

__all__ = ["Buffer", "Body", "Program", "Semaphore", "Task", "read_program"]

_VIEWS = ("memref.expand_shape", "memref.collapse_shape", "memref.cast")
_SYNCHRONISATION = ("kitsune.wait", "kitsune.wait_rows", "kitsune.post", "kitsune.yield")


@dataclass(frozen=True)
class Buffer:
    """Where a memref of the program lies: `offset` bytes into argument number `argument`, `size` bytes long."""

    argument: int
    offset: int
    size: int

    def overlaps(self, other: Buffer) -> bool:
        """Whether the two share a byte (two arguments never do)."""
        if self.argument != other.argument:
            return False
        return self.offset < other.offset + other.size and other.offset < self.offset + self.size


@dataclass(frozen=True)
class Semaphore:
    """Arrival counters: `slots` of them, starting with counter number `first` of the program."""

    first: int
    slots: int


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
    """One `kitsune.task`: its operation, grid, the body that it calls and the memrefs that it passes, in order."""

    operation: ir.Operation
    name: str
    grid: tuple[int, ...]
    body: Body
    memrefs: list[ir.Value]

    @property
    def tiles(self) -> int:
        """How many tile tasks there are."""
        return math.prod(self.grid)


@dataclass
class Program:
    """A tile program taken apart: the function, its tasks in order, its distinct bodies and where everything lies."""

    function: ir.Operation
    name: str
    tasks: list[Task]
    bodies: list[Body]
    buffers: dict[ir.Value, Buffer]
    semaphores: dict[ir.Value, Semaphore]

    @property
    def slots(self) -> int:
        """Number of semaphore slots of the whole program."""
        return sum(s.slots for s in self.semaphores.values())

    @property
    def tiles(self) -> int:
        """Number of tile tasks of the whole program."""
        return sum(task.tiles for task in self.tasks)


def read_program(operation: ir.Operation, into: ir.Block) -> Program:
    """Take the tile program `operation` (a `func.func` with `kitsune.program`) apart.

    The bodies are appended to the block `into` (a module's); `operation` stays as it is.

    Raises:
        UnsupportedError: the program holds something that the contract (docs/tile-program.md) does not allow.
    """
    name = ir.StringAttr(operation.attributes["sym_name"]).value
    block = operation.regions[0].blocks[0]
    buffers: dict[ir.Value, Buffer] = {}
    for i, argument in enumerate(block.arguments):
        if not isinstance(argument.type, ir.MemRefType) or not argument.type.has_static_shape:
            raise UnsupportedError("func.func", f"arguments of tile program '{name}' are static memrefs", argument.type)
        buffers[argument] = Buffer(i, 0, tensor_bytes(argument.type))
    semaphores: dict[ir.Value, Semaphore] = {}
    tasks: list[Task] = []
    bodies: dict[str, Body] = {}
    slots = 0
    for op in block.operations:
        op = op.operation
        if op.name == "kitsune.make_semaphore":
            count = ir.IntegerAttr(op.attributes["slots"]).value
            semaphores[op.results[0]] = Semaphore(slots, count)
            slots += count
        elif op.name == "memref.view":
            base = buffers[op.operands[0]]
            offset = base.offset + _constant(op.operands[1])
            buffers[op.results[0]] = Buffer(base.argument, offset, tensor_bytes(op.results[0].type))
        elif op.name in _VIEWS:
            buffers[op.results[0]] = buffers[op.operands[0]]
        elif op.name == "kitsune.task":
            tasks.append(_outline(op, name, bodies, buffers, into))
        elif op.name not in ("arith.constant", "func.return"):
            what = f"tile program '{name}' declares buffers, semaphores, constants and tasks"
            raise UnsupportedError(op.name, what, location=str(op.location))
    return Program(operation, name, tasks, list(bodies.values()), buffers, semaphores)


def _constant(value: ir.Value) -> int:
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != "arith.constant":
        raise UnsupportedError("memref.view", "offsets into the arena are constants", value)
    return ir.IntegerAttr(owner.attributes["value"]).value


def _outline(
    task: ir.Operation, program: str, bodies: dict[str, Body], buffers: dict[ir.Value, Buffer], into: ir.Block
) -> Task:
    name = ir.StringAttr(task.attributes["sym_name"]).value
    grid = tuple(ir.DenseI64ArrayAttr(task.attributes["grid"]))
    captured = captures(task)
    memrefs = [v for v in captured if isinstance(v.type, ir.MemRefType)]
    used = _used_by_body(task.regions[0].blocks[0])
    memrefs = [v for v in memrefs if v in used]
    function = _body_function(task, captured, memrefs, buffers)
    key = function.operation.get_asm(enable_debug_info=False)  # all are called "body" so far: equal bodies have equal text
    if key in bodies:
        function.operation.erase()
        return Task(task, name, grid, bodies[key], memrefs)
    into.append(function)
    function.operation.attributes["sym_name"] = ir.StringAttr.get(f"{program}_body{len(bodies)}")
    bodies[key] = Body(function, name)
    return Task(task, name, grid, bodies[key], memrefs)


def _used_by_body(block: ir.Block) -> set[ir.Value]:
    """Values used by the ops of a task other than waits and posts."""
    used: set[ir.Value] = set()
    for op in block.operations:
        if op.operation.name in _SYNCHRONISATION:
            continue
        used.update(op.operation.operands)
        used.update(captures(op))
    return used


def _body_function(task, captured, memrefs, buffers) -> func.FuncOp:
    block = task.regions[0].blocks[0]
    rank = len(block.arguments)
    types = [ir.IndexType.get()] * rank + [v.type for v in memrefs]
    with task.location:
        function = func.FuncOp("body", (types, []), visibility="private", ip=False)
        entry = function.add_entry_block()
        unit, empty = ir.UnitAttr.get(), ir.DictAttr.get({})
        distinct = ir.DictAttr.get({"llvm.noalias": unit})
        shared = [any(buffers[v].overlaps(buffers[w]) for w in memrefs if w is not v) for v in memrefs]
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
    expand_scatter_adds(function.operation)
    _drop_unused(entry)
    return function


def _drop_unused(block: ir.Block) -> None:
    """Erase index arithmetic that only the synchronisation used, so that it does not tell equal bodies apart."""
    for op in reversed(list(block.operations)):
        op = op.operation
        if op.name.startswith("arith.") and not any(True for result in op.results for _ in result.uses):
            op.erase()
