"""Which sizes to compile for, so that few programs serve all that come."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

__all__ = ["GPU_ROWS", "Buckets"]

FEW = 3
"""Programs of one graph up to which another one is compiled for much smaller sizes than those that there are."""
TILE = 64
"""Rows that a tile of a product has, or more: with fewer, a program for as many is about as fast."""
GPU_ROWS = 128
"""As TILE, of the smallest program on a GPU: 64 rows in f32 take twice as long there, without tensor cores, as 128."""
FEW_ROWS = 8
"""As TILE, where programs leave out what is behind valid rows: one is for few rows, whose tiles are small, one for all."""
NEARLY = 0.9
"""Of a size: where other sizes grow, one that is nearly reached grows too."""
LARGEST = 1 << 20
"""Sizes that cost nothing are not made larger than this."""
LITTLE = 1.25
"""By how much a program for larger sizes may be slower, and be compiled in their place."""
MANY_ROWS = 512
"""Rows of a product from which on time grows with them on a GPU."""
SHARE, MOST_VARIANTS = 0.7, 6
"""Of the rows of such a program those of the next variant, or fewer, so that so many reach down to MANY_ROWS: tiles of many
rows take as long for one."""
FEWEST_ROWS = (128, 64, 32, 16, 8)
"""Rows of the variants of other programs: f32 products of 128 rows take 2.5 times as long as those of 3."""
SLACK = 1.3
"""How many more rows a variant has than a call showed beside its most ones: 4 edges a node in one are 3 in another."""
MOST_BYTES = 1 << 24
"""Of inputs and results together, up to which sizes grow where programs leave out what is behind valid rows: results are
allocated as long as they may be, and memory of more than 32 MiB is given back to the system after each call on the host."""


class Buckets:
    """The sizes that programs of one graph have.

    Args:
        weights: of each symbol, how many rows of a product one row is, such as the tokens of a sample.
        bounds: of symbols that have one, the largest value.
        growth: how much larger the next larger size is.
        sizes: to be chosen from, in place of those that grow.
        cost: how long a program for such sizes takes.
        idle: how long it takes to leave out all of such sizes, where a program does that; else it computes them.
        given: bytes of inputs and results of such sizes.
        least: rows of a product that the smallest program is for, at least.
        varied: whether programs have variants for fewer rows.
    """

    def __init__(
        self,
        weights: Mapping[str, int],
        bounds: Mapping[str, int],
        growth: float,
        sizes: Sequence[int] = (),
        cost: Callable[[Mapping[str, int]], float] | None = None,
        idle: Callable[[Mapping[str, int]], float] | None = None,
        given: Callable[[Mapping[str, int]], int] = lambda sizes: 0,
        least: int = 0,
        varied: bool = False,
    ):
        self._weights, self._bounds, self._growth, self._sizes = weights, bounds, growth, sorted(sizes)
        self._cost, self._idle, self._given, self._least = cost, idle, given, least
        self.varied = varied and not sizes
        self.known: list[dict[str, int]] = []

    def variants(self, sizes: Mapping[str, int], values: Mapping[str, int]) -> list[dict[str, int]]:
        """Smaller sizes, falling, that are compiled with a program for these.

        Args:
            values: of the call that it is compiled for: sizes keep about its proportions.
        """
        if not self.varied:
            return []
        rows, shown = self._rows(sizes), self._rows(values)
        most = max(values, key=lambda name: values[name] * self._weights.get(name, 1))
        share = min(SHARE, (MANY_ROWS / rows) ** (1 / MOST_VARIANTS))
        many = [n for k in range(1, MOST_VARIANTS + 1) if (n := rows * share**k) > MANY_ROWS]
        distinct: dict[tuple[int, ...], dict[str, int]] = {}
        for fewer in many or [n for n in FEWEST_ROWS if n < rows]:
            each = {name: n * fewer / shown * (1 if name == most else SLACK) for name, n in values.items()}
            found = {name: min(size, max(2, math.ceil(each[name] - 1e-6))) for name, size in sizes.items()}
            if found != dict(sizes):
                distinct[tuple(found.values())] = found
        return list(distinct.values())

    def _rows(self, sizes: Mapping[str, int]) -> int:
        """Rows of a product, at most."""
        return max(size * self._weights.get(name, 1) for name, size in sizes.items())

    def find(self, values: Mapping[str, int]) -> dict[str, int]:
        """Sizes that hold these values: those of a program that there is, or of one to be compiled."""
        wanted = {name: self._size(name, value) for name, value in values.items()}
        fitting = [known for known in self.known if all(known[name] >= value for name, value in values.items())]
        best = min(fitting, key=lambda known: math.prod(known.values()), default=None)
        if best is not None and (len(self.known) >= FEW or self._is_near(best, wanted)):
            return best
        if best is None and self.known:
            held = {name: max(known[name] for known in self.known) for name in wanted}
            near = [name for name, n in values.items() if NEARLY * held[name] <= n <= held[name]]
            wanted |= {name: self._next(name, held[name]) for name in near}
        wanted = self._cheap(wanted)
        if len(self.known) + 1 >= FEW and len(values) > 1:  # one that holds whatever has come yet
            wanted = {name: max([size, *(known[name] for known in self.known)]) for name, size in wanted.items()}
        if wanted not in self.known:
            self.known.append(wanted)
        return wanted

    def _is_near(self, known: Mapping[str, int], wanted: Mapping[str, int]) -> bool:
        """Whether a program for larger sizes is about as fast as one for those that are wanted, as far as these are smaller."""
        wanted = {name: min(known[name], size) for name, size in wanted.items()}
        if dict(known) == wanted:
            return True
        if self._cost is None or self._sizes or self.varied:  # variants of a smaller program have smaller tiles
            return False
        return self._price(known, wanted) <= LITTLE * self._cost(wanted)

    def _price(self, sizes: Mapping[str, int], wanted: Mapping[str, int]) -> float:
        """How long a program for some sizes takes for those that are wanted: all of it, or a tile at least."""
        assert self._cost is not None
        if self._idle is None:
            return self._cost(sizes)
        tiles = {name: min(size, max(wanted[name], self._tile(name))) for name, size in sizes.items()}
        return self._cost(tiles) + self._idle(sizes)

    def _tile(self, name: str, rows: int = TILE) -> int:
        return math.ceil(rows / self._weights.get(name, 1))

    def _cheap(self, wanted: dict[str, int]) -> dict[str, int]:
        """The largest sizes that cost little more than these."""
        if self._cost is None or self._sizes:
            return wanted
        most, found = LITTLE * self._cost(wanted), wanted
        for names in dict.fromkeys((tuple(wanted), *((name,) for name in wanted))):
            while True:
                larger = {**found, **{name: self._next(name, found[name]) for name in names}}
                if larger == found or self._price(larger, wanted) > most:
                    break
                if self.varied and self._rows(larger) > MANY_ROWS >= self._rows(wanted):  # those have variants for few rows
                    break
                if self._idle is not None and self._given(larger) > MOST_BYTES:
                    break
                found = larger
        return found

    def _next(self, name: str, size: int) -> int:
        """The size behind this one; itself if there is none."""
        return min(self._size(name, size + 1), max(size, self._bounds.get(name, LARGEST)))

    def _size(self, name: str, value: int) -> int:
        size = next((size for size in self._sizes if size >= value), self._sizes[-1] if self._sizes else 0)
        size = size or max(2, self._tile(name, TILE if self._idle is None else FEW_ROWS))
        while size < value:
            size = math.ceil(size * self._growth)
        size = size if self._sizes else max(size, self._tile(name, self._least))
        bound = self._bounds.get(name)
        return size if bound is None or bound < value else min(size, bound)
