"""Reductions over the threads that share rows: shuffles inside warps, shared memory and a barrier between warps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Iterable, Sequence, Set

from kitsune_mlir.codegen.gpu.emit.control_flow import if_, shuffle_xor
from kitsune_mlir.codegen.gpu.emit.memory import byte_count, load, offset, store
from kitsune_mlir.codegen.gpu.emit.reduce import combine, identity
from kitsune_mlir.codegen.gpu.emit.value import Value, cast, constant, element_bits, i32, maximum, minimum, select
from kitsune_mlir.codegen.gpu.emit.vectors import load_elements

__all__ = ["ITEM_BYTES", "Combiner", "Partial", "Sharing", "loaded", "stored"]

ITEM_BYTES = 8
"""Shared memory of one value that a warp hands to others."""

CHAINS, CHAINED = 4, 32
"""Sums that a thread makes side by side: as many as an addition takes cycles; the most elements of such a sum."""

Partial = tuple[Value, ...]
"""What a thread knows of one result: one value, or an extreme and its index."""


@dataclasses.dataclass(frozen=True)
class Combiner:
    """How two partial results become one: a kind of `reduce.KINDS`, or "argmax" and "argmin"."""

    kind: str

    @property
    def extreme(self) -> str | None:
        return self.kind.removeprefix("arg") if self.kind.startswith("arg") else None

    def __call__(self, a: Partial, b: Partial) -> Partial:
        extreme = self.extreme
        if extreme is None:
            return (combine(self.kind, a[0], b[0]),)
        better = b[0] > a[0] if extreme == "max" else b[0] < a[0]
        # Of equal values the one that comes first counts.
        taken = better | ((b[0] == a[0]) & (b[1] < a[1]))
        value = maximum(a[0], b[0]) if extreme == "max" else minimum(a[0], b[0])
        return value, select(taken, b[1], a[1])

    def neutral(self, types: Sequence[str]) -> Partial:
        """What changes nothing; `types` of the partial's values."""
        first = identity(self.extreme or self.kind, types[0])
        return (first, constant(0, types[1])) if self.extreme else (first,)

    def tree(self, parts: Sequence[Partial]) -> Partial:
        """All of some partial results: short chains of dependences, small rounding errors.

        Sums of many products have `CHAINS` chains side by side, which takes one fma a product; what else there is, is
        combined pairwise, and so are more than `CHAINED`, for which fma were seen to take more registers.
        """
        level = list(parts)
        if self.kind == "add" and 2 * CHAINS < len(level) <= CHAINED:
            chains = level[:CHAINS]
            for number, part in enumerate(level[CHAINS:]):
                chains[number % CHAINS] = self(chains[number % CHAINS], part)
            level = chains
        while len(level) > 1:
            pairs = [self(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
            level = pairs + level[len(level) - len(level) % 2 :]
        return level[0]


@dataclasses.dataclass(frozen=True)
class Sharing:
    """Who shares rows.

    Attributes:
        masks: xor masks that reach the lanes of the warp that hold parts of the same rows.
        parts: warps, or groups of warps, that hold parts of the same rows.
        part: which of them the thread is in.
        place: number of the thread's rows among those of its part; `places` of them.
        writer: whether the thread writes its warp's partial result (i1), or None if all do.
        lane: of the thread, where all lanes of a warp hold parts of the same rows; else None. Two results are then reduced side
            by side, one by each half of the warp, and what warps hand over lies so that one access reads it.
    """

    masks: tuple[int, ...]
    parts: int
    part: Value
    place: Value
    places: int
    writer: Value | None
    lane: Value | None = None

    def bytes(self, items: int) -> int:
        """Shared memory for `items` values a thread."""
        return items * self.parts * self.places * ITEM_BYTES if self.parts > 1 else 0

    def reduce(
        self, combiners: Sequence[Combiner], partials: Sequence[Partial], scratch: Value, sync: Callable[[], None]
    ) -> list[Partial]:
        """Combine each partial result over all threads that share its row; all of them get it.

        Args:
            scratch: shared memory of `bytes(number of values)`, used if there are several parts. The caller makes sure that
                all threads have read it before it is used again.
            sync: barrier over all threads that hold parts.
        """
        firsts = self._pairs(combiners, partials)
        reduced = self._in_warps(combiners, partials, firsts)
        if self.parts == 1:
            return reduced
        numbers = self._publish(reduced, scratch, firsts)
        sync()
        every = zip(combiners, numbers, reduced, strict=True)
        return [self._combined(combiner, scratch, own, partial) for combiner, own, partial in every]

    def reduce_single(
        self,
        combiners: Sequence[Combiner],
        partials: Sequence[Partial],
        scratch: Value,
        sync: Callable[[], None],
        element: Value,
        width: int,
    ) -> list[Partial]:
        """As `reduce` where there are several parts and no lanes, of every `width` results that follow each other the calling
        thread's `element` alone."""
        reduced = self._in_warps(combiners, partials, set())
        numbers = self._publish(reduced, scratch, set())
        sync()
        results = []
        for first in range(0, len(reduced), width):
            partial, start = reduced[first], numbers[first].start
            own = [element * len(partial) + (start + part) for part in range(len(partial))]
            results.append(self._combined(combiners[first], scratch, own, partial))
        return results

    def _in_warps(self, combiners: Sequence[Combiner], partials: Sequence[Partial], firsts: Container[int]) -> list[Partial]:
        """Each partial result over the threads of a warp that share its row; `firsts`: as of `_pairs`."""
        reduced: list[Partial] = []
        for number, (combiner, partial) in enumerate(zip(combiners, partials, strict=True)):
            if number in firsts:
                reduced += self._two(combiner, partial[0], partials[number + 1][0])
            elif number - 1 not in firsts:
                for mask in self.masks:
                    partial = combiner(partial, tuple(shuffle_xor(value, mask) for value in partial))
                reduced.append(partial)
        return reduced

    def _publish(self, reduced: Sequence[Partial], scratch: Value, firsts: Container[int]) -> list[range]:
        """Write the warp's results to shared memory; the numbers of the values of each."""
        numbers, count = [], 0
        for partial in reduced:
            numbers.append(range(count, count + len(partial)))
            count += len(partial)

        def publish() -> None:
            for position, (own, partial) in enumerate(zip(numbers, reduced, strict=True)):
                if position - 1 in firsts:
                    continue
                for number, value in zip(own, partial, strict=True):
                    if position in firsts and self.lane is not None:
                        number = self.lane // 16 + number
                    store(stored(value), self._at(scratch, number, self.part, value))

        if firsts and self.lane is not None:
            if_((self.lane & 15) == 0, publish)
        elif self.writer is None:
            publish()
        else:
            if_(self.writer, publish)
        return numbers

    def _combined(self, combiner: Combiner, scratch: Value, own: Iterable[Value | int], partial: Partial) -> Partial:
        """What all parts together have of a result, whose values have these numbers."""
        columns = [self._parts_of(scratch, number, value) for number, value in zip(own, partial, strict=True)]
        return combiner.tree(list(zip(*columns, strict=True)))

    def _pairs(self, combiners: Sequence[Combiner], partials: Sequence[Partial]) -> Set[int]:
        """First numbers of neighbouring results that halves of a warp can reduce side by side; all results, or none."""
        both = list(zip(combiners, partials, strict=True))
        words = all(combiner.extreme is None and element_bits(partial[0].type) == 32 for combiner, partial in both)
        firsts = range(0, len(combiners), 2)
        if self.lane is None or len(self.masks) < 5 or not words or len(combiners) % 2:
            return set()
        return set(firsts) if all(combiners[first] == combiners[first + 1] for first in firsts) else set()

    def _two(self, combiner: Combiner, first: Value, second: Value) -> list[Partial]:
        """Two results combined over a warp, for all lanes.

        With several parts, the lower half of the warp has the first and the upper half the second: each writes its own.
        """
        assert self.lane is not None
        upper = self.lane >= 16
        (value,) = combiner((select(upper, second, first),), (shuffle_xor(select(upper, first, second), 16),))
        for mask in (1, 2, 4, 8):
            (value,) = combiner((value,), (shuffle_xor(value, mask),))
        if self.parts > 1:
            return [(value,), (value,)]
        other = shuffle_xor(value, 16)
        return [(select(upper, other, value),), (select(upper, value, other),)]

    def _at(self, scratch: Value, number: Value | int, part: Value | int, value: Value) -> Value:
        """Where a part of a result is."""
        if self.lane is None:
            return offset(scratch, ((number * self.parts + part) * self.places + self.place) * ITEM_BYTES)
        row = (number * self.places + self.place) * (self.parts * ITEM_BYTES)
        return offset(scratch, row + i32(part) * byte_count(stored_type(value)))

    def _parts_of(self, scratch: Value, number: Value | int, value: Value) -> list[Value]:
        """All parts of a result."""
        if self.lane is None or str(value.type) == "i1":
            return [loaded(self._at(scratch, number, part, value), value) for part in range(self.parts)]
        dtype = str(value.type)
        return load_elements(self._at(scratch, number, 0, value), dtype, self.parts, align=2 * ITEM_BYTES)


def stored(value: Value) -> Value:
    """What is in memory for a value."""
    return cast(value, "i8", signed=False) if str(value.type) == "i1" else value


def stored_type(value: Value) -> str:
    """The type in memory of a value."""
    return "i8" if str(value.type) == "i1" else str(value.type)


def loaded(place: Value, like: Value) -> Value:
    """The value at a place that `stored` made of one like `like`."""
    if str(like.type) == "i1":
        return load(place, "i8") != 0
    return load(place, like.type)
