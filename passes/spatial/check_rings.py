"""Ring queues of a tile program: no slot is overwritten early, and the wait for a free slot never closes a circle.

Order and coverage see a ring as if it had a slot for every tile (`dialects.tile_regions`): whatever is proved of that holds
of the ring, if a slot is taken again only when all who read its tile have released it, and nobody touches a slot that it has
not got.

A full ring makes a producer wait for tiles that come later in the program, so the order of the program does not show that
the waits end. Each share of the multiprocessors runs its tiles in order; on any number of workers that is a part of the order
that one worker a share keeps. Waits ask for more posts, never for fewer: if one worker a share gets through once, all runs do.
"""

from __future__ import annotations

import numpy as np
from torch_mlir import ir

from kitsune_mlir.dialects.tile_indices import Array, Points
from kitsune_mlir.dialects.tile_reader import shares_of
from kitsune_mlir.dialects.tile_records import Share
from kitsune_mlir.dialects.tile_regions import Program, Ring, RingUse, Task
from kitsune_mlir.passes.base import PassFailure


def check_rings(program: Program) -> None:
    """PassFailure at the first use of a ring that may overwrite a tile, or never end."""
    if not program.rings:
        return
    if program.declared.mode != "spatial":
        raise PassFailure(
            program.rings[0].queue.op, "makes a ring, which needs a spatial program: both ends must run at the same time"
        )
    for ring in program.rings:
        _check_memory(program, ring)
        _check_counts(program, ring)
    for task in program.tasks:
        _check_holding(task)
    _Run(program).check()


def _check_memory(program: Program, ring: Ring) -> None:
    memory, arena = ring.queue.memory, program.declared.arena
    for buffer in program.declared.buffers.values():
        if buffer not in (memory, arena) and buffer.source is None and buffer.overlaps(memory):
            (start, end), (low, high) = ((b.offset, b.offset + b.bytes) for b in (buffer, memory))
            text = f"shows bytes [{start}, {end}) of the arena, which the ring at [{low}, {high}) has"
            raise PassFailure(buffer.value.owner.operation, text)


def _check_counts(program: Program, ring: Ring) -> None:
    """Every tile is pushed and released as often as the queue says."""
    for kind, wanted in (("pushes", ring.queue.pushes), ("releases", ring.queue.pops)):
        made = np.zeros(ring.count, np.int64)
        for task in program.tasks:
            for use in getattr(task, kind):
                if use.ring is ring:
                    np.add.at(made, Points.every(task.extents).take(use.number), 1)
        wrong = np.flatnonzero(made != wanted)
        if len(wrong):
            raise PassFailure(ring.queue.op, f"counts {wanted} {kind} of each tile; tile {wrong[0]} gets {made[wrong[0]]}")


def _check_holding(task: Task) -> None:
    """Tiles push what they acquired, release what they popped, write into the one and read from the other."""
    for uses, ends, words in ((task.acquires, task.pushes, "acquires"), (task.pops, task.releases, "pops")):
        for use in uses:
            if sum(end.ring is use.ring and _same(end.number, use.number) for end in ends) != 1:
                raise PassFailure(use.op, f"of @{task.name} {words} a slot that it does not give on exactly once")
        for end in ends:
            if not any(use.ring is end.ring and _same(use.number, end.number) for use in uses):
                raise PassFailure(end.op, f"of @{task.name} gives on a slot that it has not got")
    for access in task.accesses:
        held = task.pops if access.kind == "read" else task.acquires
        rings = [use for use in (*task.acquires, *task.pops) if use.ring.buffer is access.region.buffer]
        foreign = access.region.buffer.role == "ring" and not rings
        for use in rings or ([None] if foreign else []):
            if use is None or use not in held or not _inside(access.region, use):
                raise PassFailure(
                    access.op, f"of @{task.name} touches {access.region.buffer.name} outside of the slot that it has"
                )


def _inside(region, use: RingUse) -> bool:
    first, rows = region.offsets[0], use.ring.queue.shape[0]
    low, number = np.broadcast_arrays(first, use.number)
    return bool((low >= number * rows).all() and (low + region.sizes[0] <= (number + 1) * rows).all())


def _same(a: Array, b: Array) -> bool:
    return bool((np.asarray(a) == np.asarray(b)).all())


class _Run:
    """One run with one worker a share, each with its tiles in the order of the program."""

    def __init__(self, program: Program):
        self.program = program
        self.posted = {semaphore: np.zeros(semaphore.slots, np.int64) for semaphore in program.semaphores}
        self.freed = {id(ring): np.zeros(ring.count, np.int64) for ring in program.rings}
        self.work: dict[Share, list[_Tiles]] = {}
        for task, share in zip(program.tasks, shares_of(program.declared.task_ops), strict=True):
            if share is None:
                raise PassFailure(task.op, "has no 'workers', in a spatial program with rings")
            self.work.setdefault(share, []).append(_Tiles(task))
        self._check_apart()

    def _check_apart(self) -> None:
        shares = sorted(self.work)
        for before, after in zip(shares, shares[1:], strict=False):
            if (end := before.first + before.workers) > after.first:
                text = f"has multiprocessors from {after.first} on, which belong to others up to {end}"
                raise PassFailure(self.work[after][0].task.op, text)

    def check(self) -> None:
        """PassFailure at the first tile that waits for ever."""
        moved = True
        while moved:
            moved = False
            for queue in self.work.values():
                while queue and self._advance(queue[0]):
                    moved = True
                    queue.pop(0)
                moved = moved or bool(queue and queue[0].moved)
                if queue:
                    queue[0].moved = False
        stuck = [queue[0] for queue in self.work.values() if queue]
        if stuck:
            first = min(stuck, key=lambda tiles: not tiles.waits_for)
            lines = "".join(f"\n  trace: {t.task.tile(t.tile)} waits for {t.waits_for}" for t in stuck)
            raise PassFailure(first.op, f"of {first.task.tile(first.tile)} never ends: it waits for {first.waits_for}{lines}")

    def _advance(self, tiles: _Tiles) -> bool:
        """Run tiles of a task as far as they go; whether all are done."""
        while tiles.next < tiles.count:
            if not self._may_run(tiles):
                return False
            at = tiles.next
            for semaphore, slots in tiles.posts:
                self.posted[semaphore][slots[at]] += 1
            for ring, numbers in tiles.releases:
                self.freed[id(ring)][numbers[at]] += 1
            tiles.next, tiles.moved = at + 1, True
        return True

    def _may_run(self, tiles: _Tiles) -> bool:
        at = tiles.next
        for wait, lo, hi in tiles.waits:
            short = np.flatnonzero(self.posted[wait.semaphore][lo[at] : hi[at]] < wait.count)
            if len(short):
                slot = int(lo[at] + short[0])
                tiles.op, tiles.waits_for = wait.op, f"{wait.count} posts of slot {slot}"
                return False
        for use, numbers in tiles.acquires:
            queue = use.ring.queue
            before = int(numbers[at]) - queue.depth
            if before >= 0 and self.freed[id(use.ring)][before] < queue.pops:
                done = int(self.freed[id(use.ring)][before])
                tiles.op = use.op
                tiles.waits_for = (
                    f"a slot of {use.ring.buffer.name}, of {queue.depth}, for tile {numbers[at]}: tile {before} has been "
                    f"released {done} times of {queue.pops}"
                )
                return False
        return True


class _Tiles:
    """The tiles of a task in their order, and how far they have got."""

    def __init__(self, task: Task):
        self.task, self.next, self.moved, self.count = task, 0, False, int(np.prod(task.extents))
        waits, every = (*task.waits, *(rows.wait for rows in task.row_waits)), Points.every(task.extents)
        self.waits = [(wait, every.take(wait.lo), every.take(wait.hi)) for wait in waits]
        self.posts = [(post.semaphore, every.take(post.slot)) for post in task.posts]
        self.acquires = [(use, every.take(use.number)) for use in task.acquires]
        self.releases = [(use.ring, every.take(use.number)) for use in task.releases]
        self.op: ir.Operation = task.op
        self.waits_for = ""

    @property
    def tile(self) -> tuple[int, ...]:
        """The coordinates of the next one."""
        return tuple(int(c) for c in np.unravel_index(self.next, self.task.extents))
