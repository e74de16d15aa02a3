"""Whether what is read, and what the caller gets, has been written: unions of boxes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kitsune_mlir.dialects.tile_indices import Array, Points
from kitsune_mlir.dialects.tile_records import Buffer
from kitsune_mlir.dialects.tile_regions import Access, Program, Region, Task, runs

from .trace import ProgressFailure, Replay, number_of

_CELLS = 1 << 27  # most cells and runs of one buffer


@dataclass(frozen=True, eq=False)
class Boxes:
    """Many boxes of equal size: `starts` has a row a box and a column a dimension."""

    starts: Array
    sizes: tuple[int, ...]


def boxes_of(region: Region, points: Points, linear: bool) -> Boxes:
    """The boxes of a region at `points`, or the contiguous runs of bytes that they consist of.

    Raises:
        MemoryError: there are too many runs.
    """
    if not linear:
        columns = [points.take(o) for o in region.offsets]
        return Boxes(np.stack(columns, axis=1) if columns else np.zeros((1, 0), np.int64), region.sizes)
    inside, length = runs(region, region.sizes)
    starts = points.take(region.start) - region.buffer.offset
    if len(starts) * len(inside) > _CELLS:
        raise MemoryError(f"{len(starts) * len(inside)} runs of bytes")
    return Boxes((starts[:, None] + inside).reshape(-1, 1), (length,))


def _distinct(arrays: list[Array]) -> Array:
    """All numbers of some arrays, sorted. (`np.unique` hashes: strided integers share places; 30 times as long.)"""
    numbers = np.sort(np.concatenate(arrays))
    return numbers[np.concatenate([[True], numbers[1:] != numbers[:-1]])]


def fills(region: Region) -> bool:
    """Whether the boxes of a region are sure to hold all of its shape: each dimension is walked by coordinates of its own, and
    without a gap."""
    used: set[int] = set()
    for offset, size, extent in zip(region.offsets, region.sizes, region.shape, strict=True):
        axes = {axis for axis, count in enumerate(offset.shape) if count > 1}
        starts = np.sort(offset.ravel())
        if axes & used or starts[0] > 0 or starts[-1] + size < extent or (np.diff(starts) > size).any():
            return False
        used |= axes
    return True


class Cover:
    """The union of some boxes in `shape`, on the grid that their edges make."""

    def __init__(self, shape: tuple[int, ...], parts: list[Boxes]):
        self.shape = shape
        self.edges = [
            _distinct([np.array([0, n]), *[e for p in parts for e in (p.starts[:, d], p.starts[:, d] + p.sizes[d])]])
            for d, n in enumerate(shape)
        ]
        cells = tuple(len(e) for e in self.edges)
        if np.prod(cells, dtype=float) > _CELLS:
            raise MemoryError(f"{cells} cells")
        # Add 1 at the first corner of each box and take it back at the others: running sums then count the boxes of a cell.
        depth = np.zeros(cells, np.int64)
        for part in parts:
            low = [np.searchsorted(e, part.starts[:, d]) for d, e in enumerate(self.edges)]
            high = [np.searchsorted(e, part.starts[:, d] + part.sizes[d]) for d, e in enumerate(self.edges)]
            for corner in range(1 << len(shape)):
                ends = [corner >> d & 1 for d in range(len(shape))]
                at = tuple(high[d] if end else low[d] for d, end in enumerate(ends))
                np.add.at(depth, at, -1 if sum(ends) % 2 else 1)
        for axis in range(len(shape)):
            depth = np.cumsum(depth, axis=axis)
        self.empty = depth[(slice(-1),) * len(shape)] == 0

    def hole(self) -> tuple[int, ...] | None:
        """The first element that is in no box."""
        found = np.argwhere(self.empty)
        return tuple(int(e[i]) for e, i in zip(self.edges, found[0], strict=True)) if len(found) else None

    def holes_in(self, boxes: Boxes) -> Array:
        """The numbers of the boxes that hold an element which is in none of the union's."""
        count = self.empty.astype(np.int64)
        for axis in range(len(self.shape)):
            zero = np.zeros_like(np.take(count, [0], axis=axis))
            count = np.concatenate([zero, np.cumsum(count, axis=axis)], axis=axis)
        low = [np.searchsorted(e, boxes.starts[:, d], side="right") - 1 for d, e in enumerate(self.edges)]
        high = [np.searchsorted(e, boxes.starts[:, d] + boxes.sizes[d]) for d, e in enumerate(self.edges)]
        total = np.zeros(len(boxes.starts), np.int64)
        for corner in range(1 << len(self.shape)):
            ends = [corner >> d & 1 for d in range(len(self.shape))]
            at = tuple(low[d] if end else high[d] for d, end in enumerate(ends))
            total += count[at] * (-1 if sum(ends) % 2 else 1)
        return np.flatnonzero(total)


class Coverage:
    """Checks that results are complete and that nothing is read which no task has written (or which is overwritten)."""

    def __init__(self, program: Program):
        self.program = program
        self.accesses = [a for task in program.tasks for a in task.accesses]
        self.writes: dict[Buffer, list[Access]] = {}
        for access in self.accesses:
            if access.kind == "write" and access.region.exact:
                self.writes.setdefault(access.region.buffer, []).append(access)
        self.covers: dict[tuple, Cover] = {}
        self.filling: dict[Access, bool] = {}
        self.changes = [a for a in self.accesses if a.kind != "read"]
        self.memory = np.array([a.region.buffer.argument for a in self.changes])
        self.task = np.array([a.task for a in self.changes])
        self.low, self.high = np.array([a.region.span for a in self.changes] or np.zeros((0, 2), int)).T

    def check_results(self) -> None:
        """ProgressFailure at the program's function when an element of a result is never written."""
        for buffer in self.program.declared.buffers.values():
            if buffer.role != "result" or buffer.source is not None or self.program.declared.holds_values(buffer):
                continue
            writes = self.writes.get(buffer, [])
            if not writes:
                raise ProgressFailure(self.program.op, f"never writes {buffer.name}", self.program)
            if any(map(self._fills_buffer, writes)):
                continue
            cover, shape = self._cover(writes, [])
            hole = cover.hole()
            if hole is not None:
                place = ", ".join(map(str, hole)) if shape else f"byte {hole[0]}"
                last = self.program.tasks[writes[-1].task]
                message = f"of @{last.name} leaves element [{place}] of {buffer.name} unwritten"
                raise ProgressFailure(writes[-1].op, message, self.program)

    def check_reads(self) -> None:
        """ProgressFailure at the first read (or update) of an element that holds nothing, or something else."""
        for read in self.accesses:
            if read.kind != "write":
                self._check_read(read)

    def _check_read(self, read: Access) -> None:
        if self.program.declared.holds_values(read.region.buffer):
            return
        clobber = self._last_clobber(read)
        since = clobber.task if clobber is not None else -1
        writes = [w for w in self.writes.get(read.region.buffer, ()) if since < w.task < read.task]
        if any(write.region.shape == read.region.shape and self._fills(write) for write in writes):
            return
        if any(map(self._fills_buffer, writes)):
            return
        task = self.program.tasks[read.task]
        points = task.points(read.region.offsets)
        if writes:
            cover, same = self._cover(writes, [read])
            if not cover.empty.any():
                return
            boxes = boxes_of(read.region, points, linear=not same)
            bad = cover.holes_in(boxes)
            if not len(bad):
                return
            point = int(bad[0]) * points.count // len(boxes.starts)
        else:
            point = 0
        tile = points.tile(point)
        trace = Replay(self.program).trace((read.task, number_of(task, tile)))
        text = f"reads {read.region.text(tile)}"
        if clobber is None:
            fault = f"{text}, which no earlier task wrote"
        else:
            by: Task = self.program.tasks[clobber.task]
            other = clobber.region.text((0,) * len(by.extents))
            fault = f"{text} after @{by.name} has overwritten it: it writes {other} in the same bytes"
        raise ProgressFailure(read.op, f"of {task.tile(tile)} {fault}", self.program, trace, text)

    def _last_clobber(self, read: Access) -> Access | None:
        """The last earlier write to bytes of the read's region by another name."""
        buffer, (low, high) = read.region.buffer, read.region.span
        near = (self.memory == buffer.argument) & (self.low < high) & (low < self.high) & (self.task < read.task)
        others = [self.changes[n] for n in np.flatnonzero(near) if self.changes[n].region.buffer is not buffer]
        return others[-1] if others else None

    def _fills(self, write: Access) -> bool:
        if write not in self.filling:
            self.filling[write] = fills(write.region)
        return self.filling[write]

    def _fills_buffer(self, write: Access) -> bool:
        """Whether a write leaves no byte of its buffer as it was."""
        return math.prod(write.region.shape) * write.region.element == write.region.buffer.bytes and self._fills(write)

    def _cover(self, writes: list[Access], others: list[Access]) -> tuple[Cover, bool]:
        """The union of what `writes` write; True when it is in the shape that they and `others` all see the buffer as, False
        when it is in bytes."""
        shapes = {a.region.shape for a in [*writes, *others]}
        same = len(shapes) == 1
        key = (*map(id, writes), same)
        if key not in self.covers:
            region = writes[0].region
            shape = region.shape if same else (region.buffer.bytes,)
            parts = [boxes_of(w.region, self.program.tasks[w.task].points(w.region.offsets), linear=not same) for w in writes]
            self.covers[key] = Cover(shape, parts)
        return self.covers[key], same
