"""Reductions over the threads that share rows: shuffles inside warps, shared memory and a barrier between warps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from kitsune_mlir.codegen.gpu.builder import if_, shuffle_xor
from kitsune_mlir.codegen.gpu.memory import load, offset, store
from kitsune_mlir.codegen.gpu.reduce import combine, identity
from kitsune_mlir.codegen.gpu.value import Value, cast, constant, maximum, minimum, select

__all__ = ["ITEM_BYTES", "Combiner", "Partial", "Sharing", "loaded", "stored"]

ITEM_BYTES = 8
"""Shared memory of one value that a warp hands to others."""

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
        """All of some partial results, combined pairwise: short chains of dependences, small rounding errors."""
        level = list(parts)
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
    """

    masks: tuple[int, ...]
    parts: int
    part: Value
    place: Value
    places: int
    writer: Value | None

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
        reduced = []
        for combiner, partial in zip(combiners, partials, strict=True):
            for mask in self.masks:
                partial = combiner(partial, tuple(shuffle_xor(value, mask) for value in partial))
            reduced.append(partial)
        if self.parts == 1:
            return reduced
        numbers, count = [], 0
        for partial in reduced:
            numbers.append(range(count, count + len(partial)))
            count += len(partial)

        def at(number: int, part: Value | int) -> Value:
            return offset(scratch, ((number * self.parts + part) * self.places + self.place) * ITEM_BYTES)

        def publish() -> None:
            for own, partial in zip(numbers, reduced, strict=True):
                for number, value in zip(own, partial, strict=True):
                    store(stored(value), at(number, self.part))

        if self.writer is None:
            publish()
        else:
            if_(self.writer, publish)
        sync()
        results = []
        for combiner, own, partial in zip(combiners, numbers, reduced, strict=True):
            parts = [
                tuple(loaded(at(number, part), value) for number, value in zip(own, partial, strict=True))
                for part in range(self.parts)
            ]
            results.append(combiner.tree(parts))
        return results


def stored(value: Value) -> Value:
    """What is in memory for a value."""
    return cast(value, "i8", signed=False) if str(value.type) == "i1" else value


def loaded(place: Value, like: Value) -> Value:
    """The value at a place that `stored` made of one like `like`."""
    if str(like.type) == "i1":
        return load(place, "i8") != 0
    return load(place, like.type)
