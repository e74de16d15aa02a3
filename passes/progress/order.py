"""Which tiles come before which: what waits and posts guarantee, whatever the number of workers.

Tiles are handed out in the order of the program, so a run cannot deadlock when every wait is met by posts of earlier tiles: the
earliest unfinished tile can always go on. Apart from that, tiles run in any order that the waits allow. Tile d comes before
tile c when c waits for a slot that d posts, and the count cannot be reached without d; or through tiles in between.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from torch_mlir import ir

from kitsune_mlir.dialects.tile_indices import Array, Points
from kitsune_mlir.dialects.tile_records import Post, Semaphore, Wait
from kitsune_mlir.dialects.tile_regions import Program, Task

from .trace import ProgressFailure, Replay, Trace, number_of


def _below(flags: Array) -> Array:
    """below[i] is how many of flags[:i] are set."""
    return np.concatenate([[0], np.cumsum(flags)])


class Order:
    """Happens-before between the tiles of a program, asked pair by pair and computed only as far as asked."""

    def __init__(self, program: Program):
        self.program = program
        self.posters: dict[Semaphore, list[Task]] = {}
        self.counts: dict[tuple[int, Semaphore], Array] = {}  # (task, semaphore) -> posts it makes to each slot
        for task in program.tasks:
            for post in task.posts:
                self._count(task, post)
        self.tables: dict[int, dict[int, Array | None]] = {}
        self.after = self._complete_orders()

    def _count(self, task: Task, post: Post[Array]) -> None:
        slots = post.semaphore.slots
        wrong = (post.slot < 0) | (post.slot >= slots)
        if wrong.any():
            tile = tuple(int(i[0]) for i in np.nonzero(wrong))
            text = f"posts slot {int(post.slot[tile])}; there are {slots}"
            self._wrong(task, tile, post.op, text)
        points = Points.telling(task.extents, [post.slot])
        counts = np.bincount(points.take(post.slot), minlength=slots) * points.repeats
        posters = self.posters.setdefault(post.semaphore, [])
        if task not in posters:
            posters.append(task)
        key = task.number, post.semaphore
        self.counts[key] = self.counts.get(key, 0) + counts

    def _least(self, task: Task, semaphore: Semaphore) -> Array:
        """For each slot how many posts one tile of the task makes to it, if it makes any (the least of its tiles)."""
        slots = [p.slot for p in task.posts if p.semaphore == semaphore]
        least = np.ones(semaphore.slots, np.int64)
        if len(slots) > 1:
            points = Points.telling(task.extents, slots)
            every = np.stack([points.take(s) for s in slots], axis=1)
            times = (every[:, :, None] == every[:, None, :]).sum(axis=2)
            least[:] = len(slots)
            np.minimum.at(least, every.ravel(), times.ravel())
        return least

    # Progress.

    def check_waits(self) -> None:
        """ProgressFailure at the first wait that the posts of earlier tiles do not meet."""
        made = {semaphore: np.zeros(semaphore.slots, np.int64) for semaphore in self.program.semaphores}
        for task in self.program.tasks:
            for wait in (*task.waits, *(rows.wait for rows in task.row_waits)):
                self._check_wait(task, wait, made[wait.semaphore])
            for semaphore in {p.semaphore for p in task.posts}:
                made[semaphore] = made[semaphore] + self.counts[task.number, semaphore]

    def _check_wait(self, task: Task, wait: Wait[Array], made: Array) -> None:
        points = Points.telling(task.extents, [wait.lo, wait.hi])
        lo, hi = points.take(wait.lo), points.take(wait.hi)
        for c in np.flatnonzero((lo < 0) | (hi > len(made)) | (lo > hi))[:1]:
            text = f"waits for slots [{lo[c]}, {hi[c]}); there are [0, {len(made)})"
            self._wrong(task, points.tile(c), wait.op, text)
        short = _below(made < wait.count)
        starved = np.flatnonzero(short[hi] - short[lo])
        if not len(starved):
            return
        if task in self.posters.get(wait.semaphore, ()):
            self._check_own_posts(task, wait, made)
            return
        slot = int(lo[starved[0]] + np.flatnonzero(made[lo[starved[0]] :] < wait.count)[0])
        self._starved(task, wait, points.tile(starved[0]), slot, int(made[slot]))

    def _check_own_posts(self, task: Task, wait: Wait[Array], made: Array) -> None:
        """The same where the task also posts to the semaphore: its own earlier tiles count."""
        every = Points.every(task.extents)
        lo, hi = every.take(wait.lo), every.take(wait.hi)
        posts = [every.take(p.slot) for p in task.posts if p.semaphore == wait.semaphore]
        tiles = np.tile(np.arange(every.count), len(posts))
        keys = np.sort(np.concatenate(posts) * every.count + tiles)
        for c in range(every.count):
            slots = np.arange(lo[c], hi[c])
            own = np.searchsorted(keys, slots * every.count + c) - np.searchsorted(keys, slots * every.count)
            for i in np.flatnonzero(made[slots] + own < wait.count)[:1]:
                self._starved(task, wait, every.tile(c), int(slots[i]), int(made[slots[i]] + own[i]))

    def _wrong(self, task: Task, tile: tuple[int, ...], op: ir.Operation, text: str) -> None:
        """A wait or post outside of its semaphore: the trace leads to the tile."""
        last = (task.number, number_of(task, tile))
        trace = Trace((), None, last) if op.name in ("kitsune.wait", "kitsune.wait_rows") else Replay(self.program).trace(last)
        raise ProgressFailure(op, f"of {task.tile(tile)} {text}", self.program, trace, text)

    def _starved(self, task: Task, wait: Wait[Array], tile: tuple[int, ...], slot: int, made: int) -> None:
        later = [
            f"@{t.name}"
            for t in self.posters.get(wait.semaphore, ())
            if t.number >= task.number and self.counts[t.number, wait.semaphore][slot]
        ]
        posts = f"{wait.count} post{'s' if wait.count > 1 else ''}"
        message = f"of {task.tile(tile)} never ends: it waits for {posts} of slot {slot}, earlier tiles make {made}"
        if later:
            message += f"; {', '.join(later)} would post it, but no earlier than this tile"
        last = (task.number, number_of(task, tile))
        fault = f"waits for ever for {posts} of slot {slot}"
        raise ProgressFailure(wait.op, message, self.program, Trace((), None, last), fault)

    # Order.

    def guaranteed(self, wait: Wait[Array], poster: Task) -> Array:
        """For each slot: whether a wait for it cannot end before all tiles of `poster` that post it have done so.

        The count must be out of reach without any one of them: of all posts to the slot, leave out that tile's, those of tasks
        that run after all of `poster` anyway, and those of the waiting task itself if its tiles post what they have waited
        for (the first tile to get through has seen none of them).
        """
        posters = self.posters[wait.semaphore]
        late = {t.number for t in posters if poster.number in self.after[t.number] or self._waits_first(t, wait)}
        others = [t for t in posters if t is poster or t.number not in late]
        reachable = np.sum([self.counts[t.number, wait.semaphore] for t in others], axis=0)
        return reachable - self._least(poster, wait.semaphore) < wait.count

    def _waits_first(self, task: Task, wait: Wait[Array]) -> bool:
        slots = [p.slot for p in task.posts if p.semaphore == wait.semaphore]
        return any(own is wait for own in task.waits) and all(((wait.lo <= s) & (s < wait.hi)).all() for s in slots)

    def _complete_orders(self) -> list[set[int]]:
        """For each task the tasks whose every tile comes before its every tile.

        What is found makes more of `guaranteed`, so this repeats until nothing is added.
        """
        self.after: list[set[int]] = [set() for _ in self.program.tasks]
        while True:
            found: list[set[int]] = []
            covered: list[set[int]] = []  # the tasks whose every tile comes before some tile of the task
            for task in self.program.tasks:
                mine, some = set[int](), set[int]()
                for wait in task.waits:
                    for poster in self.posters.get(wait.semaphore, ()):
                        if poster.number < task.number:
                            own = {poster.number, *covered[poster.number]}
                            every, any_ = self._complete(wait, poster)
                            mine |= own if every else found[poster.number] if any_ else set()
                            if not every and self._covers(wait, poster):
                                some |= own
                for rows in task.row_waits:
                    for poster in self.posters.get(rows.wait.semaphore, ()):
                        # Whatever the indices are, some tile of the poster is waited for.
                        if (
                            poster.number < task.number
                            and self.guaranteed(rows.wait, poster).all()
                            and (rows.lo < rows.hi).all()
                        ):
                            mine |= found[poster.number]
                found.append(mine)
                covered.append(mine | some)
            if found == self.after:
                return found
            self.after = found

    def _complete(self, wait: Wait[Array], poster: Task) -> tuple[bool, bool]:
        """Whether each tile that waits does so for every tile of the poster, and whether for any."""
        sure = self.guaranteed(wait, poster) & (self.counts[poster.number, wait.semaphore] > 0)
        below = _below(sure)
        lo, hi = np.broadcast_arrays(wait.lo, wait.hi)
        for post in poster.posts:
            first, last = int(post.slot.min()), int(post.slot.max())
            if post.semaphore == wait.semaphore and (lo <= first).all() and (hi > last).all() and sure[post.slot].all():
                return True, True
        return False, bool((below[np.clip(hi, 0, len(sure))] > below[np.clip(lo, 0, len(sure))]).all())

    def _covers(self, wait: Wait[Array], poster: Task) -> bool:
        """Whether every tile of the poster is waited for by some tile."""
        slots = wait.semaphore.slots
        begun = np.zeros(slots + 1, np.int64)
        for bound, step in zip(np.broadcast_arrays(wait.lo, wait.hi), (1, -1), strict=True):
            np.add.at(begun, np.clip(bound, 0, slots), step)
        seen = (np.cumsum(begun)[:-1] > 0) & self.guaranteed(wait, poster)
        return any(seen[post.slot].all() for post in poster.posts if post.semaphore == wait.semaphore)

    def between(self, first: int, last: int) -> Array | None:
        """Whether tiles of task `first` (columns: points that differ in posts, eight a byte) come before those of task `last`
        (rows: points that differ in waits), through any chain of tasks; None where none does."""
        rows = self.tables.setdefault(first, {first: None})
        for number in range(max(rows) + 1, last + 1):
            rows[number] = self._row(self.program.tasks[first], self.program.tasks[number], rows)
        return rows[last]

    def _row(self, origin: Task, task: Task, rows: dict[int, Array | None]) -> Array | None:
        columns, mine = origin.points([], posts=True), task.points([], waits=True)
        result = np.zeros((mine.count, -(-columns.count // 8)), np.uint8)
        for wait in task.waits:
            lo, hi = mine.take(wait.lo), mine.take(wait.hi)
            for poster in self.posters.get(wait.semaphore, ()):
                if not origin.number <= poster.number < task.number:
                    continue
                sure, table = self.guaranteed(wait, poster), rows[poster.number]
                for post in (p for p in poster.posts if p.semaphore == wait.semaphore):
                    # What is known of the origin once a slot is complete: the tiles that post it, or what posters know.
                    if poster is origin:
                        known = np.zeros((len(sure), result.shape[1]), np.uint8)
                        column = np.arange(columns.count)
                        bits = np.right_shift(128, column & 7).astype(np.uint8)
                        np.bitwise_or.at(known, (columns.take(post.slot), column >> 3), bits)
                    elif table is not None:
                        known = self._through(table, poster, post)
                    else:
                        continue
                    known[~sure] = 0
                    result |= _any_in_ranges(known, lo, hi)
        return result if result.any() else None

    def _through(self, table: Array, poster: Task, post: Post[Array]) -> Array:
        """What is known once a slot is complete, when `table` says what the tiles of `poster` know."""
        points = poster.points([post.slot], waits=True)
        rows = table[points.index_in(poster.points([], waits=True))]
        slot = points.take(post.slot)
        order = np.argsort(slot, kind="stable")
        slots, starts = np.unique(slot[order], return_index=True)
        known = np.zeros((post.semaphore.slots, table.shape[1]), np.uint8)
        known[slots] = np.bitwise_or.reduceat(rows[order], starts, axis=0)
        return known


def _any_in_ranges(rows: Array, lo: Array, hi: Array) -> Array:
    """The union of rows [lo, hi) for many ranges: each is two overlapping runs whose length is a power of two."""
    result = np.zeros((len(lo), rows.shape[1]), np.uint8)
    length = 1
    while True:
        now = (hi - lo >= length) & (hi - lo < 2 * length)
        result[now] = rows[lo[now]] | rows[hi[now] - length]
        if not (hi - lo >= 2 * length).any():
            return result
        rows = rows[:-length] | rows[length:]
        length *= 2


class Tiles:
    """Questions about pairs of tiles of two tasks. Tiles are numbered by `earlier_points` and `later_points`."""

    def __init__(
        self, order: Order, earlier: Task, later: Task, earlier_arrays: Iterable[Array], later_arrays: Iterable[Array]
    ):
        self.order, self.earlier, self.later = order, earlier, later
        self.earlier_points = earlier.points(earlier_arrays, posts=True)
        self.later_points = later.points(later_arrays, waits=True)
        self.direct = [
            (wait, post, order.guaranteed(wait, earlier))
            for wait in later.waits
            for post in earlier.posts
            if post.semaphore == wait.semaphore
        ]

    def ordered(self, d: Array, c: Array) -> Array:
        """For pairs (tile d of the earlier task, tile c of the later one) whether d comes before c."""
        good = np.zeros(len(d), bool)
        for wait, post, sure in self.direct:
            slot = self.earlier_points.take(post.slot)[d]
            lo, hi = self.later_points.take(wait.lo)[c], self.later_points.take(wait.hi)[c]
            good |= (slot >= lo) & (slot < hi) & sure[slot]
        if good.all():
            return good
        table = self.order.between(self.earlier.number, self.later.number)
        if table is None:
            return good
        column = self.earlier_points.index_in(self.earlier.points([], posts=True))[d]
        row = self.later_points.index_in(self.later.points([], waits=True))[c]
        return good | ((table[row, column >> 3] >> (7 - (column & 7))) & 1).astype(bool)
