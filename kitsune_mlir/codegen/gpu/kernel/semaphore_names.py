"""What each counter of a kernel counts, in words: for the report of a debug build in which a wait gives up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kitsune_mlir.codegen.gpu.interface.plan import Plan
from kitsune_mlir.codegen.gpu.interface.split import PartialsSlot
from kitsune_mlir.dialects.tile_indices import Points, TileIndices
from kitsune_mlir.dialects.tile_reader import ProgramView

__all__ = ["counter_names"]

_SHOWN = 4  # tiles of a counter that are listed


def counter_names(
    program: ProgramView, plans: Sequence[Plan], places: Sequence[PartialsSlot | None], counters: int
) -> tuple[str, ...]:
    """For each counter the tiles that post to it, "tile (2, 1) of stage 'relu'", or what the pieces of a tile count there.

    Tiles in pieces are named by their place among the tiles of the stage in the order in which they are done.
    """
    posters: list[dict[str, list[str]]] = [{} for _ in range(counters)]
    names = ["a post that no stage makes"] * counters
    for task in program.tasks:
        values, every = TileIndices(task.grid, task.coordinates), Points.every(task.grid)
        for post in task.posts:
            for slot in range(post.semaphore.first, post.semaphore.first + post.semaphore.slots):
                names[slot] = f"a post that no tile of stage '{task.name}' makes"
            slots = values.of(post.slot)
            if slots is not None:
                for tile, slot in enumerate(every.take(slots).tolist()):
                    coordinates = ", ".join(map(str, map(int, np.unravel_index(tile, task.grid))))
                    posters[post.semaphore.first + slot].setdefault(task.name, []).append(f"({coordinates})")
    for counter, posted in enumerate(posters):
        if posted:
            names[counter] = "; ".join(_tiles(name, tiles) for name, tiles in posted.items())
    for plan, place in zip(plans, places, strict=True):
        if plan.split is not None and place is not None and isinstance(place.arrivals, int) and isinstance(place.read, int):
            each = max(1, plan.split.arrivals // (plan.task.tiles - plan.split.whole))
            for counter in range(place.arrivals, place.read):
                tile = plan.split.whole + (counter - place.arrivals) // each
                names[counter] = f"the {plan.split.pieces} pieces of tile {tile} of stage '{plan.task.name}'"
            names[place.read] = f"partial results of stage '{plan.task.name}' to be read"
    return tuple(names)


def _tiles(stage: str, tiles: Sequence[str]) -> str:
    if len(tiles) == 1:
        return f"tile {tiles[0]} of stage '{stage}'"
    listed = ", ".join(tiles) if len(tiles) <= _SHOWN else f"{tiles[0]} to {tiles[-1]}"
    return f"{len(tiles)} tiles of stage '{stage}': {listed}"
