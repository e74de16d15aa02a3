"""Stages that depend on nothing, behind a stage with few tiles: one wave of tiles, on the multiprocessors that it leaves idle.

Blocks take tiles of all stages in turn, so the tiles after a stage's last one go to the blocks that have none of it. More tiles
than there are such blocks would come before the next stage on blocks that are still busy, and delay it.
"""

from torch_mlir import ir

from kitsune_mlir.dialects.edges import Grid, edge_of, grid_of
from kitsune_mlir.dialects.iteration import Space
from kitsune_mlir.dialects.stage_graph import inputs_of
from kitsune_mlir.machine.target import Target

LEAST_SHARE = 4  # of the multiprocessors, one in so many has to be idle


def tile_for_idle(
    stage: ir.Operation, space: Space, tile: list[int], before: ir.Operation | None, target: Target
) -> list[int] | None:
    """Tile sizes of a `simt` stage that needs no other one, where the stage `before` leaves multiprocessors idle; else None.

    `tile` is its own choice, which stands where it has fewer tiles.
    """
    if before is None or not target.is_gpu or len(tile) != 1:
        return None
    if any(edge_of(stage, space, value) is not None for value in inputs_of(stage)):
        return None
    idle = -grid_of(before).tasks % target.workers
    if idle < target.workers // LEAST_SHARE or Grid(space, tile).tasks <= idle:
        return None
    return [-(-space.dims[0].size // idle)]
