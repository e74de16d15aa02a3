"""Tiles of stages whose elements threads make one by one, whatever they hold."""

from __future__ import annotations

from kitsune_mlir.codegen.tile_sizes import even, fit, spread
from kitsune_mlir.dialects.iteration import Space
from kitsune_mlir.machine.target import Target

__all__ = ["loop_tile"]

TILE_ELEMENTS = 8192
"""32 elements a thread of a block of 256: enough loads in flight for a multiprocessor."""


def loop_tile(space: Space, machine: Target) -> list[int]:
    """Sizes of the shared dimensions: contiguous tiles, two for each multiprocessor, in whole lines of memory."""
    sizes = [d.size for d in space.dims]
    if not sizes:
        return []
    tile = fit(sizes, TILE_ELEMENTS)
    least = [1] * len(sizes)
    least[-1] = min(tile[-1], 256)  # 32 lanes times a 16-byte vector of bf16: whole warps read whole lines
    return even(sizes, spread(sizes, tile, 2 * machine.workers, least))
