"""Tile programs in numbers (`tile_regions`): what each tile waits for, posts and touches, for all tiles at once."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from torch_mlir import ir

from .access import shape_of, static_ints
from .attribute_table import COUNTED
from .named_rows import rows_read
from .products import defining_op
from .sizes import element_bytes
from .tile_indices import Array, TileIndices
from .tile_program import SIGNALS, WAITS
from .tile_reader import MalformedProgram, TileProgram, grid_of, offsets_of
from .tile_records import Buffer, Post, Queue, QueueUse, Semaphore, Wait
from .tile_regions import Access, Program, Region, Ring, RingUse, Rows, Task, WaitRows
from .verify import walk

__all__ = ["read_accesses"]

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
    "kitsune.atomic_scatter": (3, "atomic"),
}


def read_accesses(function: ir.Operation) -> Program:
    """Read a `func.func` with `kitsune.program`.

    Raises:
        MalformedProgram: it is not of the form of docs/tile-program.md, or touches memory in a way that is not understood.
    """
    return _Reader(function).read()


class _Reader:
    def __init__(self, function: ir.Operation):
        self.function = function
        self.regions: dict[ir.Value, Region | None] = {}
        self.rings: dict[Queue, Ring] = {}

    def read(self) -> Program:
        for name in ("kitsune.arguments", "kitsune.results"):
            if name not in self.function.attributes:
                raise MalformedProgram(self.function, f"is a tile program and needs attribute '{name}'")
        self.declared = TileProgram(self.function)
        self.program = Program(self.declared)
        for queue in self.declared.queues.values():
            self._ring(queue)
        places = {ring.queue.memory: ring.buffer for ring in self.program.rings}
        for value, buffer in self.declared.buffers.items():
            shape = places[buffer].shape if buffer in places else buffer.shape
            self.regions[value] = _whole(places.get(buffer.origin, buffer.origin), shape, element_bytes(buffer.element))
        for op in self.declared.task_ops:
            self._task(op)
        return self.program

    def _ring(self, queue: Queue) -> None:
        """Give a ring's memory a place for each tile, and a semaphore whose slots say that tiles are complete."""
        numbers, value = [0], queue.op.results[0]
        for use in value.uses:
            user = use.owner.operation
            if user.name in ("kitsune.acquire", "kitsune.pop"):
                found = TileIndices(*grid_of(user.parent.operation)).of(user.operands[1])
                if found is None or found.min() < 0:
                    raise MalformedProgram(user, "needs the number of a tile, computed from the coordinates")
                numbers.append(int(found.max()) + 1)
        count, rows, memory = max(numbers), queue.shape[0], queue.memory
        number = len(self.declared.block.arguments) + len(self.program.rings)
        name, shape = f"the ring at arena byte {memory.offset}", (count * rows, *queue.shape[1:])
        buffer = Buffer(memory.value, "ring", number, 0, shape, memory.element, name)
        first = self.declared.slots + sum(ring.count for ring in self.program.rings)
        self.rings[queue] = ring = Ring(queue, count, Semaphore(value, first, count), buffer)
        self.program.rings.append(ring)

    def _task(self, op: ir.Operation) -> None:
        extents, arguments = grid_of(op)
        task = Task(op, len(self.program.tasks), ir.StringAttr(op.attributes["sym_name"]).value, extents)
        self.program.tasks.append(task)
        self.indices = TileIndices(extents, arguments)
        outer, self.regions = self.regions, dict(self.regions)
        for inner in (o.operation for o in op.regions[0].blocks[0].operations):
            if inner.name in SIGNALS:
                self._signal(task, inner)
            else:
                self._touch(task, inner)
                for nested in walk(inner) if len(inner.regions) else ():
                    if nested.name in SIGNALS:
                        raise MalformedProgram(
                            nested, "is inside another operation; waits and posts stand at the top of a task"
                        )
                    self._touch(task, nested)
        self.regions = outer
        for wait in task.row_waits:
            if any(post.semaphore is wait.wait.semaphore for post in task.posts):
                raise MalformedProgram(wait.wait.op, f"waits for rows that @{task.name} itself makes")

    def _signal(self, task: Task, op: ir.Operation) -> None:
        signal = self.declared.signal(op, task.number)
        if task.accesses and op.name in WAITS:
            raise MalformedProgram(op, f"waits after @{task.name} has touched memory; a task waits first")
        if isinstance(signal, Wait):
            self._wait(task, signal)
        elif isinstance(signal, Post):
            task.posts.append(Post(op, signal.semaphore, self._index(op, 1)))
        else:
            self._use_ring(task, signal)

    def _index(self, op: ir.Operation, operand: int) -> Array:
        found = self.indices.of(op.operands[operand])
        if found is None:
            raise MalformedProgram(op, f"operand {operand} cannot be computed from the tile's coordinates")
        return found

    def _wait(self, task: Task, wait: Wait[ir.Value]) -> None:
        op, named = wait.op, wait.named
        if wait.rounds is not None:
            raise MalformedProgram(op, "is what queues become for a target; progress is shown of the queues")
        lo, hi = self._index(op, 1), self._index(op, 2)
        if named is None:
            task.waits.append(Wait(op, wait.semaphore, lo, hi, wait.count))
            return
        elements = math.prod(named.indices.shape)
        if (lo < 0).any() or (hi > elements).any():
            raise MalformedProgram(op, f"of @{task.name} takes indices [{lo.min()}, {hi.max()}) of {elements}")
        first, last = (self.indices.constant(bound) for bound in (0, -(-named.extent // named.rows)))
        task.row_waits.append(WaitRows(Wait(op, wait.semaphore, first, last, wait.count), named, lo, hi))

    def _use_ring(self, task: Task, signal: QueueUse) -> None:
        op, ring = signal.op, self.rings[signal.queue]
        use = RingUse(op, ring, self._index(op, 1))
        {"acquire": task.acquires, "pop": task.pops, "push": task.pushes, "release": task.releases}[signal.kind].append(use)
        if signal.kind in ("acquire", "pop"):
            self.indices.define(op.results[0], use.number)  # the place of the tile, where every tile has one
        if signal.kind == "pop":
            task.waits.append(Wait(op, ring.semaphore, use.number, use.number + 1, ring.queue.pushes))
        if signal.kind == "push":
            task.posts.append(Post(op, ring.semaphore, use.number))

    def _touch(self, task: Task, op: ir.Operation) -> None:
        """Note what an operation does to memory."""
        if op.name in _VIEWS:
            return
        operand, kind = _ACCESSES.get(op.name, (-1, ""))
        for number, value in enumerate(op.operands):
            if not isinstance(value.type, (ir.MemRefType, ir.UnrankedMemRefType)):
                continue
            region = self._region(value)
            if region is None:
                continue  # memory that the task allocated for itself
            if number != operand:
                raise MalformedProgram(op, "touches memory in a way that this check does not know")
            if task.posts or task.releases:
                raise MalformedProgram(op, f"touches memory after @{task.name} has posted; a task posts last")
            if region.buffer.role == "input":
                if kind != "read":
                    raise MalformedProgram(op, f"writes {region.buffer.name}, an input")
                task.fetches.append(Access(op, task.number, kind, region))
                continue  # never written, so never in the way
            if region.buffer is self.declared.arena:
                raise MalformedProgram(op, "uses the arena without a memref.view")
            rank = (1,) * len(task.extents)
            offsets = tuple(o if o.ndim else o.reshape(rank) for o in region.offsets)
            exact = region.exact and op.name != "memref.store"
            named = self._rows_of(op) if kind == "read" and task.row_waits else None
            counted = self._counted_rows(op) if kind == "read" and region.sizes == region.shape else None
            first = self._first_row(op) if op.name == "kitsune.atomic_scatter" and COUNTED in op.attributes else None
            counted = counted if first is None else self._count(op)
            region = replace(region, offsets=offsets, exact=exact)
            task.accesses.append(Access(op, task.number, kind, region, named, counted, first))

    def _rows_of(self, load: ir.Operation) -> tuple[Rows, ...] | None:
        """The rows of what a load reads that its users read; None where they are not known to be named by inputs."""
        if load.name != "bufferization.to_tensor":
            return None
        table, found = load.results[0], []
        for user in {use.owner.operation.parent.operation for use in table.uses if use.owner.operation.parent is not None}:
            numbers = rows_read(user, table)
            ranges = [self._elements(user.operands[number]) for number in numbers or ()]
            known = [one for one in ranges if one is not None]
            if not known or len(known) < len(ranges):
                return None
            found += known
        return tuple(found)

    def _counted_rows(self, load: ir.Operation) -> tuple[int, int] | None:
        """The argument that says how many rows of what is loaded are read, and how many there are; None where all may be."""
        if load.name != "bufferization.to_tensor":
            return None
        found = set()
        for use in load.results[0].uses:
            user = use.owner.operation
            if COUNTED not in user.attributes or user.name != "tm_tensor.scatter" or use.operand_number > 1:
                return None  # the third is what rows are put into; other operations look at all
            number, rows = self._count(user)
            if rows != shape_of(user.operands[0])[0]:
                raise MalformedProgram(user, f"counts {rows} rows, and has {shape_of(user.operands[0])[0]}")
            found.add((number, rows))
        return found.pop() if len(found) == 1 else None

    def _count(self, op: ir.Operation) -> tuple[int, int]:
        """The argument that says how many of an operation's rows there are, and how many there may be."""
        number, rows = ir.DenseI64ArrayAttr(op.attributes[COUNTED])
        if number >= self.declared.inputs or str(self.declared.block.arguments[number].type) != "memref<i64>":
            raise MalformedProgram(op, f"counts rows by argument {number}, which is no i64 that the program is given")
        return number, rows

    def _first_row(self, scatter: ir.Operation) -> Array | None:
        """The number of the first row that each tile of a `kitsune.atomic_scatter` has, by where its indices lie; None where
        that is not known."""
        op = defining_op(scatter.operands[1])
        while op is not None and op.name in ("tensor.expand_shape", "tensor.collapse_shape"):
            op = defining_op(op.operands[0])
        region = self._region(op.operands[0]) if op is not None and op.name == "bufferization.to_tensor" else None
        if region is None or not region.exact or any(size != 1 for size in region.sizes[1:]):
            return None
        return region.offsets[0] - region.offsets[0].min()

    def _elements(self, tensor: ir.Value) -> Rows | None:
        """The range of an input's elements, seen flat, in which a tensor of a task lies; None where it is no part of one."""
        op, cut = defining_op(tensor), None
        while op is not None and op.name in ("tensor.expand_shape", "tensor.collapse_shape"):
            op = defining_op(op.operands[0])
        if op is not None and op.name == "tensor.extract_slice" and len(op.operands) == 1:
            op, cut = defining_op(op.operands[0]), op
        if op is None or op.name != "bufferization.to_tensor":
            return None
        region = self._region(op.operands[0])
        if region is not None and cut is not None:
            region = _part_of(region, cut)
        if region is None or region.buffer.role != "input" or not region.exact:
            return None
        lo = region.start // region.element
        return Rows(region.buffer, lo, lo + region.length // region.element)

    def _region(self, value: ir.Value) -> Region | None:
        """The memory behind a memref; None for memory that was allocated inside a task."""
        views: list[ir.Value] = []
        while value not in self.regions:
            op = defining_op(value)
            if op is not None and op.name in _VIEWS:
                views.append(value)
                value = op.operands[0]
            elif op is None or op.name in ("memref.alloc", "memref.alloca"):
                self.regions[value] = None
            else:
                raise MalformedProgram(op, "makes a memref in a way that this check does not know")
        region = self.regions[value]
        for view in reversed(views):
            op = defining_op(view)
            assert op is not None
            region = self.regions[view] = None if region is None else self._seen_through(op, region, view)
        return region

    def _seen_through(self, op: ir.Operation, source: Region, value: ir.Value) -> Region:
        if op.name == "memref.view":
            raise MalformedProgram(op, "must show the arena outside of all tasks")
        if op.name == "memref.subview":
            return self._subview(op, source)
        if op.name == "memref.cast":
            return source
        if source.sizes == source.shape:
            return _whole(source.buffer, tuple(shape_of(value)), source.element)
        return replace(source, dims=None)

    def _subview(self, op: ir.Operation, source: Region) -> Region:
        sizes, strides = static_ints(op, "static_sizes"), static_ints(op, "static_strides")
        if source.dims is None:
            return source
        if _DYNAMIC in sizes or _DYNAMIC in strides:
            raise MalformedProgram(op, "has sizes or strides that are not constants")
        all_offsets, all_sizes, exact = list(source.offsets), list(source.sizes), source.exact
        for dim, offset, size, stride in zip(source.dims, offsets_of(op), sizes, strides, strict=True):
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
            raise MalformedProgram(op, f"of {name} takes [{low}, {low + size}) of a dimension of {room}")


def _part_of(region: Region, cut: ir.Operation) -> Region | None:
    """What a tensor.extract_slice with constant offsets takes of a region that was loaded; None if its strides are not 1."""
    if region.dims is None or any(stride != 1 for stride in static_ints(cut, "static_strides")):
        return None
    offsets, sizes = list(region.offsets), list(region.sizes)
    taken = zip(region.dims, static_ints(cut, "static_offsets"), static_ints(cut, "static_sizes"), strict=True)
    for dim, offset, size in taken:
        offsets[dim], sizes[dim] = offsets[dim] + offset, size
    return replace(region, offsets=tuple(offsets), sizes=tuple(sizes))


def _whole(buffer: Buffer, shape: tuple[int, ...], element: int) -> Region:
    """All of a buffer, seen as a block of `shape`."""
    zeros = (np.zeros((), np.int64),) * len(shape)
    return Region(buffer, shape, element, zeros, shape, True, tuple(range(len(shape))))
