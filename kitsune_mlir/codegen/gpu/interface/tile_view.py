"""A tile program read into plain records: what engines decide from (docs/tile-program.md is the form that is read).

Nothing here changes the IR. Records hold `ir.Value`s of the program, so they live as long as its module does.
"""

from __future__ import annotations

import dataclasses
import math

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.memory import Cache
from kitsune_mlir.dialects.access import constant_of
from kitsune_mlir.dialects.sizes import element_bytes
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.errors import UnsupportedError

__all__ = ["Buffer", "Load", "Offset", "Post", "ProgramView", "Semaphore", "Store", "TaskView", "Wait", "element_bytes"]

Offset = int | ir.Value
"""A constant, or an `index` value computed in the task from its tile coordinates."""

_DYNAMIC = ir.ShapedType.get_dynamic_size()


@dataclasses.dataclass(frozen=True, eq=False)
class Buffer:
    """Memory that the whole program sees: an argument, a buffer in the arena, or a reshaped view of either.

    Attributes:
        value: the memref in the program's body.
        role: "input", "result" or "arena": whose memory it is.
        argument: index of the function argument that holds it.
        offset: bytes from the start of that argument.
        shape: extents, row-major and contiguous.
        element: element type.
    """

    value: ir.Value
    role: str
    argument: int
    offset: int
    shape: tuple[int, ...]
    element: ir.Type

    @property
    def cache(self) -> Cache:
        """How L2 should treat what goes there and comes from there: what stages hand on is read again, soon.

        Against no hint, on an H200: dlrm, gcast and a Llama layer of 128 tokens 1 to 2 % faster, no model slower.
        """
        return Cache.KEEP if self.role == "arena" else Cache.DEFAULT

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * element_bytes(self.element)

    @property
    def strides(self) -> tuple[int, ...]:
        """Distance in elements between neighbours along each dimension."""
        return tuple(math.prod(self.shape[i + 1 :]) for i in range(len(self.shape)))

    @property
    def memory(self) -> tuple[int, int]:
        """What two buffers that start at the same place share: (argument, offset)."""
        return (self.argument, self.offset)


@dataclasses.dataclass(frozen=True, eq=False)
class Load:
    """`bufferization.to_tensor` of a window of a buffer.

    Attributes:
        tensor: the tensor value that the body uses.
        buffer: where it comes from.
        offsets: first element along each dimension of the buffer.
        sizes: extent of the window along each dimension of the buffer. The tensor's shape is `sizes`, or `sizes` without some
            extents of 1 (a rank-reducing subview).
        operations: the operations that this load consists of (subview, to_tensor).
        writer: number of the last task before that stores to the buffer, or None.
    """

    tensor: ir.Value
    buffer: Buffer
    offsets: tuple[Offset, ...]
    sizes: tuple[int, ...]
    operations: tuple[ir.Operation, ...]
    writer: int | None = None

    @property
    def whole(self) -> bool:
        """Whether the window is the whole buffer."""
        return self.sizes == self.buffer.shape


@dataclasses.dataclass(frozen=True, eq=False)
class Store:
    """`bufferization.materialize_in_destination` of a tensor into a window of a buffer; fields as `Load`."""

    tensor: ir.Value
    buffer: Buffer
    offsets: tuple[Offset, ...]
    sizes: tuple[int, ...]
    operations: tuple[ir.Operation, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Semaphore:
    """`kitsune.make_semaphore`: `slots` counters, numbered from `first` among all counters of the program."""

    value: ir.Value
    first: int
    slots: int


@dataclasses.dataclass(frozen=True, eq=False)
class NamedRows:
    """Slots by indices: element e of `indices`, the number of one of `extent` rows, stands for slot e / `rows`."""

    indices: Buffer
    rows: int
    extent: int


@dataclasses.dataclass(frozen=True, eq=False)
class Wait:
    """`kitsune.wait`: slots [lo, hi) of `semaphore` have had `count` posts each; `kitsune.wait_rounds`: `count * rounds`.

    `task` is the number of the earlier task that posts, or None. With `named` (`kitsune.wait_rows`), [lo, hi) are elements of
    a buffer of indices, which name the slots.
    """

    semaphore: Semaphore
    lo: ir.Value
    hi: ir.Value
    count: int
    rounds: ir.Value | None = None
    task: int | None = None
    named: NamedRows | None = None

    @property
    def single(self) -> bool:
        """Whether the range is [x, x + 1), seen from how `hi` is computed."""
        if self.named is not None:
            return False
        slots = self._slots
        return slots[1] - slots[0] == 1 if slots is not None else _is_successor(self.hi, self.lo)

    @property
    def constant(self) -> tuple[int, int, int, int] | None:
        """What all tiles of the task wait for: first slot of the semaphore, `lo`, `hi`, `count`; None if tiles differ."""
        slots = self._slots
        return (
            None
            if slots is None or self.rounds is not None or self.named is not None
            else (self.semaphore.first, *slots, self.count)
        )

    @property
    def _slots(self) -> tuple[int, int] | None:
        lo, hi = constant_of(self.lo), constant_of(self.hi)
        return None if lo is None or hi is None else (lo, hi)


@dataclasses.dataclass(frozen=True, eq=False)
class Post:
    """`kitsune.post`: adds one to `slot` of `semaphore`."""

    semaphore: Semaphore
    slot: ir.Value


@dataclasses.dataclass(frozen=True, eq=False)
class TaskView:
    """One `kitsune.task`.

    Attributes:
        op: the operation.
        name: `sym_name`.
        number: position among the program's tasks.
        grid: tiles along each dimension.
        requested_engine: the planner's engine, or "".
        coordinates: the block's arguments.
        waits, loads, stores, posts: in program order.
        body: every other operation of the task's block, in order, without the terminator: index arithmetic, constants, the
            linalg work, and any memref operation that is no plain load or store (scatter-add loops, ...). An engine declines
            a task whose body holds something that it does not know.
        buffers: buffers that the task uses, those of loads and stores included, in order of first use.
    """

    op: ir.Operation
    name: str
    number: int
    grid: tuple[int, ...]
    requested_engine: str
    coordinates: tuple[ir.Value, ...]
    waits: tuple[Wait, ...]
    loads: tuple[Load, ...]
    stores: tuple[Store, ...]
    posts: tuple[Post, ...]
    body: tuple[ir.Operation, ...]
    buffers: tuple[Buffer, ...]

    @property
    def tiles(self) -> int:
        """Number of tiles."""
        return math.prod(self.grid)

    @property
    def uses_ring(self) -> bool:
        """Whether the task is at an end of a ring."""
        return any(wait.rounds is not None for wait in self.waits)

    @property
    def ordered(self) -> bool:
        """Whether tiles are done in the order of their numbers: who runs beside this task waits for its first ones first."""
        return "workers" in self.op.attributes

    def load_of(self, tensor: ir.Value) -> Load | None:
        """The load that gives `tensor`, or None if the body computes it."""
        return next((load for load in self.loads if load.tensor == tensor), None)

    def work(self) -> list[ir.Operation]:
        """The body without index arithmetic and constants: the operations on tensors, memrefs and control flow."""
        return [op for op in self.body if not _is_scalar(op)]


def _is_successor(hi: ir.Value, lo: ir.Value) -> bool:
    op = hi.owner
    if isinstance(op, ir.Block) or op.name != "arith.addi":
        return False
    a, b = op.operands
    return (a == lo and constant_of(b) == 1) or (b == lo and constant_of(a) == 1)


def _is_scalar(op: ir.Operation) -> bool:
    """Arithmetic on indices, integers and floats outside any linalg body."""
    if not op.name.startswith(("arith.", "index.", "affine.")):
        return False
    return not any(isinstance(result.type, ir.ShapedType) for result in op.results)


class ProgramView:
    """A tile program's arguments, buffers, semaphores and tasks.

    Args:
        function: the `func.func` with attribute `kitsune.program`.

    Raises:
        UnsupportedError: the body holds an operation that the contract does not have.
    """

    def __init__(self, function: ir.Operation):
        self.function = function.operation
        self.name: str = ir.StringAttr(self.function.attributes["sym_name"]).value
        self.block = self.function.regions[0].blocks[0]
        arguments = list(self.block.arguments)
        self.inputs = self._count("kitsune.arguments", len(arguments) - 2)
        self.results = self._count("kitsune.results", len(arguments) - 1 - self.inputs)
        if self.inputs + self.results + 1 != len(arguments):
            raise UnsupportedError(
                "func.func",
                f"a tile program has its inputs ({self.inputs}), its results ({self.results}) and one arena as arguments",
                len(arguments),
                str(self.function.location),
            )
        self.buffers: dict[ir.Value, Buffer] = {}
        self.semaphores: dict[ir.Value, Semaphore] = {}
        self.constants: dict[ir.Value, ir.Operation] = {}
        self.tasks: list[TaskView] = []
        self._posters: dict[ir.Value, int] = {}
        self._writers: dict[tuple[int, int], int] = {}
        self.slots = 0
        for index, argument in enumerate(arguments):
            roles = ("input",) * self.inputs + ("result",) * self.results + ("arena",)
            self._declare(argument, roles[index], index, 0)
        for op in self.block.operations:
            self._read(op.operation)

    def _count(self, name: str, default: int) -> int:
        attributes = self.function.attributes
        return ir.IntegerAttr(attributes[name]).value if name in attributes else default

    def _declare(self, value: ir.Value, role: str, argument: int, offset: int) -> None:
        type = ir.MemRefType(value.type)
        if not type.has_static_shape or not (type.layout.is_identity if hasattr(type.layout, "is_identity") else True):
            raise UnsupportedError("memref", "buffers are static, contiguous and row-major", str(type))
        self.buffers[value] = Buffer(value, role, argument, offset, tuple(type.shape), type.element_type)

    def _read(self, op: ir.Operation) -> None:
        name = op.name
        if name == "arith.constant":
            self.constants[op.results[0]] = op
        elif name == "memref.view":
            arena = self.buffers[op.operands[0]]
            start = arena.offset + self._constant(op.operands[1])
            self._declare(op.results[0], arena.role, arena.argument, start)
        elif name in ("memref.expand_shape", "memref.collapse_shape"):
            source = self.buffers[op.operands[0]]
            self._declare(op.results[0], source.role, source.argument, source.offset)
        elif name == "kitsune.make_semaphore":
            slots = ir.IntegerAttr(op.attributes["slots"]).value
            self.semaphores[op.results[0]] = Semaphore(op.results[0], self.slots, slots)
            self.slots += slots
        elif name == "kitsune.task":
            self.tasks.append(self._task(op))
        elif name != "func.return":
            raise UnsupportedError(name, "a tile program holds views, constants, semaphores and tasks", None, str(op.location))

    def _constant(self, value: ir.Value) -> int:
        if value not in self.constants:
            raise UnsupportedError("memref.view", "its offset is a constant of the program's body", str(value))
        return ir.IntegerAttr(self.constants[value].attributes["value"]).value

    def _task(self, op: ir.Operation) -> TaskView:
        block = op.regions[0].blocks[0]
        waits, loads, stores, posts, body = [], [], [], [], []
        for inner in block.operations:
            inner = inner.operation
            name = inner.name
            if name in ("kitsune.wait", "kitsune.wait_rounds"):
                sem, lo, hi, *rounds = inner.operands
                count = ir.IntegerAttr(inner.attributes["count"]).value
                waits.append(Wait(self.semaphores[sem], lo, hi, count, rounds[0] if rounds else None, self._posters.get(sem)))
            elif name == "kitsune.wait_rows":
                sem, lo, hi, indices = inner.operands
                count, rows, extent = (ir.IntegerAttr(inner.attributes[word]).value for word in ("count", "rows", "extent"))
                named = NamedRows(self.buffers[indices], rows, extent)
                waits.append(Wait(self.semaphores[sem], lo, hi, count, None, self._posters.get(sem), named))
            elif name == "kitsune.post":
                posts.append(Post(self.semaphores[inner.operands[0]], inner.operands[1]))
                self._posters[inner.operands[0]] = len(self.tasks)
            elif name == "bufferization.to_tensor" and (window := self._window(inner.operands[0])):
                writer = self._writers.get(window[0].memory)
                loads.append(Load(inner.results[0], *window[:3], (*window[3], inner), writer))
            elif name == "bufferization.materialize_in_destination" and (window := self._window(inner.operands[1])):
                stores.append(Store(inner.operands[0], *window[:3], (*window[3], inner)))
            elif name != "kitsune.yield":
                body.append(inner)
        self._writers.update({store.buffer.memory: len(self.tasks) for store in stores})
        used = {o for record in (*loads, *stores) for o in record.operations}
        # A subview belongs to the body when something other than a load or store uses it.
        body = [o for o in body if o not in used or not _used_only_by(o, used)]
        attributes = op.attributes
        return TaskView(
            op=op,
            name=ir.StringAttr(attributes["sym_name"]).value,
            number=len(self.tasks),
            grid=tuple(ir.DenseI64ArrayAttr(attributes["grid"])),
            requested_engine=ir.StringAttr(attributes["engine"]).value if "engine" in attributes else "",
            coordinates=tuple(block.arguments),
            waits=tuple(waits),
            loads=tuple(loads),
            stores=tuple(stores),
            posts=tuple(posts),
            body=tuple(body),
            buffers=self._used_buffers(op),
        )

    def _window(self, view: ir.Value):
        """(buffer, offsets, sizes, operations) of a memref that is a buffer or a plain subview of one; else None."""
        if view in self.buffers:
            buffer = self.buffers[view]
            return buffer, (0,) * len(buffer.shape), buffer.shape, ()
        op = view.owner
        if isinstance(op, ir.Block) or op.name != "memref.subview" or op.operands[0] not in self.buffers:
            return None
        statics, sizes, strides = (
            list(ir.DenseI64ArrayAttr(op.attributes[f"static_{what}"])) for what in ("offsets", "sizes", "strides")
        )
        if any(stride != 1 for stride in strides) or _DYNAMIC in sizes:
            return None
        dynamic = iter(list(op.operands)[1:])
        offsets = tuple(next(dynamic) if static == _DYNAMIC else static for static in statics)
        return self.buffers[op.operands[0]], offsets, tuple(sizes), (op.operation,)

    def _used_buffers(self, task: ir.Operation) -> tuple[Buffer, ...]:
        found: dict[ir.Value, Buffer] = {}
        for op in walk(task):
            for operand in op.operands:
                if operand in self.buffers:
                    found[operand] = self.buffers[operand]
        return tuple(found.values())


def _used_only_by(op: ir.Operation, users: set[ir.Operation]) -> bool:
    return all(use.owner in users for result in op.results for use in result.uses)
