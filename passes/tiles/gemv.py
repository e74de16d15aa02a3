"""Tiles for products with few rows, whose time is that of reading their weights once: the `gemv` engine's stages."""

from dataclasses import dataclass

from torch_mlir import ir

from kitsune_mlir.dialects.access import affine_maps, loop_sizes, plain_loops
from kitsune_mlir.dialects.contraction import contraction_dims
from kitsune_mlir.dialects.iteration import Space
from kitsune_mlir.dialects.products import is_contraction, is_projected_product
from kitsune_mlir.machine.target import Target

ROWS = 64
"""Up to this many rows the weights take longer to come from memory than the products take on tensor cores."""
COLUMNS = 8
"""Tiles are multiples of this: 16 bytes of a 16-bit result."""
LEAST_COLUMNS = 16
"""Of a tile: a copy brings 128 bytes of each of its columns, and TMA starts only so many copies in a second."""
OPERANDS = {"bf16": 2, "f16": 2, "f32": 4}
"""Element types that the engine multiplies, and their bytes."""
RUN_BYTES = 16
"""What a bulk copy moves is a multiple of this."""


def gemv_tile(space: Space, target: Target) -> list[int] | None:
    """Tile sizes of a stage whose products have few rows, each tile all rows and a multiprocessor's share of the columns.

    None where the stage is none for the `gemv` engine: no product, batched products, more than `ROWS` rows, or weights that do
    not lie along the sum in whole `RUN_BYTES`.
    """
    products = [(n, few_rows(op)) for n, op in enumerate(space.ops) if is_contraction(op)]
    if not products or any(found is None for _, found in products):
        return None
    tile = [d.size for d in space.dims]
    along = [i for i, d in enumerate(space.dims) if all(found and d.loops.get(n) == found.columns for n, found in products)]
    if len(along) != 1:
        return None
    size = tile[along[0]]
    share = -(-size // target.workers)
    tile[along[0]] = min(size, max(LEAST_COLUMNS, -(-share // COLUMNS) * COLUMNS))
    return tile


@dataclass(frozen=True)
class FewRows:
    """A product of few rows.

    Attributes:
        input, weights: numbers of the operands that have the rows and the columns.
        columns: loop of the columns.
    """

    input: int
    weights: int
    columns: int


def few_rows(op: ir.Operation) -> FewRows | None:
    """A product that the engine can do; None for any other."""
    if not is_projected_product(op):
        return None
    types = [str(ir.ShapedType(v.type).element_type) for v in op.operands]
    if types[0] != types[1] or types[0] not in OPERANDS:
        return None
    sizes = loop_sizes(op)
    first, second, out = ([loop for loop in plain_loops(m) if loop is not None and sizes[loop] > 1] for m in affine_maps(op))
    sums = [loop for loop in contraction_dims(op).k if sizes[loop] > 1]
    if not out or len(out) > 2 or len(sums) != 1:
        return None
    rows, columns = out[:-1], out[-1]
    weights = 0 if columns in first else 1
    wanted = [columns, *sums], [*rows, *sums]
    if any(sizes[loop] > ROWS for loop in rows) or (first, second) != (wanted[weights], wanted[1 - weights]):
        return None
    whole = sizes[sums[0]] * OPERANDS[types[0]] % RUN_BYTES == 0
    return FewRows(1 - weights, weights, columns) if whole else None
