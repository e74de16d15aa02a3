"""Tiles for products with few rows, whose time is that of reading their weights once: the `gemv` engine's stages."""

import math

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.interface.few_rows import few_rows
from kitsune_mlir.codegen.gpu.interface.offer import Candidate, Offer
from kitsune_mlir.codegen.gpu.interface.plan import Decline
from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.contraction import operand_bytes
from kitsune_mlir.dialects.iteration import Space
from kitsune_mlir.machine.target import Target

__all__ = ["gemv_tile", "offer"]

GEMV_ROWS = 32
"""Up to so many rows this engine streams weights faster than `mma`."""
COLUMNS = 8
"""Tiles are multiples of this: 16 bytes of a 16-bit result."""
LEAST_COLUMNS = 16
"""Of a tile: a copy brings 128 bytes of each of its columns, and TMA starts only so many copies in a second."""


def offer(name: str, candidate: Candidate, machine: Target) -> Offer | Decline:
    """A stage of products that share their few rows, which come from memory, as one pass over all weights."""
    products = candidate.contractions
    if not candidate.products:
        return Decline(name, "it holds no product")
    if (reason := candidate.several_passes or candidate.after_products) is not None:
        return Decline(name, reason)
    tile = gemv_tile(candidate.space, products, machine)
    if tile is None:
        return Decline(name, "its products are none of few rows by weights that lie along the sum")
    if len(products) == 1 and _on_tensor_cores(products[0]):
        return Decline(name, "with so many rows tensor cores are faster")
    return Offer(name, tuple(tile))


def gemv_tile(space: Space, products: list[ir.Operation], machine: Target) -> list[int] | None:
    """Tile sizes of a stage whose products have few rows, each tile all rows and a multiprocessor's share of the columns.

    None where the stage is none for the `gemv` engine: batched products, more than `ROWS` rows, or weights that do not lie
    along the sum in whole `RUN_BYTES`.
    """
    numbered = [(space.ops.index(op), few_rows(op)) for op in products]
    if any(found is None for _, found in numbered):
        return None
    tile = [d.size for d in space.dims]
    along = [i for i, d in enumerate(space.dims) if all(found and d.loops.get(n) == found.columns for n, found in numbered)]
    if len(along) != 1:
        return None
    size = tile[along[0]]
    share = -(-size // machine.workers)
    tile[along[0]] = min(size, max(LEAST_COLUMNS, -(-share // COLUMNS) * COLUMNS))
    return tile


def _on_tensor_cores(product: ir.Operation) -> bool:
    """Whether a product of few rows is faster on tiles of tensor cores, as measured on an H200.

    64 rows, through layers of 1024 x 4096: 1.13 times as fast; 2048 x 8192: 1.03; 4096 x 16384: 1.04; 6144 x 12288: 1.10. In
    f32 60 rows by 256 x 512, 512 x 512 and 512 x 256: 1.5, 2.1 and 3.1 times as fast; 32 rows of 64 columns take as long.
    """
    found = few_rows(product)
    rows = shape_of(product.operands[found.input]) if found is not None else ()
    return operand_bytes(product) in (2, 4) and math.prod(rows[:-1]) > GEMV_ROWS
