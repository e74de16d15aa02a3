"""Which tile sizes of a stage are worth a measurement."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

__all__ = ["candidates"]

LIMIT = 12
"""Tiles of one stage that are measured at most, the planner's own among them."""


def candidates(sizes: Sequence[int], tile: Sequence[int], limit: int = LIMIT) -> list[tuple[int, ...]]:
    """The planner's tile, then those with dimensions halved and doubled, nearest first.

    Args:
        sizes: of the dimensions that the stage is tiled along.
        tile: what the planner chose.
    """
    chosen = tuple(tile)
    found: dict[tuple[int, ...], float] = {}
    for steps in itertools.product((0, -1, 1, -2, 2), repeat=len(chosen)):
        made = tuple(min(size, max(1, round(t * 2.0**step))) for size, t, step in zip(sizes, chosen, steps, strict=True))
        distance = sum(abs(step) for step in steps) + 0.1 * abs(sum(steps))  # one up, one down keeps the area
        found[made] = min(distance, found.get(made, math.inf))
    found.pop(chosen, None)
    return [chosen, *sorted(found, key=lambda t: found[t])][:limit]
