"""What a tile program is made of, as plain records (docs/tile-program.md is the form that is read, `tile_reader` the reader).

Records hold `ir.Value`s of the program, so they live as long as its module does. An index is an `ir.Value` where code is made
of it, and an array over the tiles where they are looked at one by one (`tile_regions`).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Generic, TypeVar

from torch_mlir import ir

from .access import constant_of
from .sizes import element_bytes

Offset = int | ir.Value
"""A constant, or an `index` value computed in the task from its tile coordinates."""

Index = TypeVar("Index")


@dataclasses.dataclass(frozen=True, eq=False)
class Buffer:
    """Memory that the whole program sees: an argument, a buffer in the arena, or a reshaped view of either.

    Attributes:
        value: the memref in the program's body.
        role: "input", "result" or "arena": whose memory it is; "ring" for a place for every tile that goes through a queue.
        argument: index of the function argument that holds it.
        offset: bytes from the start of that argument.
        shape: extents, row-major and contiguous.
        element: element type.
        name: in words, "the buffer at arena byte 256".
        source: the buffer that this one is a reshaped view of.
    """

    value: ir.Value
    role: str
    argument: int
    offset: int
    shape: tuple[int, ...]
    element: ir.Type
    name: str = ""
    source: Buffer | None = None

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

    @property
    def origin(self) -> Buffer:
        """The buffer itself, or the one that it is a reshaped view of."""
        return self.source or self

    def overlaps(self, other: Buffer) -> bool:
        """Whether the two share a byte (two arguments never do)."""
        if self.argument != other.argument:
            return False
        return self.offset < other.offset + other.bytes and other.offset < self.offset + self.bytes


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
        given: the values are there before the program runs: an input's, or those of an argument whose memory a result has,
            while no task has written that result. Such a load needs no wait for other tasks.
    """

    tensor: ir.Value
    buffer: Buffer
    offsets: tuple[Offset, ...]
    sizes: tuple[int, ...]
    operations: tuple[ir.Operation, ...]
    writer: int | None = None
    given: bool = False

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
class Queue:
    """`kitsune.make_queue`: a ring of `depth` slots, each of `shape`, in `memory`; `pushes` and `pops` as the op has them."""

    op: ir.Operation
    memory: Buffer
    shape: tuple[int, ...]
    depth: int
    pushes: int
    pops: int


@dataclasses.dataclass(frozen=True, eq=False)
class QueueUse:
    """`kitsune.acquire`, `push`, `pop` or `release` (`kind`): of tile `number`, or of the slot that it has."""

    op: ir.Operation
    kind: str
    queue: Queue
    number: ir.Value


@dataclasses.dataclass(frozen=True, eq=False)
class NamedRows:
    """Slots by indices: element e of `indices`, the number of one of `extent` rows, stands for slot e / `rows`."""

    indices: Buffer
    rows: int
    extent: int


@dataclasses.dataclass(frozen=True, eq=False)
class Wait(Generic[Index]):
    """`kitsune.wait`: slots [lo, hi) of `semaphore` have had `count` posts each; `kitsune.wait_rounds`: `count * rounds`.

    `task` is the number of the earlier task that posts, or None. With `named` (`kitsune.wait_rows`), [lo, hi) are elements of
    a buffer of indices, which name the slots.
    """

    op: ir.Operation
    semaphore: Semaphore
    lo: Index
    hi: Index
    count: int
    rounds: Index | None = None
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
        if slots is None or self.rounds is not None or self.named is not None:
            return None
        return (self.semaphore.first, *slots, self.count)

    @property
    def _slots(self) -> tuple[int, int] | None:
        lo, hi = constant_of(self.lo), constant_of(self.hi)
        return None if lo is None or hi is None else (lo, hi)


@dataclasses.dataclass(frozen=True, eq=False)
class Post(Generic[Index]):
    """`kitsune.post`: adds one to `slot` of `semaphore`."""

    op: ir.Operation
    semaphore: Semaphore
    slot: Index


@dataclasses.dataclass(frozen=True, order=True)
class Share:
    """Multiprocessors [first, first + workers) of those that the program was planned for."""

    first: int
    workers: int


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
        program_tasks: number of tasks of its program.
        program_signals: whether the program has semaphores.
        spatial: whether tasks of its program own shares of the multiprocessors.
    """

    op: ir.Operation
    name: str
    number: int
    grid: tuple[int, ...]
    requested_engine: str
    coordinates: tuple[ir.Value, ...]
    waits: tuple[Wait[ir.Value], ...]
    loads: tuple[Load, ...]
    stores: tuple[Store, ...]
    posts: tuple[Post[ir.Value], ...]
    body: tuple[ir.Operation, ...]
    buffers: tuple[Buffer, ...]
    program_tasks: int
    program_signals: bool
    spatial: bool

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
