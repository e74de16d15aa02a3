"""Which boxes of two regions share bytes, for all pairs of tiles at once.

The boxes of a region differ only in where they start. So whether a box of one region meets one of another depends on the
distance of their starts alone, and the distances at which they do are intervals that follow from the strides: nothing is
decided pair by pair. Boxes that end with the shape (see `Region.owned`) are smaller; they are groups of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from kitsune_mlir.dialects.tile_indices import Array, Points
from kitsune_mlir.dialects.tile_regions import Region

__all__ = ["pairs_that_touch", "which_meet"]

_CHUNK = 1 << 21  # pairs of tiles looked at together: some 100 MB


def pairs_that_touch(first: Region, at_first: Points, second: Region, at_second: Points) -> Iterator[tuple[Array, Array]]:
    """Pairs of points (i of `first`, j of `second`) whose boxes overlap, in chunks; i grows from chunk to chunk.

    Exact where both see one buffer as one shape. Else boxes count as all bytes from their first to their last.
    """
    lines = [(first.start, first.length, second.start, second.length)]
    if _same(first, second):
        lines = list(zip(first.offsets, first.sizes, second.offsets, second.sizes, strict=True)) or lines
    taken = [(at_first.take(a), n, at_second.take(b), m) for a, n, b, m in lines]
    sweeps = [_Sweep(*line) for line in taken]
    best = min(sweeps, key=lambda s: s.total)
    for i, j in best.pairs():
        keep = np.ones(len(i), bool)
        for (a, n, b, m), sweep in zip(taken, sweeps, strict=True):
            if sweep is not best:
                keep &= (a[i] < b[j] + m) & (b[j] < a[i] + n)
        if keep.any():
            yield i[keep], j[keep]


class _Sweep:
    """Overlapping pairs of the intervals [a, a + n) and [b, b + m): with b sorted, each a meets neighbours only."""

    def __init__(self, a: Array, n: int, b: Array, m: int):
        self.order = np.argsort(b, kind="stable")
        ordered = b[self.order]
        self.low = np.searchsorted(ordered, a - m, side="right")
        self.counts = np.searchsorted(ordered, a + n, side="left") - self.low
        self.total = int(self.counts.sum())

    def pairs(self) -> Iterator[tuple[Array, Array]]:
        """All pairs of indices, in chunks."""
        ends = np.cumsum(self.counts)
        start = 0
        while start < len(ends):
            done = ends[start - 1] if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, done + _CHUNK, side="right")))
            counts = self.counts[start:stop]
            i = np.repeat(np.arange(start, stop), counts)
            within = np.arange(len(i)) - np.repeat(ends[start:stop] - counts - done, counts)
            yield i, self.order[self.low[i] + within]
            start = stop


def which_meet(first: Region, i: Array, at_first: Points, second: Region, j: Array, at_second: Points) -> Array:
    """Of pairs that `pairs_that_touch` gave, those whose boxes share a byte: a flag for each."""
    if _same(first, second):
        return np.ones(len(i), bool)
    distance = at_second.take(second.start)[j] - at_first.take(first.start)[i]
    meet = np.zeros(len(i), bool)
    a, b = _clipped(first, i, at_first), _clipped(second, j, at_second)
    groups, group = np.unique(np.concatenate([a, b], axis=1), axis=0, return_inverse=True)
    for number, sizes in enumerate(groups.tolist()):
        low, high = _distances(first, sizes[: a.shape[1]], second, sizes[a.shape[1] :])
        mine = np.flatnonzero(group.ravel() == number)
        at = np.searchsorted(low, distance[mine], side="right") - 1
        meet[mine] = (at >= 0) & (distance[mine] < high[np.maximum(at, 0)]) if len(low) else False
    return meet


def _same(first: Region, second: Region) -> bool:
    return first.buffer is second.buffer and first.shape == second.shape


def _clipped(region: Region, i: Array, points: Points) -> Array:
    """The sizes of boxes as far as they are inside the shape (see `Region.owned`): a row a box."""
    ends = zip(region.sizes, region.shape, region.offsets, strict=True)
    sizes = [np.minimum(n, extent - points.take(offset)[i]) for n, extent, offset in ends]
    return np.stack(sizes, axis=1) if sizes else np.zeros((len(i), 0), np.int64)


def _distances(first: Region, sizes: Sequence[int], second: Region, others: Sequence[int]) -> tuple[Array, Array]:
    """The distances from the start of a box of `first` to that of a box of `second` at which they share a byte.

    Disjoint intervals [low, high), sorted. An element of the one box is i elements along each dimension from its start, one of
    the other j: together they are at one place where the starts are the sum of (i - j) strides apart, or a part of an element.
    Dimensions are taken from the smallest stride on, so that intervals grow together as early as they can.
    """
    if any(size <= 0 for size in (*sizes, *others)):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    steps: dict[int, tuple[int, int]] = {}  # by stride, how often it can be added and taken away
    for stride, size in zip(first.strides, sizes, strict=True):
        more, less = steps.get(stride, (0, 0))
        steps[stride] = more + size - 1, less
    for stride, size in zip(second.strides, others, strict=True):
        more, less = steps.get(stride, (0, 0))
        steps[stride] = more, less + size - 1
    low, high = np.array([1 - second.element]), np.array([first.element])
    for stride, (more, less) in sorted(steps.items()):
        moves = np.arange(-less, more + 1)[:, None] * stride
        low, high = _merged((low + moves).ravel(), (high + moves).ravel())
    return low, high


def _merged(low: Array, high: Array) -> tuple[Array, Array]:
    """Intervals [low, high) of one length as disjoint ones, sorted."""
    order = np.argsort(low, kind="stable")
    low, high = low[order], np.maximum.accumulate(high[order])
    first = np.concatenate([[True], low[1:] > high[:-1]])
    return low[first], high[np.concatenate([first[1:], [True]])]
