"""Which tiles of a program matter where results have fewer valid rows than they are long.

A program that is compiled for up to N rows is called for n of them (`kitsune.valid_rows`): what stands in results behind row
n is nobody's. A tile then matters if it writes something that a valid row is made of. Looked at backwards, from results over
the reads of tiles that matter to the tiles that write what is read, that gives each tile a *threshold*: it matters in calls
with more rows than that. Tiles of a task are left out along one dimension of its grid, from its end. Everything else stays as
it is: a tile that is left out waits and posts like any other, so a proof of progress holds for every number of rows. Rows that
are put at others by atomics and counted (`kitsune.counted_rows`) matter as far as their count.

The counts themselves are arguments of the program, so one call may have several, such as nodes and edges. Rows that are added
at others (`kitsune.counted_rows`) are read as far as their count, and change nothing behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from torch_mlir import ir

from .attribute_table import COUNTED, VALID_ROWS
from .tile_accesses import read_accesses
from .tile_indices import Array, Points
from .tile_records import Buffer
from .tile_regions import Program, Region, Task
from .verify import walk

__all__ = ["LiveTiles", "live_tiles", "valid_rows_of"]

NEVER = np.iinfo(np.int64).max
"""The threshold of what matters in no call."""
ALWAYS = -1
"""The threshold of what matters in every call."""


@dataclass(frozen=True)
class LiveTiles:
    """The tiles of a task that matter.

    Attributes:
        axis: the dimension of the grid along which tiles are left out.
        thresholds: by the number of the argument that holds a count, for each place along that dimension: tiles there matter
            where the count of one argument is more than its threshold. They never fall along the dimension.
    """

    axis: int
    thresholds: Mapping[int, tuple[int, ...]]


def valid_rows_of(function: ir.Operation) -> tuple[tuple[int, int] | None, ...]:
    """For each result of a tile program the argument that holds a count, and how many rows the result is long."""
    if VALID_ROWS not in function.attributes:
        return ()
    found = list(ir.DenseI64ArrayAttr(function.attributes[VALID_ROWS]))
    pairs = zip(found[::2], found[1::2], strict=True)
    return tuple((argument, rows) if argument >= 0 else None for argument, rows in pairs)


def live_tiles(
    function: ir.Operation, able: Callable[[int, LiveTiles], LiveTiles | None] | None = None
) -> dict[int, LiveTiles]:
    """By number of the task, which of its tiles matter; tasks that are not there matter always.

    Args:
        function: a tile program.
        able: which of the tiles of the task of a number are done, all that matter among them; None where all are. Tasks are
            asked in reverse order, and what a tile reads that is done matters. Without it just those that matter are done.
    """
    results = valid_rows_of(function)
    counted = [op for op in walk(function) if COUNTED in op.attributes]
    if not counted and not any(results):
        return {}
    program = read_accesses(function)
    reads = [access.counted for task in program.tasks for access in task.accesses]
    counts = sorted({pair[0] for pair in (*results, *reads) if pair is not None})
    if program.rings:  # who waits for the other end of one sees only so many slots
        return {}
    needed = _Needed(counts)
    _need_results(needed, program, results)
    found = {}
    for task in reversed(program.tasks):
        live = _live(task, needed)
        if live is not None and able is not None:
            live = able(task.number, live)
        if live is not None:
            found[task.number] = live
        needed.read(task, live)
    return dict(sorted(found.items()))


@dataclass
class _Reads:
    """What is read of a buffer, seen as a block of one shape: where reads end along each dimension, last in bytes, and their
    thresholds."""

    ends: list[list[Array]]
    thresholds: list[Array] = field(default_factory=list)

    def least(self, dim: int, start: Array) -> Array:
        """The least threshold of reads that end behind `start` along a dimension."""
        ends, thresholds = np.concatenate(self.ends[dim]), np.concatenate(self.thresholds)
        order = np.argsort(ends, kind="stable")
        least = np.append(np.minimum.accumulate(thresholds[order][::-1])[::-1], NEVER)
        return least[np.searchsorted(ends[order], start, side="right")]


class _Needed:
    """What later tasks and callers read of each buffer, with a threshold for each count."""

    def __init__(self, counts: Iterable[int]):
        self.counts = tuple(counts)
        self._reads: dict[tuple[int, int], dict[tuple[int, ...], _Reads]] = {}  # by number of the count and memory

    def add(self, count: int, buffer: Buffer, shape: tuple[int, ...], ends: list[Array], thresholds: Array) -> None:
        """Say that boxes that end there, last in bytes of the argument, are read."""
        known = self._reads.setdefault((count, id(buffer.origin)), {})
        reads = known.setdefault(shape, _Reads([[] for _ in ends]))
        for held, end in zip(reads.ends, ends, strict=True):
            held.append(end)
        reads.thresholds.append(thresholds)

    def of(self, count: int, region: Region) -> Array:
        """The thresholds of tiles that write a region."""
        least = np.array(NEVER)
        for shape, reads in self._reads.get((count, id(region.buffer.origin)), {}).items():
            # An element that is read is in a box along each dimension, and before its end in memory: the most decides.
            most = reads.least(-1, region.start)
            for dim, offset in enumerate(region.offsets) if shape == region.shape else ():
                most = np.maximum(most, reads.least(dim, offset))
            least = np.minimum(least, most)
        return least

    def read(self, task: Task, live: LiveTiles | None) -> None:
        """Say what a task reads."""
        for access in task.accesses:
            if access.kind == "write":
                continue
            region = access.region
            if access.counted is not None and access.kind == "read":
                # Whoever else needs them, needs them in calls with as many rows.
                count, rows = access.counted
                each = np.arange(rows)
                end = int(region.start.min()) + (each + 1) * region.length // rows
                self.add(count, region.buffer, (), [end], each)
                continue
            for count in self.counts:
                thresholds = _spread(task, live, count)
                points = Points.telling(task.extents, [thresholds, *region.offsets])
                ends = [points.take(offset) + size for offset, size in zip(region.offsets, region.sizes, strict=True)]
                end = points.take(np.broadcast_to(region.start + region.length, points.shape))
                self.add(count, region.buffer, region.shape, [*ends, end], points.take(thresholds))


def _spread(task: Task, live: LiveTiles | None, count: int) -> Array:
    """The thresholds of a task's tiles, over its grid."""
    shape = [1] * len(task.extents)
    if live is None:
        return np.full(shape, ALWAYS, np.int64)
    shape[live.axis] = task.extents[live.axis]
    if count not in live.thresholds:
        return np.full(shape, NEVER, np.int64)
    return np.array(live.thresholds[count], np.int64).reshape(shape)


def _need_results(needed: _Needed, program: Program, results: tuple[tuple[int, int] | None, ...]) -> None:
    """Callers read the valid rows of results, or all of them."""
    buffers = {a.region.buffer.argument: a.region.buffer.origin for task in program.tasks for a in task.accesses}
    for number, pair in enumerate(results or [None] * program.declared.results):
        buffer = buffers.get(program.declared.inputs + number)
        if buffer is None:
            continue
        for count in needed.counts:
            if pair is None:
                needed.add(count, buffer, (), [np.array([buffer.offset + buffer.bytes])], np.array([ALWAYS]))
            elif pair[0] == count:
                rows = np.arange(pair[1])
                needed.add(count, buffer, (), [buffer.offset + (rows + 1) * buffer.bytes // pair[1]], rows)


def _live(task: Task, needed: _Needed) -> LiveTiles | None:
    """What of a task matters; None where everything does, always."""
    writes = [access for access in task.accesses if access.kind == "write"]
    updates = [access for access in task.accesses if access.kind == "atomic"]
    if not (writes or updates) or any(access.first is None for access in updates) or not task.extents:
        return None
    found: dict[int, Array] = {}
    for count in needed.counts:
        least = np.full([1] * len(task.extents), NEVER, np.int64)
        for access in writes:  # of what a last tile that is shifted back writes again, the first writer decides
            least = np.minimum(least, needed.of(count, access.region.owned()))
        for access in updates:
            if access.first is not None and access.counted is not None and access.counted[0] == count:
                least = np.minimum(least, access.first)
        if (least != NEVER).any():
            found[count] = least
    if not found or any((each == ALWAYS).all() for each in found.values()):
        return None
    best = max(range(len(task.extents)), key=lambda axis: sum(_savings(each, axis) for each in found.values()))
    along = {count: _along(each, best, task.extents[best]) for count, each in found.items()}
    if any(each[-1] == ALWAYS for each in along.values()):
        return None
    return LiveTiles(best, {count: tuple(map(int, each)) for count, each in along.items()})


def _savings(thresholds: Array, axis: int) -> float:
    """How much of a grid is left out along a dimension, as a number to compare with others'."""
    each = _along(thresholds, axis, thresholds.shape[axis]).astype(float)
    return float(np.minimum(each, 1e9).mean())


def _along(thresholds: Array, axis: int, extent: int) -> Array:
    """Thresholds of all tiles at a place along a dimension, the least of the places behind it."""
    others = tuple(dim for dim in range(thresholds.ndim) if dim != axis)
    each = np.broadcast_to(thresholds.min(axis=others), (extent,))
    return np.minimum.accumulate(each[::-1])[::-1]
