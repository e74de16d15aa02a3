"""Stages that depend on nothing, behind a stage with few tiles: one wave of tiles, on the multiprocessors that it leaves idle.

Blocks take tiles of all stages in turn, so the tiles after a stage's last one go to the blocks that have none of it. More tiles
than there are such blocks would come before the next stage on blocks that are still busy, and delay it. What moves much is
work for all multiprocessors: the few would be at it when the others are long done.
"""

from torch_mlir import ir

from kitsune_mlir.dialects.access import is_tensor
from kitsune_mlir.dialects.edges import Grid, edge_of, grid_of
from kitsune_mlir.dialects.iteration import Space
from kitsune_mlir.dialects.sizes import tensor_bytes
from kitsune_mlir.dialects.stage_graph import inputs_of, results_of
from kitsune_mlir.machine.target import Target

LEAST_SHARE = 4  # of the multiprocessors, one in so many has to be idle
MOST_BYTES = 512 << 10
"""That a tile moves: what a multiprocessor does in about 10 us. (The rows of 61,440 edges beside their nodes' were 48 tiles of
7.9 MB, 160 us after 28 us of the tiles before.)"""


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
    rows = -(-space.dims[0].size // idle)
    moved = sum(tensor_bytes(value.type) for value in (*inputs_of(stage), *results_of(stage)) if is_tensor(value))
    return [rows] if moved * rows <= MOST_BYTES * space.dims[0].size else None
