"""A tile program as data: tasks with their waits, posts and accesses to memory, for all tiles at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from torch_mlir import ir

from kitsune_mlir.dialects.access import shape_of, static_ints
from kitsune_mlir.dialects.products import defining_op
from kitsune_mlir.dialects.verify import walk

from ._progress_indices import Array, Points, TileIndices
from .base import PassFailure
from .grouping import element_bytes, product_of

_DYNAMIC = ir.ShapedType.get_dynamic_size()
_VIEWS = ("memref.view", "memref.subview", "memref.expand_shape", "memref.collapse_shape", "memref.cast", "memref.dim")
# Which operand is the memory, and what happens to it.
_ACCESSES = {
    "bufferization.to_tensor": (0, "read"),
    "bufferization.materialize_in_destination": (1, "write"),
    "memref.load": (0, "read"),
    "memref.store": (1, "write"),
    "memref.atomic_rmw": (1, "atomic"),
    "memref.generic_atomic_rmw": (0, "atomic"),
    "kitsune.scatter_add": (3, "atomic"),
}
_QUEUES = ("kitsune.acquire", "kitsune.push", "kitsune.pop", "kitsune.release")


@dataclass(frozen=True, eq=False)
class Buffer:
    """Memory with one name: an argument, or a `memref.view` of the arena. `start` is in bytes from the argument's start.

    Two views of the same bytes are two buffers: what is written to one is not what a reader of the other wants.
    """

    argument: int
    kind: str  # "input", "result" or "arena"
    name: str
    start: int
    size: int


@dataclass(frozen=True, eq=False)
class Region:
    """The box `offsets` (an array over the tiles a dimension), `sizes` of `buffer` seen as a contiguous block of `shape`.

    With `exact` false it is only known that no element outside the box is touched. `dims` says which dimension of `shape`
    each dimension of the memref is, or is None where they do not correspond.
    """

    buffer: Buffer
    shape: tuple[int, ...]
    element: int  # bytes
    offsets: tuple[Array, ...]
    sizes: tuple[int, ...]
    exact: bool = True
    dims: tuple[int, ...] | None = None

    @property
    def strides(self) -> list[int]:
        """Bytes between neighbours along each dimension."""
        return [self.element * product_of(self.shape[d + 1 :]) for d in range(len(self.shape))]

    @property
    def start(self) -> Array:
        """First byte of each tile's box, from the start of the argument."""
        return sum((o * s for o, s in zip(self.offsets, self.strides, strict=True)), np.array(self.buffer.start))

    @property
    def length(self) -> int:
        """Bytes from the first to the end of the last element of a tile's box."""
        return self.element + sum((n - 1) * s for n, s in zip(self.sizes, self.strides, strict=True))

    @property
    def span(self) -> tuple[int, int]:
        """First byte and end of what all tiles touch together."""
        low, high = self.buffer.start, self.buffer.start + self.element
        for offset, size, stride in zip(self.offsets, self.sizes, self.strides, strict=True):
            low += int(offset.min()) * stride
            high += (int(offset.max()) + size - 1) * stride
        return low, high

    def is_ragged(self, dim: int) -> bool:
        """Whether tiles walk a dimension that they do not divide, the last one shifted back to end with it."""
        offset, size, extent = self.offsets[dim], self.sizes[dim], self.shape[dim]
        if size == 0:
            return False
        count = -(-extent // size)
        places = np.minimum(np.arange(count) * size, extent - size)
        return extent % size != 0 and offset.size == count > 1 and bool((offset.ravel() == places).all())

    def owned(self) -> Region:
        """What each tile is the first to write: a last tile that is shifted back writes again what others wrote, the same
        values. It is left in its unshifted place, where it sticks out of `shape`."""
        offsets = list(self.offsets)
        for dim, size in enumerate(self.sizes):
            if self.is_ragged(dim):
                offsets[dim] = np.arange(offsets[dim].size).reshape(offsets[dim].shape) * size
        return replace(self, offsets=tuple(offsets))

    def text(self, tile: tuple[int, ...]) -> str:
        """One tile's box in words: `[50:100, 0:64] of result 0`."""
        bounds = []
        for offset, size in zip(self.offsets, self.sizes, strict=True):
            low = int(offset[tuple(c if n > 1 else 0 for c, n in zip(tile, offset.shape, strict=True))])
            bounds.append(f"{low}:{low + size}")
        return f"[{', '.join(bounds)}] of {self.buffer.name}"


@dataclass(frozen=True, eq=False)
class Access:
    """A read, write or atomic update of memory by every tile of task number `task`."""

    op: ir.Operation
    task: int
    kind: str  # "read", "write" or "atomic"
    region: Region


@dataclass(frozen=True, eq=False)
class Wait:
    """`kitsune.wait` of task number `task`: at least `count` posts of every slot in [lo, hi) of semaphore `semaphore`."""

    op: ir.Operation
    task: int
    semaphore: int
    lo: Array
    hi: Array
    count: int


@dataclass(frozen=True, eq=False)
class Post:
    """`kitsune.post`."""

    op: ir.Operation
    semaphore: int
    slot: Array


@dataclass(eq=False)
class Task:
    """One `kitsune.task`, at place `number` of the program."""

    op: ir.Operation
    number: int
    name: str
    extents: tuple[int, ...]
    waits: list[Wait] = field(default_factory=list)
    posts: list[Post] = field(default_factory=list)
    accesses: list[Access] = field(default_factory=list)
    fetches: list[Access] = field(default_factory=list)  # reads of inputs, which nobody writes

    def points(self, arrays: Iterable[Array], waits: bool = False, posts: bool = False) -> Points:
        """The tiles that differ in `arrays`, in what they wait for, in what they post."""
        waited = [a for w in self.waits for a in (w.lo, w.hi)] if waits else []
        posted = [p.slot for p in self.posts] if posts else []
        return Points.telling(self.extents, [*arrays, *waited, *posted])

    def tile(self, coordinates: tuple[int, ...]) -> str:
        """A tile in words: `@relu tile (1)`."""
        return f"@{self.name} tile ({', '.join(map(str, coordinates))})"


@dataclass
class Program:
    """One tile program. `slots[s]` is the number of slots of semaphore s, declared by `semaphores[s]`."""

    op: ir.Operation
    results: list[Buffer]
    semaphores: list[ir.Operation] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)


def read_program(function: ir.Operation) -> Program:
    """Read a `func.func` with `kitsune.program`; PassFailure where it is not of the form of docs/tile-program.md."""
    return _Reader(function).read()


class _Reader:
    def __init__(self, function: ir.Operation):
        self.function = function
        self.regions: dict[ir.Value, Region | None] = {}
        self.semaphores: dict[ir.Value, int] = {}

    def read(self) -> Program:
        counts = []
        for name in ("kitsune.arguments", "kitsune.results"):
            if name not in self.function.attributes:
                raise PassFailure(self.function, f"is a tile program and needs attribute '{name}'")
            counts.append(ir.IntegerAttr(self.function.attributes[name]).value)
        block = self.function.regions[0].blocks[0]
        if len(block.arguments) != sum(counts) + 1:
            raise PassFailure(
                self.function,
                f"has {len(block.arguments)} arguments, needs {counts[0]} inputs, {counts[1]} results and the arena",
            )
        buffers = [self._argument(n, value, *counts) for n, value in enumerate(block.arguments)]
        self.program = Program(self.function, buffers[counts[0] : -1])
        for op in (o.operation for o in block.operations):
            if op.name == "kitsune.make_semaphore":
                self.semaphores[op.results[0]] = len(self.program.slots)
                self.program.semaphores.append(op)
                self.program.slots.append(ir.IntegerAttr(op.attributes["slots"]).value)
            elif op.name == "memref.view":
                self._region(op.results[0])
            elif op.name == "kitsune.task":
                self._task(op)
            elif op.name in _ACCESSES or op.name in ("kitsune.wait", "kitsune.post"):
                raise PassFailure(op, "stands outside of all tasks")
        return self.program

    def _argument(self, number: int, value: ir.Value, inputs: int, results: int) -> Buffer:
        if not isinstance(value.type, ir.MemRefType) or not ir.ShapedType(value.type).has_static_shape:
            raise PassFailure(self.function, f"argument {number} is {value.type}; a tile program takes memrefs of static shape")
        kind = "input" if number < inputs else "result" if number < inputs + results else "arena"
        name = {"input": f"argument {number}", "result": f"result {number - inputs}", "arena": "the arena"}[kind]
        shape = tuple(shape_of(value))
        buffer = Buffer(number, kind, name, 0, product_of(shape) * element_bytes(value.type))
        self.regions[value] = self._whole(buffer, value.type)
        return buffer

    def _whole(self, buffer: Buffer, type_: ir.Type) -> Region:
        shape = tuple(ir.ShapedType(type_).shape)
        zeros = (np.zeros((), np.int64),) * len(shape)
        return Region(buffer, shape, element_bytes(type_), zeros, shape, True, tuple(range(len(shape))))

    def _task(self, op: ir.Operation) -> None:
        extents = tuple(ir.DenseI64ArrayAttr(op.attributes["grid"]))
        task = Task(op, len(self.program.tasks), ir.StringAttr(op.attributes["sym_name"]).value, extents)
        self.program.tasks.append(task)
        block = op.regions[0].blocks[0]
        self.indices = TileIndices(extents, block.arguments)
        outer, self.regions = self.regions, dict(self.regions)
        for inner in (o.operation for o in block.operations):
            if inner.name == "kitsune.wait":
                if task.accesses:
                    raise PassFailure(inner, f"waits after @{task.name} has touched memory; a task waits first")
                task.waits.append(self._wait(task, inner))
            elif inner.name == "kitsune.post":
                task.posts.append(self._post(inner))
            else:
                self._touch(task, inner)
                for nested in walk(inner) if len(inner.regions) else ():
                    if nested.name in ("kitsune.wait", "kitsune.post"):
                        raise PassFailure(nested, "is inside another operation; waits and posts stand at the top of a task")
                    self._touch(task, nested)
        self.regions = outer

    def _semaphore(self, op: ir.Operation) -> int:
        if op.operands[0] not in self.semaphores:
            raise PassFailure(op, "uses a semaphore that no kitsune.make_semaphore of this function declares")
        return self.semaphores[op.operands[0]]

    def _index(self, op: ir.Operation, operand: int) -> Array:
        found = self.indices.of(op.operands[operand])
        if found is None:
            raise PassFailure(op, f"operand {operand} cannot be computed from the tile's coordinates")
        return found

    def _wait(self, task: Task, op: ir.Operation) -> Wait:
        count = ir.IntegerAttr(op.attributes["count"]).value
        return Wait(op, task.number, self._semaphore(op), self._index(op, 1), self._index(op, 2), count)

    def _post(self, op: ir.Operation) -> Post:
        return Post(op, self._semaphore(op), self._index(op, 1))

    def _touch(self, task: Task, op: ir.Operation) -> None:
        """Note what an operation does to memory."""
        if op.name in _VIEWS:
            return
        if op.name in _QUEUES:
            raise PassFailure(op, "uses a ring queue; this check knows semaphores only")
        operand, kind = _ACCESSES.get(op.name, (-1, ""))
        for number, value in enumerate(op.operands):
            if not isinstance(value.type, (ir.MemRefType, ir.UnrankedMemRefType)):
                continue
            region = self._region(value)
            if region is None:
                continue  # memory that the task allocated for itself
            if number != operand:
                raise PassFailure(op, "touches memory in a way that this check does not know")
            if task.posts:
                raise PassFailure(op, f"touches memory after @{task.name} has posted; a task posts last")
            if region.buffer.kind == "input":
                if kind != "read":
                    raise PassFailure(op, f"writes {region.buffer.name}, an input")
                task.fetches.append(Access(op, task.number, kind, region))
                continue  # never written, so never in the way
            if region.buffer.kind == "arena" and region.buffer.name == "the arena":
                raise PassFailure(op, "uses the arena without a memref.view")
            rank = (1,) * len(task.extents)
            offsets = tuple(o if o.ndim else o.reshape(rank) for o in region.offsets)
            exact = region.exact and op.name != "memref.store"
            task.accesses.append(Access(op, task.number, kind, replace(region, offsets=offsets, exact=exact)))

    def _region(self, value: ir.Value) -> Region | None:
        """The memory behind a memref; None for memory that was allocated inside a task."""
        if value not in self.regions:
            op = defining_op(value)
            self.regions[value] = self._made_by(op, value) if op is not None else None
        return self.regions[value]

    def _made_by(self, op: ir.Operation, value: ir.Value) -> Region | None:
        if op.name in ("memref.alloc", "memref.alloca"):
            return None
        if op.name not in _VIEWS:
            raise PassFailure(op, "makes a memref in a way that this check does not know")
        source = self._region(op.operands[0])
        if source is None:
            return None
        if op.name == "memref.view":
            return self._view(op, source, value.type)
        if op.name == "memref.subview":
            return self._subview(op, source)
        if op.name == "memref.cast":
            return source
        if source.sizes == source.shape:
            return self._whole(source.buffer, value.type)
        return replace(source, dims=None)

    def _view(self, op: ir.Operation, source: Region, type_: ir.Type) -> Region:
        shift = TileIndices((), ()).of(op.operands[1])
        if source.buffer.name != "the arena" or shift is None or len(op.operands) > 2:
            raise PassFailure(op, "must show the arena at a constant offset")
        start, size = int(shift), product_of(ir.ShapedType(type_).shape) * element_bytes(type_)
        arena = source.buffer
        if start < 0 or start + size > arena.size:
            raise PassFailure(op, f"shows bytes [{start}, {start + size}) of an arena of {arena.size} bytes")
        return self._whole(Buffer(arena.argument, "arena", f"the buffer at arena byte {start}", start, size), type_)

    def _subview(self, op: ir.Operation, source: Region) -> Region:
        sizes, strides = static_ints(op, "static_sizes"), static_ints(op, "static_strides")
        if source.dims is None:
            return source
        dynamic = iter(list(op.operands)[1:])
        offsets = [o if o != _DYNAMIC else next(dynamic) for o in static_ints(op, "static_offsets")]
        if _DYNAMIC in sizes or _DYNAMIC in strides:
            raise PassFailure(op, "has sizes or strides that are not constants")
        all_offsets, all_sizes, exact = list(source.offsets), list(source.sizes), source.exact
        for dim, offset, size, stride in zip(source.dims, offsets, sizes, strides, strict=True):
            known = self.indices.constant(offset) if isinstance(offset, int) else self.indices.of(offset)
            if known is None:
                exact = False  # anywhere in the dimension
                continue
            reach, room = (size - 1) * stride + 1, source.sizes[dim]
            self._check_inside(op, known, reach, room)
            all_offsets[dim] = source.offsets[dim] + known
            all_sizes[dim] = reach
            exact = exact and stride == 1
        dims = self._kept(op, sizes, source.dims) if exact or all(s == 1 for s in strides) else None
        return Region(source.buffer, source.shape, source.element, tuple(all_offsets), tuple(all_sizes), exact, dims)

    def _kept(self, op: ir.Operation, sizes: list[int], dims: tuple[int, ...]) -> tuple[int, ...] | None:
        """The dimensions that a subview keeps; None where it is not clear which unit dimensions it drops."""
        shape = shape_of(op.results[0])
        if shape == sizes:
            return dims
        kept = tuple(d for d, s in zip(dims, sizes, strict=True) if s != 1)
        return kept if [s for s in sizes if s != 1] == shape else None

    def _check_inside(self, op: ir.Operation, offset: Array, size: int, room: int) -> None:
        wrong = (offset < 0) | (offset + size > room)
        if wrong.any():
            tile = tuple(int(i[0]) for i in np.nonzero(wrong))
            low = int(offset[tile])
            name = self.program.tasks[-1].tile(tile)
            raise PassFailure(op, f"of {name} takes [{low}, {low + size}) of a dimension of {room}")
