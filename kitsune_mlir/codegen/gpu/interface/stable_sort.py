"""A block sorts entries by small numbers, keeping the order of equal ones: counting, prefix sums, placing.

Each warp has a part of the entries, one after the other, and counters of its own for every key. It goes over its part twice:
first it counts, then, when the counters of all warps have become places, it puts its entries there. In both, lanes with the
same key find each other (`match.any`), so that entries of one step keep their order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from kitsune_mlir.codegen.gpu.emit.control_flow import (
    count_bits,
    for_,
    if_,
    lane_id,
    same_lanes,
    shuffle,
    sync_block,
    sync_warp,
    warp_id,
)
from kitsune_mlir.codegen.gpu.emit.memory import load, offset, store
from kitsune_mlir.codegen.gpu.emit.value import Value, i32, minimum, select

__all__ = ["StableSort", "prefix_sums"]

STEPS = 4
"""Steps of a warp whose loads are under way together, where nothing else is said."""


@dataclasses.dataclass(frozen=True)
class StableSort:
    """How entries are sorted.

    Attributes:
        keys: keys are in [0, keys).
        threads: of the block, that work; a multiple of 32. All threads of the block call `emit`.
        steps: of a warp whose loads are under way together.
    """

    keys: int
    threads: int
    steps: int = STEPS

    @property
    def warps(self) -> int:
        """That work."""
        return self.threads // 32

    @property
    def shared_bytes(self) -> int:
        """Shared memory that it works in: the starts of the keys (`keys + 1` numbers), sums of the warps, counters."""
        return self.sums + 4 * self.warps + 4 * self.warps * self.keys

    @property
    def sums(self) -> int:
        """Bytes before the sums of the warps."""
        return 4 * (self.keys + 1)

    def emit(
        self,
        shared: Value,
        thread: Value,
        count: Value,
        load_entry: Callable[[Value], Sequence[Value]],
        put: Callable[[Value, Sequence[Value]], None],
    ) -> None:
        """Sort entries 0 to `count`. Shared memory then starts with where the entries of each key start, and their number, i32.

        Args:
            shared: pointer to `shared_bytes` bytes, aligned to 4.
            load_entry: the key (i32; negative: the entry is left out) and whatever else belongs to entry number i32.
            put: stores an entry, as `load_entry` gave it, at a place (i32).
        """
        sort = self._counted(shared, thread, count, load_entry)
        if_(thread < self.threads, lambda: sort.walk(put))
        sync_block()

    def count(self, shared: Value, thread: Value, count: Value, load_entry: Callable[[Value], Sequence[Value]]) -> None:
        """What `emit` leaves in shared memory, and no entry moves."""
        self._counted(shared, thread, count, load_entry)

    def _counted(self, shared: Value, thread: Value, count: Value, load_entry: Callable[[Value], Sequence[Value]]) -> _Sort:
        sort = _Sort(self, shared, thread, count, load_entry)
        total = self.warps * self.keys
        for_(thread, total, self.threads, lambda n: if_(thread < self.threads, lambda: store(i32(0), sort.counter(n))))
        sync_block()
        if_(thread < self.threads, lambda: sort.walk(None))
        sync_block()
        sort.places()
        return sort


@dataclasses.dataclass(frozen=True)
class _Sort:
    """One sort, while its code is emitted."""

    plan: StableSort
    shared: Value
    thread: Value
    count: Value
    load_entry: Callable[[Value], Sequence[Value]]

    def counter(self, number: Value) -> Value:
        """Where counter number i32 is: those of a warp lie together."""
        return offset(self.shared, number * 4 + (self.plan.sums + 4 * self.plan.warps))

    def walk(self, put: Callable[[Value, Sequence[Value]], None] | None) -> None:
        """The warp goes over its part of the entries: it counts their keys or, with `put`, puts them into their places."""
        lane, warp = lane_id(self.thread), warp_id(self.thread)
        steps = (self.count + (32 * self.plan.warps - 1)) // (32 * self.plan.warps)
        start = warp * steps * 32
        end = minimum(start + steps * 32, self.count)
        lower = (i32(1) << lane) - 1

        def some(first: Value) -> None:
            entries = []
            for number in range(self.plan.steps):
                at = first + (32 * number) + lane
                inside = at < end
                key, *rest = self.load_entry(select(inside, at, 0))
                entries.append([select(inside, key, -1), *rest])
            for entry in entries:
                self._step(entry, warp, lower, put)

        # No entry is read where there is none: then no step is made either.
        for_(start, end, 32 * self.plan.steps, some)

    def _step(
        self, entry: Sequence[Value], warp: Value, lower: Value, put: Callable[[Value, Sequence[Value]], None] | None
    ) -> None:
        """One entry a lane."""
        key, *_ = entry
        same = same_lanes(key)
        before = count_bits(same & lower)
        counter = self.counter(warp * self.plan.keys + select(key < 0, 0, key))
        counted = load(counter, "i32")
        sync_warp()
        if_((key >= 0) & (before == 0), lambda: store(counted + count_bits(same), counter))
        if put is not None:
            if_(key >= 0, lambda: put(counted + before, entry))
        sync_warp()

    def places(self) -> None:
        """Turn counts into places: entries of smaller keys come first, of equal ones those of earlier warps."""
        keys, warps = self.plan.keys, self.plan.warps
        each = -(-keys // self.plan.threads)
        first = minimum(self.thread * each, keys)
        last = minimum(first + each, keys)

        def add(key: Value, sum: Value) -> Value:
            for warp in range(warps):
                sum = sum + load(self.counter(key + warp * keys), "i32")
            return sum

        (mine,) = for_(first, last, 1, add, [i32(0)])
        before, total = prefix_sums(mine, self.thread, offset(self.shared, self.plan.sums), self.plan.threads)

        def place(key: Value, next: Value) -> Value:
            store(next, offset(self.shared, key * 4))
            for warp in range(warps):
                counter = self.counter(key + warp * keys)
                count = load(counter, "i32")
                store(next, counter)
                next = next + count
            return next

        for_(first, last, 1, place, [before])
        if_(self.thread == 0, lambda: store(total, offset(self.shared, 4 * keys)))
        sync_block()


def prefix_sums(value: Value, thread: Value, shared: Value, threads: int) -> tuple[Value, Value]:
    """The sum of `value` (i32) over the threads before the calling one, and over all of `threads`.

    All threads of the block call it; those beyond `threads` get numbers of no meaning.

    Args:
        shared: pointer to 4 bytes for each warp of `threads`.
    """
    lane = lane_id(thread)
    sum = value
    for distance in (1, 2, 4, 8, 16):
        other = shuffle(sum, (lane - distance) & 31)
        sum = sum + select(lane < distance, 0, other)
    warp = thread // 32
    if_((lane == 31) & (thread < threads), lambda: store(sum, offset(shared, warp * 4)))
    sync_block()
    before, total = sum - value, i32(0)
    for number in range(threads // 32):
        other = load(offset(shared, 4 * number), "i32")
        before = before + select(warp > number, other, 0)
        total = total + other
    sync_block()
    return before, total
