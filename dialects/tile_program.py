"""The tile program: tasks, semaphores and queues made explicit. One contract, which `tile_reader` reads for all.

docs/tile-program.md describes the whole form; this file defines and verifies its ops.
"""

# Fields of ops are annotated with the bindings' descriptors, which are not types.
# pyright: reportInvalidTypeForm=false

from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import ext

from .kitsune import Kitsune
from .types import QueueType, SemaphoreType
from .verify import are_indices, fail, has_attributes, single_block, terminator_of

WAITS = ("kitsune.wait", "kitsune.wait_rows", "kitsune.wait_rounds", "kitsune.acquire", "kitsune.pop")
POSTS = ("kitsune.post", "kitsune.push", "kitsune.release")
SIGNALS = (*WAITS, *POSTS)


def queue_parts(queue: ir.Type) -> tuple[ir.Type, int]:
    """The tile type and the depth of a `!kitsune.queue`."""
    tile, _, depth = str(queue).removeprefix("!kitsune.queue<").removesuffix(">").rpartition(",")
    return ir.Type.parse(tile.strip(), queue.context), int(depth.split(":")[0])


class SemaphoreOp(Kitsune.Operation, name="make_semaphore"):
    """`kitsune.make_semaphore`: declares an array of `slots` arrival counters, zero when the program starts."""

    slots: ir.IntegerAttr
    sem: ext.Result[SemaphoreType]

    def verify_invariants(self) -> bool:
        return has_attributes(self, "slots")


def _counts_posts(op: ir.OpView, indices: int | None = None, numbers: tuple[str, ...] = ("count",)) -> bool:
    """Operands 1 to `indices` are of type index, and at least one post is waited for."""
    return has_attributes(op, *numbers) and are_indices(op, list(op.operation.operands)[1:indices])


class WaitOp(Kitsune.Operation, name="wait"):
    """`kitsune.wait(sem, lo, hi) {count}`: blocks until every slot in [lo, hi) has had at least `count` posts.

    Everything written before those posts is visible afterwards (acquire, at device scope).
    """

    sem: ext.Operand[SemaphoreType]
    lo: ext.Operand[Any]
    hi: ext.Operand[Any]
    count: ir.IntegerAttr

    def verify_invariants(self) -> bool:
        return _counts_posts(self)


class WaitRowsOp(Kitsune.Operation, name="wait_rows"):
    """`kitsune.wait_rows(sem, lo, hi, indices) {count, rows, extent}`: waits for the tiles that hold rows named by indices.

    `indices` is a memref of integers, elements of which, seen flat, are the numbers of rows of a tensor of `extent` rows;
    negative ones count from its end. For each element in [lo, hi) it blocks until slot (number / `rows`) has had `count` posts.
    Numbers that name no row wait for the nearest one. What nobody writes may be waited by: `indices` is an input.
    """

    sem: ext.Operand[SemaphoreType]
    lo: ext.Operand[Any]
    hi: ext.Operand[Any]
    indices: ext.Operand[Any]
    count: ir.IntegerAttr
    rows: ir.IntegerAttr
    extent: ir.IntegerAttr

    def verify_invariants(self) -> bool:
        if not _counts_posts(self, 3, ("count", "rows", "extent")):
            return False
        memory = self.operation.operands[3].type
        if not isinstance(memory, ir.MemRefType) or not isinstance(ir.ShapedType(memory).element_type, ir.IntegerType):
            return fail(self, f"indices are integers in memory, got {memory}")
        return True


class PostOp(Kitsune.Operation, name="post"):
    """`kitsune.post(sem, slot)`: adds one to a slot, after every write of this task (release, at device scope)."""

    sem: ext.Operand[SemaphoreType]
    slot: ext.Operand[Any]

    def verify_invariants(self) -> bool:
        return are_indices(self, list(self.operation.operands)[1:])


class TaskOp(Kitsune.Operation, name="task"):
    """`kitsune.task`: the tile tasks of one stage, one a point of `grid`.

    The one block has an `index` argument per grid dimension (the tile's coordinates) and uses the program's memrefs and
    semaphores directly. Its body, in this order: waits; loads (`memref.subview` + `bufferization.to_tensor`); linalg on
    tile-sized tensors; stores (`bufferization.materialize_in_destination`); posts; `kitsune.yield`. Tasks run in the order
    of the program, a task's tiles in row-major order of its grid. Where the program's function has
    `kitsune.mode`, a task has `workers` and `first` ("spatial") or `launch` ("separate").
    """

    sym_name: ir.StringAttr
    grid: Any
    body: ext.Region

    def verify_invariants(self) -> bool:
        if not has_attributes(self, "sym_name", "grid"):
            return False
        if not len(self.operation.attributes["grid"]):
            return fail(self, "'grid' has no extents")
        return True

    def verify_region_invariants(self) -> bool:
        block = single_block(self)
        if block is None:
            return fail(self, "needs one region with one block")
        rank = len(ir.DenseI64ArrayAttr(self.operation.attributes["grid"]))
        if len(block.arguments) != rank or not all(isinstance(a.type, ir.IndexType) for a in block.arguments):
            return fail(self, f"its block needs one index argument a grid dimension ({rank})")
        last = terminator_of(block)
        if last is None or last.name != "kitsune.yield" or len(last.operands):
            return fail(self, "body must end in 'kitsune.yield' without operands")
        posted = False
        for op in block.operations:
            name = op.operation.name
            if name in WAITS and posted:
                return fail(self, "waits after a post: a task waits first and posts last")
            posted = posted or name in POSTS
            if name == "bufferization.materialize_in_destination" and posted:
                return fail(self, "stores after a post: a reader could see the post before the data")
        return True


def _adds_rows(op: ir.OpView, updates: ir.Value, indices: ir.Value) -> bool:
    """Whether there is an integer index for each row of `updates`."""
    shape = list(ir.ShapedType(updates.type).shape)[:1]
    if not isinstance(indices.type, ir.RankedTensorType) or list(ir.ShapedType(indices.type).shape) != shape:
        return fail(op, f"needs one index a row of {updates.type}, got {indices.type}")
    if not isinstance(ir.ShapedType(indices.type).element_type, ir.IntegerType | ir.IndexType):
        return fail(op, f"indices are integers, got {indices.type}")
    return True


class AtomicScatterOp(Kitsune.Operation, name="atomic_scatter"):
    """`kitsune.atomic_scatter(updates, indices, first, destination) {kind}`: destination[indices[r]] ∘= updates[r], r >= first.

    `updates` is a tensor [R, ...] of the task, `indices` an integer tensor [R], `destination` a memref [N, ...]. Each element
    is combined by itself, atomically, in any order; rows whose index is not in [0, N) are left out. `first` keeps a tile that
    overlaps the one before from combining rows twice. `kind` says how, as in `arith::AtomicRMWKind`; with `assign` each
    element becomes one of those that are put there.
    """

    updates: ext.Operand[Any]
    indices: ext.Operand[Any]
    first: ext.Operand[Any]
    destination: ext.Operand[Any]
    kind: ir.StringAttr

    def verify_invariants(self) -> bool:
        if not has_attributes(self, "kind"):
            return False
        updates, indices, first, destination = list(self.operation.operands)
        if not are_indices(self, [first]):
            return False
        if not isinstance(updates.type, ir.RankedTensorType) or not isinstance(destination.type, ir.MemRefType):
            return fail(self, f"puts a tensor into a memref, not {updates.type} into {destination.type}")
        rows, memory = ir.ShapedType(updates.type), ir.ShapedType(destination.type)
        if rows.element_type != memory.element_type or list(rows.shape)[1:] != list(memory.shape)[1:]:
            return fail(self, f"rows of {updates.type} do not fit {destination.type}")
        return _adds_rows(self, updates, indices)


class OrderedScatterOp(Kitsune.Operation, name="ordered_scatter"):
    """`%sums = kitsune.ordered_scatter(start, updates, indices, first) {kind}`: rows combined in the order in which they come.

    `start` is a tensor [R, ...], rows [first, first + R) of a larger one; `updates` [E, ...] and `indices` [E] are all rows
    that are put into the larger one. sums[r] is start[r] ∘ updates[e0] ∘ updates[e1] ... for all e, rising, with
    indices[e] == first + r: the same bits on every run. 16-bit floats may be combined in a wider type. `kind` is as for
    `kitsune.atomic_scatter`; with `assign` the last row stays.
    """

    start: ext.Operand[Any]
    updates: ext.Operand[Any]
    indices: ext.Operand[Any]
    first: ext.Operand[Any]
    kind: ir.StringAttr
    sums: ext.Result[Any]

    def verify_invariants(self) -> bool:
        if not has_attributes(self, "kind"):
            return False
        start, updates, indices, first = list(self.operation.operands)
        if not are_indices(self, [first]):
            return False
        if not all(isinstance(v.type, ir.RankedTensorType) for v in (start, updates, indices)):
            return fail(self, f"combines tensors, not {start.type}, {updates.type}, {indices.type}")
        rows, added = ir.ShapedType(start.type), ir.ShapedType(updates.type)
        if self.operation.results[0].type != start.type:
            return fail(self, f"sums have the type of what they start from, {start.type}")
        if rows.element_type != added.element_type or list(rows.shape)[1:] != list(added.shape)[1:]:
            return fail(self, f"rows of {updates.type} do not fit {start.type}")
        return _adds_rows(self, updates, indices)


class WaitRoundsOp(Kitsune.Operation, name="wait_rounds"):
    """`kitsune.wait_rounds(sem, lo, hi, rounds) {count}`: as `kitsune.wait`, for at least `count * rounds` posts.

    What the operations of queues become for a target (`rounds` may be 0).
    """

    sem: ext.Operand[SemaphoreType]
    lo: ext.Operand[Any]
    hi: ext.Operand[Any]
    rounds: ext.Operand[Any]
    count: ir.IntegerAttr

    def verify_invariants(self) -> bool:
        return _counts_posts(self)


class QueueOp(Kitsune.Operation, name="make_queue"):
    """`kitsune.make_queue(memory) {pushes, pops}`: declares a ring queue over a buffer, empty when the program starts.

    `memory` holds the slots one after the other along its first dimension, and only who has a slot may touch it. A tile is
    complete after `pushes` pushes (producers that each make a part of it), and its slot free after `pops` releases (several
    consumers, or tiles of one, that read it).
    """

    memory: ext.Operand[Any]
    pushes: ir.IntegerAttr
    pops: ir.IntegerAttr
    queue: ext.Result[QueueType]

    def verify_invariants(self) -> bool:
        if not has_attributes(self, "pushes", "pops"):
            return False
        memory, queue = self.operation.operands[0].type, self.operation.results[0].type
        if not str(queue).startswith("!kitsune.queue<"):
            return True  # the type of the result is checked after this
        tile, depth = queue_parts(queue)
        if depth < 1:
            return fail(self, f"a ring has at least one slot, not {depth}")
        if not isinstance(memory, ir.MemRefType) or not isinstance(tile, ir.RankedTensorType):
            return fail(self, f"keeps tensors in a memref, not {tile} in {memory}")
        slots = [depth * ir.ShapedType(tile).get_dim_size(0), *list(ir.ShapedType(tile).shape)[1:]]
        if list(ir.ShapedType(memory).shape) != slots or ir.ShapedType(memory).element_type != ir.ShapedType(tile).element_type:
            return fail(self, f"{depth} slots of {tile} do not fill {memory}")
        return True


class AcquireOp(Kitsune.Operation, name="acquire"):
    """`kitsune.acquire(queue, number)`: waits until the slot of tile `number` is free, and returns its index (producer side).

    Tiles are numbered from 0; number n is kept in slot n mod depth.
    """

    queue: ext.Operand[QueueType]
    number: ext.Operand[Any]
    slot: ext.Result[Any]

    def verify_invariants(self) -> bool:
        return are_indices(self, [*list(self.operation.operands)[1:], *self.operation.results])


class PushOp(Kitsune.Operation, name="push"):
    """`kitsune.push(queue, slot)`: makes what this task wrote into an acquired slot visible to the consumers."""

    queue: ext.Operand[QueueType]
    slot: ext.Operand[Any]

    def verify_invariants(self) -> bool:
        return are_indices(self, list(self.operation.operands)[1:])


class PopOp(Kitsune.Operation, name="pop"):
    """`kitsune.pop(queue, number)`: waits until tile `number` is complete, and returns its slot (consumer side)."""

    queue: ext.Operand[QueueType]
    number: ext.Operand[Any]
    slot: ext.Result[Any]

    def verify_invariants(self) -> bool:
        return are_indices(self, [*list(self.operation.operands)[1:], *self.operation.results])


class ReleaseOp(Kitsune.Operation, name="release"):
    """`kitsune.release(queue, slot)`: gives a popped slot back to the producers once its tile has been read."""

    queue: ext.Operand[QueueType]
    slot: ext.Operand[Any]

    def verify_invariants(self) -> bool:
        return are_indices(self, list(self.operation.operands)[1:])
