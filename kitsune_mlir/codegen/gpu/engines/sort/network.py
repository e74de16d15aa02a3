"""A bitonic network over the items of a block (Batcher, "Sorting networks and their applications", 1968).

A thread keeps neighbouring items in registers. Items that are closer than a warp's are compared there and by shuffles, others
in shared memory. An item is one i64 that is unlike all others (or two words, the second of which is).
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

WARP = 32
WORD_BYTES = 8


@dataclasses.dataclass(frozen=True)
class Network:
    """Sorts rows of `length` items, a power of two.

    Attributes:
        length: items of a row.
        held: neighbouring items of a thread, a power of two up to `length`; thread t has items t * held + (0, 1, ...).
        threads: of the block that work.
        types: of an item's words.
    """

    length: int
    held: int
    threads: int
    types: tuple[str, ...]

    @property
    def reach(self) -> int:
        """Items of a warp."""
        return WARP * self.held

    @property
    def shared_bytes(self) -> int:
        """Shared memory."""
        return self.threads * self.held * WORD_BYTES * len(self.types) if self.length > self.reach else 0

    def emit(self, items: Sequence[Item], thread: Value, shared: Value, sync: Callable[[], None]) -> list[Item]:
        """The items of the thread in order; all threads that work call it.

        Args:
            shared: pointer to `shared_bytes`. sync: a barrier over these threads.
        """
        place = thread % (self.length // self.held)
        found, size = list(items), 2
        while size <= min(self.length, self.reach):
            found = self._merge(found, place, size, size // 2)
            size *= 2
        if self.length <= self.reach:
            return found

        def larger(size: Value, *flat: Value) -> list[Value]:
            sync()  # who was slower has read what comes to lie elsewhere
            for number, item in enumerate(self._items(flat)):
                self._put(shared, thread * self.held + number, item)
            self._apart(size, thread, shared, sync)
            sync()
            back = [self._get(shared, thread * self.held + number) for number in range(self.held)]
            merged = self._merge(back, place, size, self.reach // 2)
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
        pairs = self.held // 2 or 1

        def step(stride: Value) -> Value:
            sync()

            def pair(number: Value) -> None:
                low = number * 2 - (number & (stride - 1))
                a, b = self._get(shared, low), self._get(shared, low + stride)
                up = (low & (self.length - 1) & size) == 0
                swap = _before(b, a) == up
                self._put(shared, low, _chosen(swap, b, a))
                self._put(shared, low + stride, _chosen(swap, a, b))

            for_(thread, self.threads * pairs, self.threads, pair)
            return stride >> 1

        while_([size >> 1], lambda stride: stride >= self.reach, step)

    def _get(self, shared: Value, number: Value) -> Item:
        return tuple(load(self._word(shared, number, word), type) for word, type in enumerate(self.types))

    def _put(self, shared: Value, number: Value, item: Item) -> None:
        for word, value in enumerate(item):
            store(value, self._word(shared, number, word))

    def _word(self, shared: Value, number: Value, word: int) -> Value:
        return offset(shared, (number + word * self.threads * self.held) * WORD_BYTES)


def _before(a: Item, b: Item) -> Value:
    """Whether an item comes before another one."""
    found = a[-1] < b[-1]
    for one, other in zip(reversed(a[:-1]), reversed(b[:-1]), strict=True):
        found = (one < other) | ((one == other) & found)
    return found


def _chosen(condition: Value, a: Item, b: Item) -> Item:
    return tuple(select(condition, one, other) for one, other in zip(a, b, strict=True))
