"""Tile programs read into the records of `tile_records`: the one reader of code generators, progress check and simulator.

Nothing here changes the IR.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch_mlir import ir

from kitsune_mlir.errors import UnsupportedError

from .access import static_ints
from .attribute_table import PROGRAM_OVERWRITES
from .sizes import tensor_bytes
from .tile_indices import TileIndices
from .tile_program import SIGNALS, queue_parts
from .tile_records import Buffer, Load, NamedRows, Offset, Post, Queue, QueueUse, Semaphore, Share, Store, TaskView, Wait
from .unchanged import constant
from .verify import walk
from .written_arguments import written_arguments, written_before

__all__ = [
    "MalformedProgram",
    "ProgramView",
    "TileProgram",
    "grid_of",
    "number_of",
    "offsets_of",
    "program_functions",
    "shares_of",
]

_DYNAMIC = ir.ShapedType.get_dynamic_size()
_HOLDS = "a tile program holds views, constants, semaphores and tasks"


class MalformedProgram(UnsupportedError):
    """A tile program is not of the form of docs/tile-program.md.

    Attributes:
        operation: where.
        message: what is wrong with it; the operation's name and `op` come before it in a diagnostic.
    """

    def __init__(self, operation: ir.Operation, message: str):
        super().__init__(operation.name, message, None, str(operation.location))
        self.operation, self.message = operation, message


class TileProgram:
    """What a tile program declares: arguments, buffers, semaphores, queues; and its tasks as they are.

    Args:
        function: the `func.func` with attribute `kitsune.program`.

    Attributes:
        mode: "temporal", "spatial" or "separate".
        inputs, results: how many arguments are that.
        overwrites: for each result the argument whose memory it is given, and whose values it holds before; -1 for none.
        arena: the buffer that is the last argument.
        buffers: by their memref, views included; semaphores, queues: by their value.
        constants: `arith.constant`s of the program's body, by their value; computed: its other arithmetic.
        slots: number of counters of all semaphores.
        task_ops: the `kitsune.task`s in order.

    Raises:
        MalformedProgram: the body holds an operation that the contract does not have, or one that breaks it.
    """

    def __init__(self, function: ir.Operation):
        self.function = function.operation
        self.name: str = ir.StringAttr(self.function.attributes["sym_name"]).value
        mode = self.function.attributes["kitsune.mode"] if "kitsune.mode" in self.function.attributes else None
        self.mode: str = "temporal" if mode is None else ir.StringAttr(mode).value
        self.block = self.function.regions[0].blocks[0]
        arguments = list(self.block.arguments)
        inputs, results = (number_of(self.function, f"kitsune.{name}") for name in ("arguments", "results"))
        self.inputs = len(arguments) - 2 if inputs is None else inputs
        self.results = len(arguments) - 1 - self.inputs if results is None else results
        if self.inputs + self.results + 1 != len(arguments):
            needed = f"{self.inputs} inputs, {self.results} results and the arena"
            raise MalformedProgram(self.function, f"has {len(arguments)} arguments, needs {needed}")
        self.overwrites = self._overwrites(arguments)
        self.buffers: dict[ir.Value, Buffer] = {}
        self.semaphores: dict[ir.Value, Semaphore] = {}
        self.queues: dict[ir.Value, Queue] = {}
        self.constants: dict[ir.Value, ir.Operation] = {}
        self.computed: list[ir.Operation] = []
        self.task_ops: list[ir.Operation] = []
        self.slots = 0
        self._posters: dict[ir.Value, int] = {}
        self._indices = TileIndices((), ())
        for n in self._wanted(len(arguments)):
            role, number = self.place_of(n)
            name = {"input": f"argument {number}", "result": f"result {number}"}.get(role, "the arena")
            self._declare(self.function, arguments[n], role, n, 0, name)
        self.arena = self.buffers[arguments[-1]]
        self._arenas = {value: buffer for value, buffer in self.buffers.items() if buffer.role == "arena"}
        for op in self.block.operations:
            self._read(op.operation)

    def _overwrites(self, arguments: list[ir.Value]) -> tuple[int, ...]:
        if PROGRAM_OVERWRITES not in self.function.attributes:
            return (-1,) * self.results
        attributes = self.function.attributes
        found, wrong = _overwritten(attributes[PROGRAM_OVERWRITES], attributes["function_type"], self.inputs, self.results)
        if wrong:
            raise MalformedProgram(self.function, wrong)
        for number in found:
            if number >= 0 and any(True for _ in arguments[number].uses):
                raise MalformedProgram(self.function, f"uses argument {number}, which is the memory of a result")
        return found

    def place_of(self, argument: int) -> tuple[str, int]:
        """What an argument is: its role, and which of them."""
        if argument < self.inputs:
            return "input", argument
        return ("result", argument - self.inputs) if argument < self.inputs + self.results else ("arena", 0)

    def argument_bytes(self, role: str) -> tuple[int, ...]:
        """Sizes of the arguments of a role."""
        ends = {"input": (0, self.inputs), "result": (self.inputs, self.inputs + self.results)}
        start, end = ends.get(role, (self.inputs + self.results, None))
        return _sizes_of(self.function.attributes["function_type"])[start:end]

    def _wanted(self, arguments: int) -> Iterable[int]:
        """The numbers of the arguments that a buffer stands for, of so many, the arena's the last."""
        return range(arguments)

    def holds_values(self, buffer: Buffer) -> bool:
        """Whether a buffer is a result that holds an argument's values before the program writes it."""
        number = buffer.argument - self.inputs
        return buffer.role == "result" and 0 <= number < self.results and self.overwrites[number] >= 0

    def _declare(
        self, op: ir.Operation, value: ir.Value, role: str, argument: int, offset: int, name: str, source: Buffer | None = None
    ) -> Buffer:
        extents = _extents_of(value.type)
        if extents is None:
            raise MalformedProgram(op, f"{name} is {value.type}; buffers are memrefs of static shape, contiguous and row-major")
        buffer = Buffer(value, role, argument, offset, *extents, name, source)
        self.buffers[value] = buffer
        return buffer

    def _read(self, op: ir.Operation) -> None:
        name = op.name
        if name == "arith.constant":
            self.constants[op.results[0]] = op
        elif name == "memref.view":
            self._view(op)
        elif name in ("memref.expand_shape", "memref.collapse_shape", "memref.cast"):
            source = self.buffers[op.operands[0]]
            place = source.role, source.argument, source.offset, source.name
            self._declare(op, op.results[0], *place, source.origin)
        elif name == "kitsune.make_semaphore":
            slots = ir.IntegerAttr(op.attributes["slots"]).value
            self.semaphores[op.results[0]] = Semaphore(op.results[0], self.slots, slots)
            self.slots += slots
        elif name == "kitsune.make_queue":
            memory = self.buffers[op.operands[0]]
            if memory.role != "arena" or memory is self.arena or memory.source is not None:
                raise MalformedProgram(op, "needs a memref.view of the arena")
            tile, depth = queue_parts(op.results[0].type)
            pushes, pops = (ir.IntegerAttr(op.attributes[count]).value for count in ("pushes", "pops"))
            self.queues[op.results[0]] = Queue(op, memory, tuple(ir.ShapedType(tile).shape), depth, pushes, pops)
        elif name == "kitsune.task":
            self.task_ops.append(op)
        elif name.startswith("arith."):
            self.computed.append(op)
        elif name != "func.return":
            raise MalformedProgram(op, _HOLDS)

    def _view(self, op: ir.Operation) -> None:
        shift, arena = self._indices.of(op.operands[1]), self._arenas.get(op.operands[0])
        if arena is None or shift is None or len(op.operands) > 2:
            raise MalformedProgram(op, "must show the arena at a constant offset")
        start = int(shift)
        name = f"the buffer at arena byte {start}"
        buffer = self._declare(op, op.results[0], arena.role, arena.argument, start, name)
        if start < 0 or start + buffer.bytes > arena.bytes:
            raise MalformedProgram(op, f"shows bytes [{start}, {start + buffer.bytes}) of an arena of {arena.bytes} bytes")

    def signal(self, op: ir.Operation, task: int) -> Wait[ir.Value] | Post[ir.Value] | QueueUse:
        """What one of `SIGNALS` in task number `task` waits for or posts.

        Asked for in the order of the program: a wait knows the last task before it that posts to its semaphore.
        """
        name = op.name
        if name in ("kitsune.wait", "kitsune.wait_rounds", "kitsune.wait_rows"):
            value, lo, hi, *last = op.operands
            semaphore, count = self._semaphore(op), ir.IntegerAttr(op.attributes["count"]).value
            if name == "kitsune.wait_rows":
                return Wait(op, semaphore, lo, hi, count, None, self._posters.get(value), self._named(op, last[0]))
            return Wait(op, semaphore, lo, hi, count, last[0] if last else None, self._posters.get(value))
        if name == "kitsune.post":
            self._posters[op.operands[0]] = task
            return Post(op, self._semaphore(op), op.operands[1])
        queue = self.queues.get(op.operands[0])
        if queue is None:
            raise MalformedProgram(op, "uses a queue that no kitsune.make_queue of this function declares")
        return QueueUse(op, name.removeprefix("kitsune."), queue, op.operands[1])

    def _semaphore(self, op: ir.Operation) -> Semaphore:
        found = self.semaphores.get(op.operands[0])
        if found is None:
            raise MalformedProgram(op, "uses a semaphore that no kitsune.make_semaphore of this function declares")
        return found

    def _named(self, op: ir.Operation, indices: ir.Value) -> NamedRows:
        buffer = self.buffers.get(indices)
        if buffer is None or buffer.role != "input":
            raise MalformedProgram(op, "needs indices that are an input: what a task makes may not be there yet")
        rows, extent = (ir.IntegerAttr(op.attributes[name]).value for name in ("rows", "extent"))
        return NamedRows(buffer, rows, extent)


class ProgramView(TileProgram):
    """A tile program as code is generated from it: offsets are constants, queues are lowered to semaphores.

    Its buffers are those that something uses: a launch of many has the arguments of the whole program.

    Attributes:
        tasks: its tasks, taken apart.

    Raises:
        MalformedProgram: the body holds an operation that the contract does not have, or one that breaks it.
    """

    def __init__(self, function: ir.Operation):
        super().__init__(function)
        for op in (*self.computed, *(queue.op for queue in self.queues.values())):
            raise MalformedProgram(op, _HOLDS)
        self._writers: dict[tuple[int, int], int] = {}
        self._written = written_before(self.function)
        self.tasks: list[TaskView] = []
        for op in self.task_ops:
            self.tasks.append(self._task(op))

    def _wanted(self, arguments: int) -> Iterable[int]:
        values = (value for op in walk(self.function) for value in op.operands if isinstance(value, ir.BlockArgument))
        return sorted({value.arg_number for value in values if value.owner == self.block} | {arguments - 1})

    def _task(self, op: ir.Operation) -> TaskView:
        waits, loads, stores, posts, body = [], [], [], [], []
        if any(number >= 0 for number in self.overwrites):
            self._written |= written_arguments([op])
        for inner in op.regions[0].blocks[0].operations:
            inner = inner.operation
            name = inner.name
            if name in SIGNALS:
                signal = self.signal(inner, len(self.tasks))
                (waits if isinstance(signal, Wait) else posts).append(signal)
            elif name == "bufferization.to_tensor" and (window := self._window(inner.operands[0])):
                writer = self._writers.get(window[0].memory)
                given = window[0].role == "input" or (self.holds_values(window[0]) and window[0].argument not in self._written)
                loads.append(Load(inner.results[0], *window[:3], (*window[3], inner), writer, given))
            elif name == "bufferization.materialize_in_destination" and (window := self._window(inner.operands[1])):
                stores.append(Store(inner.operands[0], *window[:3], (*window[3], inner)))
            elif name != "kitsune.yield":
                body.append(inner)
        self._writers.update({store.buffer.memory: len(self.tasks) for store in stores})
        used = {o for record in (*loads, *stores) for o in record.operations}
        # A subview belongs to the body when something other than a load or store uses it.
        body = [o for o in body if o not in used or not _used_only_by(o, used)]
        grid, coordinates = grid_of(op)
        return TaskView(
            op=op,
            name=ir.StringAttr(op.attributes["sym_name"]).value,
            number=len(self.tasks),
            grid=grid,
            requested_engine=ir.StringAttr(op.attributes["engine"]).value if "engine" in op.attributes else "",
            coordinates=coordinates,
            waits=tuple(waits),
            loads=tuple(loads),
            stores=tuple(stores),
            posts=tuple(posts),
            body=tuple(body),
            buffers=self._used_buffers(op),
            program_tasks=len(self.task_ops),
            program_signals=bool(self.semaphores),
            spatial=self.mode == "spatial",
        )

    def _window(self, view: ir.Value) -> tuple[Buffer, tuple[Offset, ...], tuple[int, ...], tuple[ir.Operation, ...]] | None:
        """(buffer, offsets, sizes, operations) of a memref that is a buffer or a plain subview of one; else None."""
        if view in self.buffers:
            buffer = self.buffers[view]
            return buffer, (0,) * len(buffer.shape), buffer.shape, ()
        op = view.owner
        if isinstance(op, ir.Block) or op.name != "memref.subview" or op.operands[0] not in self.buffers:
            return None
        sizes = static_ints(op, "static_sizes")
        if any(stride != 1 for stride in static_ints(op, "static_strides")) or _DYNAMIC in sizes:
            return None
        return self.buffers[op.operands[0]], offsets_of(op), tuple(sizes), (op.operation,)

    def _used_buffers(self, task: ir.Operation) -> tuple[Buffer, ...]:
        found: dict[ir.Value, Buffer] = {}
        for op in walk(task):
            for operand in op.operands:
                if operand in self.buffers:
                    found[operand] = self.buffers[operand]
        return tuple(found.values())


@constant
def _extents_of(type_: ir.Type) -> tuple[tuple[int, ...], ir.Type] | None:
    """Shape and element type of a buffer's memref; None for what no buffer is."""
    if not isinstance(type_, ir.MemRefType) or not type_.has_static_shape:
        return None
    if type_.affine_map != ir.AffineMap.get_identity(type_.rank, type_.context):
        return None
    return tuple(type_.shape), type_.element_type


@constant
def _sizes_of(function_type: ir.Attribute) -> tuple[int, ...]:
    """Bytes of a program's arguments."""
    return tuple(tensor_bytes(type_) for type_ in ir.FunctionType(ir.TypeAttr(function_type).value).inputs)


@constant
def _overwritten(named: ir.Attribute, function_type: ir.Attribute, inputs: int, results: int) -> tuple[tuple[int, ...], str]:
    """`kitsune.overwrites` of a program, which each of many launches has; and what is wrong with it, or nothing."""
    found, types = tuple(ir.DenseI64ArrayAttr(named)), ir.FunctionType(ir.TypeAttr(function_type).value).inputs
    some = [number for number in found if number >= 0]
    if len(found) != results or len({*some}) < len(some) or max(some, default=0) >= inputs:
        return found, f"overwrites {found}, needs an argument of its own, or -1, for each result"
    for result, number in zip(types[inputs:], found, strict=False):
        if number >= 0 and types[number] != result:
            return found, f"overwrites argument {number}, {types[number]}, with {result}"
    return found, ""


def program_functions(module: ir.Operation) -> list[ir.Operation]:
    """The tile programs of a module."""
    operations = [op.operation for op in module.regions[0].blocks[0].operations]
    return [op for op in operations if op.name == "func.func" and "kitsune.program" in op.attributes]


def number_of(op: ir.Operation, name: str) -> int | None:
    """An integer attribute of an operation, if it has it."""
    return ir.IntegerAttr(op.attributes[name]).value if name in op.attributes else None


def shares_of(tasks: Iterable[ir.Operation]) -> list[Share | None]:
    """The multiprocessors of each task of a spatial program: `workers` from `first` on, or from the end of those before."""
    shares: list[Share | None] = []
    end = 0
    for task in tasks:
        first, workers = number_of(task, "first"), number_of(task, "workers")
        share = Share(end if first is None else first, workers) if workers else None
        shares.append(share)
        end = max(end, share.first + share.workers) if share else end
    return shares


def grid_of(task: ir.Operation) -> tuple[tuple[int, ...], tuple[ir.Value, ...]]:
    """A task's extents, and its coordinates."""
    return tuple(ir.DenseI64ArrayAttr(task.attributes["grid"])), tuple(task.regions[0].blocks[0].arguments)


def offsets_of(subview: ir.Operation) -> tuple[Offset, ...]:
    """The offset of a `memref.subview` along each dimension of its source."""
    dynamic = iter(list(subview.operands)[1:])
    return tuple(next(dynamic) if static == _DYNAMIC else static for static in static_ints(subview, "static_offsets"))


def _used_only_by(op: ir.Operation, users: set[ir.Operation]) -> bool:
    return all(use.owner in users for result in op.results for use in result.uses)
