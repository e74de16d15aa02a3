"""Tile sizes from a number of points or of tiles: what the choices for every target start from."""

import math

__all__ = ["contiguous", "even", "fit", "spread"]

LINE = 256
"""Elements of the last dimension that a tile keeps: 32 lanes times a 16-byte vector of bf16, whole lines for whole warps."""


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


def contiguous(sizes: list[int], elements: int, wanted: int, lines: bool = True) -> list[int]:
    """Equal tiles of about `elements` points, `wanted` of them if there are so many; with `lines`, none of parts of a line."""
    if not sizes:
        return []
    tile = fit(sizes, elements)
    least = [1] * len(sizes)
    if lines:
        least[-1] = min(tile[-1], LINE)
    return even(sizes, spread(sizes, tile, wanted, least))
