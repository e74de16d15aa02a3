"""Reading a tile program into data (`progress/program.py`), for all tiles at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch_mlir import ir

from kitsune_mlir.dialects.access import shape_of, static_ints
from kitsune_mlir.dialects.named_rows import rows_read
from kitsune_mlir.dialects.products import defining_op
from kitsune_mlir.dialects.sizes import element_bytes, tensor_bytes
from kitsune_mlir.dialects.tile_indices import Array, TileIndices
from kitsune_mlir.dialects.tile_program import queue_parts
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.passes.base import PassFailure
from kitsune_mlir.passes.stages.grouping import product_of

from .program import Access, Buffer, Post, Program, Region, Ring, RingUse, Rows, Task, Wait, WaitRows

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
_WAITS = ("kitsune.wait", "kitsune.wait_rows")
_SYNCHRONISING = (*_WAITS, "kitsune.post", *_QUEUES)


def read_program(function: ir.Operation) -> Program:
    """Read a `func.func` with `kitsune.program`; PassFailure where it is not of the form of docs/tile-program.md."""
    return _Reader(function).read()


class _Reader:
    def __init__(self, function: ir.Operation):
        self.function = function
        self.regions: dict[ir.Value, Region | None] = {}
        self.semaphores: dict[ir.Value, int] = {}
        self.rings: dict[ir.Value, Ring] = {}

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
            elif op.name == "kitsune.make_queue":
                self._ring(op)
            elif op.name == "kitsune.task":
                self._task(op)
            elif op.name in _ACCESSES or op.name in _SYNCHRONISING:
                raise PassFailure(op, "stands outside of all tasks")
        return self.program

    def _argument(self, number: int, value: ir.Value, inputs: int, results: int) -> Buffer:
        if not isinstance(value.type, ir.MemRefType) or not ir.ShapedType(value.type).has_static_shape:
            raise PassFailure(self.function, f"argument {number} is {value.type}; a tile program takes memrefs of static shape")
        kind = "input" if number < inputs else "result" if number < inputs + results else "arena"
        name = {"input": f"argument {number}", "result": f"result {number - inputs}", "arena": "the arena"}[kind]
        shape = tuple(shape_of(value))
        buffer = Buffer(number, kind, name, 0, tensor_bytes(value.type, shape))
        self.regions[value] = self._whole(buffer, value.type)
        return buffer

    def _whole(self, buffer: Buffer, type_: ir.Type) -> Region:
        shape = tuple(ir.ShapedType(type_).shape)
        zeros = (np.zeros((), np.int64),) * len(shape)
        return Region(buffer, shape, element_bytes(type_), zeros, shape, True, tuple(range(len(shape))))

    def _ring(self, op: ir.Operation) -> None:
        """Give a ring's memory a place for each tile, and a semaphore whose slots say that tiles are complete."""
        memory, queue = op.operands[0], op.results[0]
        view, region = defining_op(memory), self._region(memory)
        if view is None or view.name != "memref.view" or region is None:
            raise PassFailure(op, "needs a memref.view of the arena")
        tile, depth = queue_parts(queue.type)
        shape = list(ir.ShapedType(tile).shape)
        numbers = [0]
        for use in queue.uses:
            user = use.owner.operation
            if user.name in ("kitsune.acquire", "kitsune.pop"):
                extents, arguments = _grid(user.parent.operation)
                found = TileIndices(extents, arguments).of(user.operands[1])
                if found is None or found.min() < 0:
                    raise PassFailure(user, "needs the number of a tile, computed from the coordinates")
                numbers.append(int(found.max()) + 1)
        count, start = max(numbers), region.buffer.start
        places = (count * shape[0], *shape[1:])
        size = product_of(places) * region.element
        number = len(self.function.regions[0].blocks[0].arguments) + len(self.program.rings)
        buffer = Buffer(number, "ring", f"the ring at arena byte {start}", 0, size)
        zeros = (np.zeros((), np.int64),) * len(places)
        self.regions[memory] = Region(buffer, places, region.element, zeros, places, True, tuple(range(len(places))))
        pushes, pops = (ir.IntegerAttr(op.attributes[name]).value for name in ("pushes", "pops"))
        ends = start, start + region.buffer.size
        ring = Ring(op, view, *ends, depth, shape[0], pushes, pops, count, len(self.program.slots), buffer)
        self.program.semaphores.append(op)
        self.program.slots.append(count)
        self.program.rings.append(ring)
        self.rings[queue] = ring

    def _use_ring(self, task: Task, op: ir.Operation) -> None:
        if op.operands[0] not in self.rings:
            raise PassFailure(op, "uses a queue that no kitsune.make_queue of this function declares")
        word = op.name.removeprefix("kitsune.")
        if word in ("acquire", "pop") and task.accesses:
            raise PassFailure(op, f"waits after @{task.name} has touched memory; a task waits first")
        use = RingUse(op, self.rings[op.operands[0]], self._index(op, 1))
        {"acquire": task.acquires, "pop": task.pops, "push": task.pushes, "release": task.releases}[word].append(use)
        if word in ("acquire", "pop"):
            self.indices.define(op.results[0], use.number)  # the place of the tile, where every tile has one
        if word == "pop":
            task.waits.append(Wait(op, task.number, use.ring.semaphore, use.number, use.number + 1, use.ring.pushes))
        if word == "push":
            task.posts.append(Post(op, use.ring.semaphore, use.number))

    def _task(self, op: ir.Operation) -> None:
        extents, arguments = _grid(op)
        task = Task(op, len(self.program.tasks), ir.StringAttr(op.attributes["sym_name"]).value, extents)
        self.program.tasks.append(task)
        block = op.regions[0].blocks[0]
        self.indices = TileIndices(extents, arguments)
        outer, self.regions = self.regions, dict(self.regions)
        for inner in (o.operation for o in block.operations):
            if inner.name in _WAITS:
                if task.accesses:
                    raise PassFailure(inner, f"waits after @{task.name} has touched memory; a task waits first")
                if inner.name == "kitsune.wait":
                    task.waits.append(self._wait(task, inner))
                else:
                    task.row_waits.append(self._wait_rows(task, inner))
            elif inner.name == "kitsune.post":
                task.posts.append(self._post(inner))
            elif inner.name in _QUEUES:
                self._use_ring(task, inner)
            else:
                self._touch(task, inner)
                for nested in walk(inner) if len(inner.regions) else ():
                    if nested.name in _SYNCHRONISING:
                        raise PassFailure(nested, "is inside another operation; waits and posts stand at the top of a task")
                    self._touch(task, nested)
        self.regions = outer
        for wait in task.row_waits:
            if any(post.semaphore == wait.wait.semaphore for post in task.posts):
                raise PassFailure(wait.wait.op, f"waits for rows that @{task.name} itself makes")

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

    def _wait_rows(self, task: Task, op: ir.Operation) -> WaitRows:
        count, rows, extent = (ir.IntegerAttr(op.attributes[name]).value for name in ("count", "rows", "extent"))
        first, last = (np.full((1,) * len(task.extents), bound) for bound in (0, -(-extent // rows)))
        region = self._region(op.operands[3])
        if region is None or region.buffer.kind != "input":
            raise PassFailure(op, "needs indices that are an input: what a task makes may not be there yet")
        lo, hi = self._index(op, 1), self._index(op, 2)
        elements = region.buffer.size // region.element
        if (lo < 0).any() or (hi > elements).any():
            raise PassFailure(op, f"of @{task.name} takes indices [{lo.min()}, {hi.max()}) of {elements}")
        most = Wait(op, task.number, self._semaphore(op), first, last, count)
        return WaitRows(most, region.buffer, lo, hi, rows, extent)

    def _post(self, op: ir.Operation) -> Post:
        return Post(op, self._semaphore(op), self._index(op, 1))

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
                raise PassFailure(op, "touches memory in a way that this check does not know")
            if task.posts or task.releases:
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
            named = self._rows_of(op) if kind == "read" and task.row_waits else None
            task.accesses.append(Access(op, task.number, kind, replace(region, offsets=offsets, exact=exact), named))

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
        if region is None or region.buffer.kind != "input" or not region.exact:
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
                raise PassFailure(op, "makes a memref in a way that this check does not know")
        region = self.regions[value]
        for view in reversed(views):
            op = defining_op(view)
            assert op is not None
            region = self.regions[view] = self._seen_through(op, region, view)
        return region

    def _seen_through(self, op: ir.Operation, source: Region | None, value: ir.Value) -> Region | None:
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
        start, size = int(shift), tensor_bytes(type_)
        arena = source.buffer
        self.program.views.append((op, start, start + size))
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


def _part_of(region: Region, cut: ir.Operation) -> Region | None:
    """What a tensor.extract_slice with constant offsets takes of a region that was loaded; None if its strides are not 1."""
    if region.dims is None or any(stride != 1 for stride in static_ints(cut, "static_strides")):
        return None
    offsets, sizes = list(region.offsets), list(region.sizes)
    taken = zip(region.dims, static_ints(cut, "static_offsets"), static_ints(cut, "static_sizes"), strict=True)
    for dim, offset, size in taken:
        offsets[dim], sizes[dim] = offsets[dim] + offset, size
    return replace(region, offsets=tuple(offsets), sizes=tuple(sizes))


def _grid(task: ir.Operation) -> tuple[tuple[int, ...], list[ir.Value]]:
    """A task's extents, and its coordinates."""
    return tuple(ir.DenseI64ArrayAttr(task.attributes["grid"])), list(task.regions[0].blocks[0].arguments)
