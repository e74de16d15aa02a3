"""A tile program in numbers: tasks with their waits, posts and accesses to memory, for all tiles at once.

`tile_accesses` reads it. Waits and posts are the records of `tile_records` with an array over the tiles for each index.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from torch_mlir import ir

from .tile_indices import Array, Points
from .tile_reader import TileProgram
from .tile_records import Buffer, NamedRows, Post, Queue, Semaphore, Wait

__all__ = ["Access", "Program", "Region", "Ring", "RingUse", "Rows", "Task", "WaitRows", "runs"]


@dataclass(frozen=True, eq=False)
class Region:
    """The box `offsets` (an array over the tiles a dimension), `sizes` of `buffer` seen as a contiguous block of `shape`.

    `buffer` is an argument, a `memref.view` of the arena or a ring, never a reshaped view. Two views of the same bytes are two
    buffers: what is written to one is not what a reader of the other wants. With `exact` false it is only known that no element
    outside the box is touched. `dims` says which dimension of `shape` each dimension of the memref is, or is None where they do
    not correspond.
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
        return [self.element * math.prod(self.shape[d + 1 :]) for d in range(len(self.shape))]

    @property
    def start(self) -> Array:
        """First byte of each tile's box, from the start of the argument."""
        return sum((o * s for o, s in zip(self.offsets, self.strides, strict=True)), np.array(self.buffer.offset))

    @property
    def length(self) -> int:
        """Bytes from the first to the end of the last element of a tile's box."""
        return self.element + sum((n - 1) * s for n, s in zip(self.sizes, self.strides, strict=True))

    @property
    def span(self) -> tuple[int, int]:
        """First byte and end of what all tiles touch together."""
        low, high = self.buffer.offset, self.buffer.offset + self.element
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


def runs(region: Region, sizes: Sequence[int]) -> tuple[Array, int]:
    """Where the contiguous runs of a box of `sizes` start, in bytes after its first, sorted; and their length in bytes."""
    starts, length = np.zeros(1, np.int64), region.element
    for dim in reversed(range(len(region.shape))):
        size, stride = sizes[dim], region.strides[dim]
        if len(starts) == 1 and stride == length:
            length *= size
        elif size > 1:
            starts = (np.arange(size)[:, None] * stride + starts).ravel()
    return starts, length


@dataclass(frozen=True, eq=False)
class Access:
    """A read, write or atomic update of memory by every tile of task number `task`.

    Of what is read by index only the rows `named` are, where inputs say which; None where that is not known. Of rows that an
    argument counts (`kitsune.counted_rows`) the others are not read: `counted` is its number, and how many rows there are. An
    atomic update puts row `first` somewhere and later ones: none, where no more are counted.
    """

    op: ir.Operation
    task: int
    kind: str  # "read", "write" or "atomic"
    region: Region
    named: tuple[Rows, ...] | None = None
    counted: tuple[int, int] | None = None
    first: Array | None = None


@dataclass(frozen=True, eq=False)
class WaitRows:
    """`kitsune.wait_rows`: of the slots that `wait` is for, those of rows that elements [lo, hi) of the indices `named` name.

    Any index may name any row, so `wait`, for all slots, is the most that a tile may have to wait for, and no slot is sure to
    be waited for by it.
    """

    wait: Wait[Array]
    named: NamedRows
    lo: Array
    hi: Array


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a tensor that a tile reads: those that elements [lo, hi) of input `indices` name."""

    indices: Buffer
    lo: Array
    hi: Array


@dataclass(frozen=True, eq=False)
class Ring:
    """A queue, seen as if it had a slot for every tile (`passes.spatial.check_rings` proves that it may be seen so).

    `count` tiles go through it: `buffer` has a place for each, and a slot of `semaphore` says that it is complete.
    """

    queue: Queue
    count: int
    semaphore: Semaphore
    buffer: Buffer


@dataclass(frozen=True, eq=False)
class RingUse:
    """`kitsune.acquire`, `push`, `pop` or `release` of tile `number`."""

    op: ir.Operation
    ring: Ring
    number: Array


@dataclass(eq=False)
class Task:
    """One `kitsune.task`, at place `number` of the program."""

    op: ir.Operation
    number: int
    name: str
    extents: tuple[int, ...]
    waits: list[Wait[Array]] = field(default_factory=list)
    row_waits: list[WaitRows] = field(default_factory=list)
    posts: list[Post[Array]] = field(default_factory=list)
    accesses: list[Access] = field(default_factory=list)
    acquires: list[RingUse] = field(default_factory=list)
    pushes: list[RingUse] = field(default_factory=list)
    pops: list[RingUse] = field(default_factory=list)
    releases: list[RingUse] = field(default_factory=list)
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
    """One tile program: what it declares, and its tasks. The `semaphores` are those declared and one for each ring."""

    declared: TileProgram
    tasks: list[Task] = field(default_factory=list)
    rings: list[Ring] = field(default_factory=list)

    @property
    def op(self) -> ir.Operation:
        """The program's function."""
        return self.declared.function

    @property
    def semaphores(self) -> list[Semaphore]:
        """Those of waits and posts."""
        return [*self.declared.semaphores.values(), *(ring.semaphore for ring in self.rings)]
