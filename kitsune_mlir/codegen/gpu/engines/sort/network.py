"""A bitonic network over the items of a block (Batcher, "Sorting networks and their applications", 1968).

A lane keeps neighbouring items in registers. Items that are closer than a warp's are compared there and by shuffles, others
in shared memory. An item is one i64 that is unlike all others (or two words, the second of which is). Where there are more
lanes than threads, a thread is several lanes, one after the other, and items wait in shared memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from kitsune_mlir.codegen.gpu.emit.control_flow import for_, shuffle_xor, while_
from kitsune_mlir.codegen.gpu.emit.memory import load, offset, store
from kitsune_mlir.codegen.gpu.emit.value import Value, i32, select

__all__ = ["Item", "Network"]

Item = tuple[Value, ...]
"""Words, the first of which counts most."""

Read = Callable[[Value], list[Item]]
"""The items that a lane begins with."""
Write = Callable[[Value, list[Item]], None]
"""Takes the items that a lane ends with."""

WARP = 32
WORD_BYTES = 8


@dataclasses.dataclass(frozen=True)
class Network:
    """Sorts rows of `length` items, a power of two.

    Attributes:
        length: items of a row.
        held: neighbouring items of a lane, a power of two up to `length`; lane n has items n * held + (0, 1, ...).
        threads: of the block that work.
        types: of an item's words.
        turns: lanes that a thread is: t, t + threads, ...
    """

    length: int
    held: int
    threads: int
    types: tuple[str, ...]
    turns: int = 1

    @property
    def items(self) -> int:
        """That are sorted at once: of one row or several."""
        return self.threads * self.turns * self.held

    @property
    def reach(self) -> int:
        """Items of a warp."""
        return WARP * self.held

    @property
    def shared_bytes(self) -> int:
        """Shared memory."""
        return self.items * WORD_BYTES * len(self.types) if self.length > self.reach else 0

    def emit(self, read: Read, write: Write, thread: Value, shared: Value, sync: Callable[[], None]) -> None:
        """Sort what lanes read, and have them write it in order; all threads that work call it.

        Args:
            shared: pointer to `shared_bytes`. sync: a barrier over these threads.
        """
        if self.turns == 1:
            write(thread, self._in_registers(read(thread), thread, shared, sync))
            return

        def lanes(work: Callable[[Value], None]) -> None:
            for_(thread, self.threads * self.turns, self.threads, work)

        def begin(lane: Value) -> None:
            self._put_all(shared, lane, self._runs(read(lane), lane))

        def larger(size: Value) -> Value:
            self._apart(size, thread, shared, sync)
            sync()

            def near(lane: Value) -> None:
                items = self._merge(self._get_all(shared, lane), self._place(lane), size, self.reach // 2)
                self._put_all(shared, lane, items)

            lanes(near)
            return size << 1

        sync()  # who was slower has read the rows before
        lanes(begin)
        while_([i32(2 * self.reach)], lambda size: size <= self.length, larger)
        lanes(lambda lane: write(lane, self._get_all(shared, lane)))

    def _place(self, lane: Value) -> Value:
        """Of a lane in its row."""
        return lane % (self.length // self.held)

    def _runs(self, items: list[Item], lane: Value) -> list[Item]:
        """Runs of what a warp reaches, in order."""
        place, found, size = self._place(lane), items, 2
        while size <= min(self.length, self.reach):
            found = self._merge(found, place, size, size // 2)
            size *= 2
        return found

    def _in_registers(self, items: list[Item], thread: Value, shared: Value, sync: Callable[[], None]) -> list[Item]:
        """The items of a lane in order, where each thread is one."""
        place = self._place(thread)
        found = self._runs(items, thread)
        if self.length <= self.reach:
            return found

        def larger(size: Value, *flat: Value) -> list[Value]:
            sync()  # who was slower has read what comes to lie elsewhere
            self._put_all(shared, thread, self._items(flat))
            self._apart(size, thread, shared, sync)
            sync()
            merged = self._merge(self._get_all(shared, thread), place, size, self.reach // 2)
            return [size << 1, *(word for item in merged for word in item)]

        start = [i32(2 * self.reach), *(word for item in found for word in item)]
        return self._items(while_(start, lambda size, *_: size <= self.length, larger)[1:])

    def _items(self, flat: Sequence[Value]) -> list[Item]:
        words = len(self.types)
        return [tuple(flat[start : start + words]) for start in range(0, len(flat), words)]

    def _merge(self, items: list[Item], place: Value, size: Value | int, stride: int) -> list[Item]:
        """The last steps of merging runs of `size`, from a stride on that a warp reaches."""
        found = list(items)
        while stride:
            if stride >= self.held:
                lanes = stride // self.held
                lower = (place & lanes) == 0
                smallest = lower == self._up(place, 0, size)
                for number, item in enumerate(found):
                    other = tuple(shuffle_xor(word, lanes) for word in item)
                    found[number] = _chosen(_before(other, item) == smallest, other, item)
            else:
                for number in range(self.held):
                    if number & stride:
                        continue
                    low, high = found[number], found[number + stride]
                    swap = _before(high, low) == self._up(place, number, size)
                    found[number], found[number + stride] = _chosen(swap, high, low), _chosen(swap, low, high)
            stride //= 2
        return found

    def _up(self, place: Value, number: int, size: Value | int) -> Value:
        """Whether (i1) a run of `size` that an item is in becomes ascending: every second one, and the whole row."""
        if isinstance(size, int) and size < self.held:
            return (place & 0) == (number & size)
        first = place * self.held
        within = first & (self.length - 1)
        return (within & size) == 0 if not isinstance(size, int) else (within & (size if size < self.length else 0)) == 0

    def _apart(self, size: Value, thread: Value, shared: Value, sync: Callable[[], None]) -> None:
        """The first steps of merging runs of `size`: items that are not of one warp."""

        def step(stride: Value) -> Value:
            sync()

            def pair(number: Value) -> None:
                low = number * 2 - (number & (stride - 1))
                a, b = self._get(shared, low), self._get(shared, low + stride)
                up = (low & (self.length - 1) & size) == 0
                swap = _before(b, a) == up
                self._put(shared, low, _chosen(swap, b, a))
                self._put(shared, low + stride, _chosen(swap, a, b))

            for_(thread, self.items // 2, self.threads, pair)
            return stride >> 1

        while_([size >> 1], lambda stride: stride >= self.reach, step)

    def _get_all(self, shared: Value, lane: Value) -> list[Item]:
        return [self._get(shared, lane * self.held + number) for number in range(self.held)]

    def _put_all(self, shared: Value, lane: Value, items: Sequence[Item]) -> None:
        for number, item in enumerate(items):
            self._put(shared, lane * self.held + number, item)

    def _get(self, shared: Value, number: Value) -> Item:
        return tuple(load(self._word(shared, number, word), type) for word, type in enumerate(self.types))

    def _put(self, shared: Value, number: Value, item: Item) -> None:
        for word, value in enumerate(item):
            store(value, self._word(shared, number, word))

    def _word(self, shared: Value, number: Value, word: int) -> Value:
        return offset(shared, (number + word * self.items) * WORD_BYTES)


def _before(a: Item, b: Item) -> Value:
    """Whether an item comes before another one."""
    found = a[-1] < b[-1]
    for one, other in zip(reversed(a[:-1]), reversed(b[:-1]), strict=True):
        found = (one < other) | ((one == other) & found)
    return found


def _chosen(condition: Value, a: Item, b: Item) -> Item:
    return tuple(select(condition, one, other) for one, other in zip(a, b, strict=True))
