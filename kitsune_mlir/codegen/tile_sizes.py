"""Tile sizes from a number of points or of tiles: what the choices for every target start from."""

import math

__all__ = ["even", "fit", "spread"]


def fit(sizes: list[int], elements: int) -> list[int]:
    """Tile sizes that hold about `elements` points, filled from the last dimension so that tiles are contiguous."""
    tile = [1] * len(sizes)
    left = max(1, elements)
    for i in reversed(range(len(sizes))):
        tile[i] = min(sizes[i], left)
        left = max(1, left // tile[i])
    return tile


def spread(sizes: list[int], tile: list[int], wanted: int, least: list[int]) -> list[int]:
    """Halve the leading tile sizes until there are `wanted` tiles, none below `least`."""
    tile = list(tile)
    for i in range(len(sizes)):
        while math.prod(-(-s // t) for s, t in zip(sizes, tile, strict=True)) < wanted and tile[i] // 2 >= least[i]:
            tile[i] = -(-tile[i] // 2)
    return tile


def even(sizes: list[int], tile: list[int], unit: int = 8) -> list[int]:
    """Equal tiles: as many as before, each as small as that allows (the last dimension in units), so that the last one
    overlaps little."""
    equal = [-(-s // -(-s // t)) for s, t in zip(sizes, tile, strict=True)]
    equal[-1] = min(sizes[-1], -(-equal[-1] // unit) * unit)
    return equal
