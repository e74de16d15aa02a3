"""Tiles for attention: rows that read the same keys, as many as two warpgroups of the `attention` engine take."""

from kitsune_mlir.dialects.access import affine_maps
from kitsune_mlir.dialects.iteration import Space
from kitsune_mlir.dialects.products import is_contraction

from .write_attention import MARK

ROWS = 128
JOINED_ROWS = 64
"""Up to this many rows that read the same keys are one tile, even those of several heads."""


def attention_tile(space: Space) -> list[int] | None:
    """Tile sizes of a stage that `kitsune-fuse-attention` has written; None for any other stage.

    One element of each dimension that the keys have too (batch, heads that share keys), and rows of the others.
    """
    number = next((n for n, op in enumerate(space.ops) if MARK in op.attributes and is_contraction(op)), None)
    if number is None:
        return None
    keys = affine_maps(space.ops[number])[1]
    walked = {int(str(expression)[1:]) for expression in keys.results}
    rows = [i for i, dim in enumerate(space.dims) if dim.loops[number] not in walked]
    together = 1
    for i in rows:
        together *= space.dims[i].size
    tile = [1] * len(space.dims)
    if together <= JOINED_ROWS:
        for i in rows:
            tile[i] = space.dims[i].size
    elif rows:
        longest = max(rows, key=lambda i: space.dims[i].size)
        tile[longest] = min(ROWS, space.dims[longest].size)
    return tile
