"""Tiles for attention: rows that read the same keys, as many as two warpgroups of the `attention` engine take.

The two share the rows of a tile of 128, or the keys of one of 64: that takes less time, but more than half. So the smaller
tiles are for few rows, where the longest tile of a causal mask, or idle multiprocessors, would else decide.
"""

import math

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.interface.offer import Candidate, Offer
from kitsune_mlir.codegen.gpu.interface.plan import Decline
from kitsune_mlir.dialects.access import affine_maps, plain_loops
from kitsune_mlir.dialects.attention import read_attention
from kitsune_mlir.dialects.attribute_table import ATTENTION
from kitsune_mlir.dialects.iteration import Space
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.dialects.products import is_contraction
from kitsune_mlir.machine import rates
from kitsune_mlir.machine.target import Target

WIDEST_HEAD = 128
"""Longer heads leave two warpgroups with keys of their own no room for blocks of a good size."""
GRADIENT_ROWS = 128
"""Rows of a tile of gradients, 64 for each of two warpgroups."""
JOINED_ROWS = 64
"""Up to this many rows that read the same keys are one tile, even those of several heads."""


def offer(name: str, candidate: Candidate, machine: Target) -> Offer | Decline:
    """A stage that `kitsune-fuse-attention` has written."""
    tile = attention_tile(candidate.space, machine)
    if tile is None:
        return Decline(name, "it is no attention that 'kitsune-fuse-attention' has found")
    return Offer(name, tuple(tile))


def attention_tile(space: Space, target: Target) -> list[int] | None:
    """Tile sizes of a stage that `kitsune-fuse-attention` has written; None for any other stage.

    One element of each dimension that the keys have too (batch, heads that share keys), and rows of the others.
    """
    numbers = _products(space)
    if len(numbers) != 2:
        return None
    rows = _own_rows(space, numbers[0])
    together = math.prod(space.dims[i].size for i in rows)
    tile = [1] * len(space.dims)
    if together <= JOINED_ROWS:
        for i in rows:
            tile[i] = space.dims[i].size
    elif rows:
        longest = max(rows, key=lambda i: space.dims[i].size)
        size = space.dims[longest].size
        groups = math.prod(dim.size for i, dim in enumerate(space.dims) if i != longest)
        tile[longest] = min(_rows(space.ops[numbers[-1]], size, groups, target), size)
    return tile


def gradient_tile(space: Space) -> list[int] | None:
    """Tile sizes of a stage of gradients that `kitsune-fuse-attention` has written; None for any other stage.

    Rows of the longest dimension that what is streamed does not have, one element of the others.
    """
    numbers = _products(space)
    rows = _own_rows(space, numbers[0]) if len(numbers) > 2 else []
    if not rows:
        return None
    longest = max(rows, key=lambda i: space.dims[i].size)
    return [min(dim.size, GRADIENT_ROWS) if i == longest else 1 for i, dim in enumerate(space.dims)]


def _products(space: Space) -> list[int]:
    """Numbers of the products of a stage that `kitsune-fuse-attention` has written."""
    return [n for n, op in enumerate(space.ops) if ATTENTION in op.attributes and is_contraction(op)]


def _own_rows(space: Space, number: int) -> list[int]:
    """The dimensions that the second factor of the scores' product, number `number`, does not lie along."""
    walked = plain_loops(affine_maps(space.ops[number])[1])
    return [i for i, dim in enumerate(space.dims) if dim.loops[number] not in walked]


def best_rows(rows: int, groups: int, keys: int, offset: int | None, workers: int) -> int:
    """Rows of a tile.

    Args:
        rows: of each group (head of a sample), which are many: more than one tile's at most.
        groups: how many there are.
        keys: of each group.
        offset: row i reads the keys up to i + offset; None: all of them.
        workers: multiprocessors.
    """

    def seconds(tile: int) -> float:
        ends = [min(first + tile, rows) for first in range(0, rows, tile)]
        read = [keys if offset is None else max(1, min(keys, end + offset)) for end in ends]
        costs = [rates.ATTENTION_OVERHEAD + rates.ATTENTION_TILES[tile] * math.ceil(count / 128) for count in read]
        if offset is None:
            return math.ceil(groups * len(costs) / workers) * costs[0]
        return max(max(costs), groups * sum(costs) / workers)

    return min(rates.ATTENTION_TILES, key=seconds)


def _rows(weighted: ir.Operation, rows: int, groups: int, target: Target) -> int:
    """Rows of a tile of an attention, by its second product; see `best_rows`."""
    try:
        attention = read_attention(weighted)
    except MatchFailure:
        return max(rates.ATTENTION_TILES)
    keys, *heads = (math.prod(factor.size for factor in flat) for flat in (attention.column, attention.width, attention.head))
    if max(heads) > WIDEST_HEAD:
        return max(rates.ATTENTION_TILES)
    masks = [step.constant for step in attention.steps if step.kind == "causal" and not step.terms and not step.loads]
    return best_rows(rows, groups, keys, min(masks, default=None), target.workers)
