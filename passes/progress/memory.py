"""Whether tiles get in each other's way in memory: every overlap of a write with anything else must be ordered."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
from torch_mlir import ir

from kitsune_mlir.dialects.same_place import made_in_place
from kitsune_mlir.dialects.tile_indices import Array, Points
from kitsune_mlir.dialects.tile_regions import Access, Program, Region, Task, WaitRows
from kitsune_mlir.dialects.verify import captures

from .order import Order, Tiles
from .overlap import pairs_that_touch, which_meet
from .trace import ProgressFailure, Replay, Tile, number_of

_VERBS = {"read": "reads", "write": "writes", "atomic": "updates"}


class Conflicts:
    """Checks every pair of accesses of which one is a write."""

    def __init__(self, program: Program, order: Order):
        self.program, self.order = program, order

    @functools.cached_property
    def replay(self) -> Replay:
        """Runs of the program; made when there is a doubt to settle."""
        return Replay(self.program)

    def check(self) -> None:
        """ProgressFailure at the later access of the first pair that is not ordered."""
        accesses = [a for task in self.program.tasks for a in task.accesses]
        low, high = np.array([a.region.span for a in accesses] or np.zeros((0, 2), int)).T
        memory = np.array([a.region.buffer.argument for a in accesses])
        kind = np.array([a.kind for a in accesses])
        task = np.array([a.task for a in accesses])
        for number, later in enumerate(accesses):
            upto = slice(number + 1)
            near = (memory[upto] == memory[number]) & (low[upto] < high[number]) & (low[number] < high[upto])
            clash = near & (kind[upto] != later.kind) if later.kind != "write" else near
            done = np.zeros(len(self.program.tasks), bool)  # tasks that are complete before
            done[list(self.order.after[later.task])] = True
            clash &= ~done[task[upto]]
            for other in np.flatnonzero(clash):
                self._check_pair(accesses[other], later)

    def _check_pair(self, earlier: Access, later: Access) -> None:
        if earlier.task == later.task:
            self._check_within(earlier, later)
        else:
            self._check_between(earlier, later)

    def _check_between(self, earlier: Access, later: Access) -> None:
        if later.kind == "read" and earlier.kind == "write" and earlier.region.buffer is later.region.buffer:
            earlier = replace(earlier, region=earlier.region.owned())
        first, second = self.program.tasks[earlier.task], self.program.tasks[later.task]
        if later.kind == "read" and self._named_before(earlier, first, later, second):
            return
        tiles = Tiles(self.order, first, second, earlier.region.offsets, later.region.offsets)
        for c, d in pairs_that_touch(later.region, tiles.later_points, earlier.region, tiles.earlier_points):
            open_ = ~tiles.ordered(d, c)
            c, d = c[open_], d[open_]
            meet = which_meet(later.region, c, tiles.later_points, earlier.region, d, tiles.earlier_points)
            c, d = c[meet], d[meet]
            for k in np.lexsort((d, c)):
                at, by = tiles.later_points.tile(int(c[k])), tiles.earlier_points.tile(int(d[k]))
                if self._in_the_way(later, at, earlier, by):
                    message = self._unordered(earlier, first, by, later, second, at, tiles)
                    self._fail(later, at, message, earlier, by)

    def _named_before(self, earlier: Access, first: Task, later: Access, second: Task) -> bool:
        """Whether the later tiles read only rows that indices name, and have waited for all tiles that write these rows.

        Row r is waited for in one slot: so each tile that writes it must post there, and the wait not end without its post.
        """
        buffer = earlier.region.buffer
        if later.named is None or later.region.buffer is not buffer:
            return False
        for rows in later.named:
            waits = [
                w
                for w in second.row_waits
                if w.named.indices.origin is rows.indices and (w.lo <= rows.lo).all() and (rows.hi <= w.hi).all()
            ]
            if not any(self._posts_rows(earlier, first, wait, later.region) for wait in waits):
                return False
        return True

    def _posts_rows(self, earlier: Access, first: Task, wait: WaitRows, read: Region) -> bool:
        """Whether each tile of the earlier task posts, and must have posted, where its rows are waited for."""
        region, extent = earlier.region, wait.named.extent
        if read.shape[0] != extent or read.sizes != read.shape or region.buffer.bytes % extent:
            return False
        bytes_ = region.buffer.bytes // extent  # of a row
        sure = self.order.guaranteed(wait.wait, first) if wait.wait.semaphore in self.order.posters else np.zeros(0, bool)
        posts = [post for post in first.posts if post.semaphore is wait.wait.semaphore]
        points = first.points(region.offsets, posts=True)
        begin = points.take(region.start) - region.buffer.offset
        low, high = (
            begin // bytes_ // wait.named.rows,
            (np.minimum(begin + region.length, region.buffer.bytes) - 1) // bytes_ // wait.named.rows,
        )
        good = np.zeros(points.count, bool)
        for post in posts:
            slot = points.take(post.slot)
            good |= (slot == low) & (slot == high) & sure[slot]
        return bool(good.all())

    def _fail(self, later: Access, at, message: str, earlier: Access, by, both: bool = False) -> None:
        """Raise with the run in which the later access is made while the tile of the earlier one is not finished."""
        last, hanging = self._tiles(later, at, earlier, by)
        trace = self.replay.trace(last, None if last == hanging else hanging, both)
        fault = f"{_VERBS[later.kind]} {later.region.text(at)}"
        raise ProgressFailure(later.op, message, self.program, trace, fault)

    def _tiles(self, later: Access, at, earlier: Access, by) -> tuple[Tile, Tile]:
        tasks = self.program.tasks
        return (later.task, number_of(tasks[later.task], at)), (earlier.task, number_of(tasks[earlier.task], by))

    def _in_the_way(self, later: Access, at, earlier: Access, by) -> bool:
        """Whether the later tile really can begin before the earlier one has finished: a run of the program decides what the
        rules of `Order` leave open."""
        last, hanging = self._tiles(later, at, earlier, by)
        return last == hanging or self.replay.can_begin(last, hanging)

    def _unordered(self, earlier: Access, first: Task, by, later: Access, second: Task, at, tiles: Tiles) -> str:
        message = (
            f"of {second.tile(at)} {_VERBS[later.kind]} {later.region.text(at)} without waiting for {first.tile(by)}, "
            f"which {_VERBS[earlier.kind]} {earlier.region.text(by)}"
        )
        return message + self._why(first, by, second, at, tiles)

    def _why(self, first: Task, by, second: Task, at, tiles: Tiles) -> str:
        """What the later tile does wait for of the earlier task."""
        if not tiles.direct:
            return f"; @{second.name} waits for nothing that @{first.name} posts"
        wait, post, sure = tiles.direct[0]

        def pick(array: Array, tile: tuple[int, ...]) -> int:
            return int(array[tuple(c if n > 1 else 0 for c, n in zip(tile, array.shape, strict=True))])

        slot, lo, hi = pick(post.slot, by), pick(wait.lo, at), pick(wait.hi, at)
        if lo <= slot < hi and not sure[slot]:
            total = sum(self.order.counts[t.number, post.semaphore][slot] for t in self.order.posters[post.semaphore])
            return f"; its wait for {wait.count} of the {total} posts of slot {slot} can end without that tile's"
        return f"; it waits for slots [{lo}, {hi}), that tile posts slot {slot}"

    # Within one task: tiles of a task are never ordered.

    def _check_within(self, earlier: Access, later: Access) -> None:
        task = self.program.tasks[later.task]
        if earlier is later:
            crossing = self._crossing(task, later)
            if not crossing:
                return
        else:
            crossing = range(len(task.extents))
        every = Points.every(task.extents)
        for c, d in pairs_that_touch(later.region, every, earlier.region, every):
            # Operations of one tile run in order, but a load is no copy: its tile must not be overwritten while it is used.
            lazy = {"bufferization.to_tensor"} & {earlier.op.name, later.op.name}
            in_place = self.program.declared.holds_values(later.region.buffer) and _changes_in_place(task, earlier, later)
            keep = (c != d) | (bool(lazy) and not in_place)
            if earlier is later:
                apart = [np.unravel_index(c, every.shape)[x] != np.unravel_index(d, every.shape)[x] for x in crossing]
                keep &= np.any(apart, axis=0)
            c, d = c[keep], d[keep]
            for k in np.flatnonzero(which_meet(later.region, c, every, earlier.region, d, every)):
                by, at = every.tile(int(d[k])), every.tile(int(c[k]))
                if self._in_the_way(later, at, earlier, by):
                    self._fail(later, at, self._clash(task, earlier, by, later, at), earlier, by, both=True)

    def _clash(self, task: Task, earlier: Access, by, later: Access, at) -> str:
        if by == at:
            return (
                f"of {task.tile(at)} {_VERBS[later.kind]} {later.region.text(at)}, where the same tile {_VERBS[earlier.kind]} "
                f"{earlier.region.text(by)}; loads and stores of a tile must not overlap"
            )
        return (
            f"of {task.tile(at)} {_VERBS[later.kind]} {later.region.text(at)}, and {task.tile(by)} {_VERBS[earlier.kind]} "
            f"{earlier.region.text(by)}; tiles of one task run in any order"
        )

    def _crossing(self, task: Task, write: Access) -> list[int]:
        """The grid dimensions along which tiles of one store may overlap with different values.

        Along the others each tile has rows of its own, or the last tile is shifted back and repeats rows of the one before, or
        neither what is stored nor where depends on the coordinate (a sum beside a product, which has no columns).
        """
        region, own = write.region, set(range(len(task.extents))) - _coordinates_of(write.op, task.op)
        for dim, (offset, size) in enumerate(zip(region.offsets, region.sizes, strict=True)):
            moving = [axis for axis, n in enumerate(offset.shape) if n > 1]
            if len(moving) != 1:
                continue
            if (np.diff(np.sort(offset.ravel())) >= size).all() or region.is_ragged(dim):
                own.add(moving[0])
        return [axis for axis, n in enumerate(task.extents) if n > 1 and axis not in own]


def _coordinates_of(op: ir.Operation, task: ir.Operation) -> set[int]:
    """The coordinates of a task's tile that an op in its body depends on, directly or through what it uses."""
    body, found, seen = task.regions[0].blocks[0], set[int](), set[ir.Value]()
    pending = _used(op)
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        owner = value.owner
        if not isinstance(owner, ir.Block):
            pending += _used(owner.operation)
        elif owner == body:
            found.add(ir.BlockArgument(value).arg_number)
        elif owner.owner.name != "func.func":
            pending += _used(owner.owner.operation)
    return found


def _used(op: ir.Operation) -> list[ir.Value]:
    """What an op uses, and what the ops around it inside its task do."""
    used: list[ir.Value] = []
    while op.name not in ("kitsune.task", "func.func"):
        used += [*op.operands, *captures(op)]
        op = op.parent.operation
    return used


def _changes_in_place(task: Task, read: Access, write: Access) -> bool:
    """Whether each element that is stored is made of the element that was loaded from its place, which nothing needs later."""
    names = ("bufferization.to_tensor", "bufferization.materialize_in_destination")
    if (read.op.name, write.op.name) != names or read.region.shape != write.region.shape:
        return False
    same = zip(read.region.offsets, write.region.offsets, strict=True)
    if read.region.sizes != write.region.sizes or not all(np.array_equal(a, b) for a, b in same):
        return False
    return made_in_place(write.op.operands[0], read.op.results[0], task.op.regions[0].blocks[0])
