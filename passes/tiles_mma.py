"""Tiles of products on tensor cores, from the model of the chip in `codegen/gpu/mma_cost.py`."""

import math
from collections.abc import Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.mma_cost import CHUNK_BYTES, Work, choose_pieces, microseconds
from kitsune_mlir.dialects.access import affine_maps, iterator_kinds, shape_of
from kitsune_mlir.target import Target

__all__ = ["ROWS", "element_bytes", "mma_tile", "sum_terms"]

ROWS, COLUMNS = (128, 64), (256, 128, 64, 32)
EXACT_PRODUCTS = 3
MOST_EXACT_COLUMNS = 128
"""Wider tiles of f32 leave room for two stages only."""
SHARE_UNIT = 16
"""Widths are multiples of this: the narrowest slice of a result that TMA stores."""
NEAR_BYTES = 8 << 20
"""Operands of together as many bytes are read again from L2 at full speed: then tiles of 64 rows pay, which read more."""


def sum_terms(op: ir.Operation) -> int:
    """The number of terms of each element of a contraction."""
    extents: dict[int, int] = {}
    for value, map_ in zip(op.operands, affine_maps(op), strict=True):
        for extent, expression in zip(shape_of(value), map_.results, strict=True):
            if isinstance(expression, ir.AffineDimExpr):
                extents[expression.position] = extent
    return math.prod(extents.get(loop, 1) for loop, kind in enumerate(iterator_kinds(op)) if kind == "reduction")


def element_bytes(op: ir.Operation) -> int:
    """Bytes of an element of a contraction's operands: 2, or 4 for what is no 16-bit float."""
    return 2 if all(str(ir.ShapedType(value.type).element_type) in ("bf16", "f16") for value in list(op.operands)[:2]) else 4


def mma_tile(
    sizes: Sequence[int], kinds: Sequence[str], terms: int, target: Target, element_bytes: int = 2, products: int = 1
) -> list[int]:
    """The tile of each shared dimension of a product that takes the least time.

    Args:
        sizes: of the shared dimensions.
        kinds: "m" (rows), "n" (columns) or "batch" of each. Only the last "m" and the last "n" are tiled.
        terms: of the sum.
        element_bytes: of the operands: f32 ones are multiplied by three products of tf32 numbers.
        products: of one input that share the tile, each with its own columns.
    """
    exact = element_bytes > 2
    places = {kind: last for last, kind in enumerate(kinds) if kind != "batch"}
    row, col = (sizes[places[kind]] if kind in places else 1 for kind in ("m", "n"))
    others = math.prod(size for place, size in enumerate(sizes) if place not in places.values())
    chunks = -(-terms * element_bytes // CHUNK_BYTES)

    def time(rows: int, cols: int) -> float:
        work = Work(
            others * -(-row // rows) * -(-col // cols),
            chunks,
            -(-min(rows, row) // 64) * 64,
            products * _up(min(cols, col)),
            EXACT_PRODUCTS if exact else 1,
            element_bytes,
            element_bytes,
        )
        pieces, whole = choose_pieces(work, target.workers)
        return microseconds(work, pieces, target.workers, whole)

    near = (row + col) * terms * element_bytes <= NEAR_BYTES
    # Several products need the rows of both warpgroups.
    heights = ROWS if (near or row <= 64) and products == 1 else ROWS[:1]
    # Of equal ones the first: larger tiles read less.
    most = (MOST_EXACT_COLUMNS if exact else COLUMNS[0]) // products
    shares = _shares(col, -(-row // ROWS[0]) * others, target.workers) if products > 1 else []
    widths = [cols for cols in (*COLUMNS, *shares) if cols <= most]
    rows, cols = min(((rows, cols) for rows in heights for cols in widths), key=lambda tile: time(*tile))
    tile = [1] * len(sizes)
    for kind, most in (("m", rows), ("n", cols)):
        if kind in places:
            tile[places[kind]] = min(sizes[places[kind]], most)
    return tile


def _shares(cols: int, rows: int, workers: int) -> list[int]:
    """Widths that give every multiprocessor one tile, or two or three, where there are `rows` tiles of each column."""
    found = []
    for waves in (1, 2, 3):
        across = workers * waves // rows
        if across:
            found.append(-(-cols // (across * SHARE_UNIT)) * SHARE_UNIT)
    return found


def _up(cols: int) -> int:
    return -(-cols // 8) * 8
