"""Tiles for products with few rows, whose time is that of reading their weights once: the `gemv` engine's stages."""

from torch_mlir import ir

from kitsune_mlir.dialects.access import affine_maps, shape_of
from kitsune_mlir.dialects.iteration import Space
from kitsune_mlir.dialects.products import is_contraction, is_projected_product
from kitsune_mlir.target import Target

from .grouping import element_bytes

ROWS = 64
"""Up to this many rows the weights take longer to come from memory than the products take on tensor cores."""
COLUMNS = 8
"""Tiles are multiples of this: 16 bytes of a 16-bit result."""
OPERANDS = ("bf16", "f16", "f32")
RUN_BYTES = 16
"""What a bulk copy moves is a multiple of this."""


def gemv_tile(space: Space, target: Target) -> list[int] | None:
    """Tile sizes of a stage whose products have few rows, each tile all rows and a multiprocessor's share of the columns.

    None where the stage is none for the `gemv` engine: no product, batched products, more than `ROWS` rows, or weights that do
    not lie along the sum in whole `RUN_BYTES`.
    """
    columns = {n: _columns(op) for n, op in enumerate(space.ops) if is_contraction(op)}
    if not columns or None in columns.values():
        return None
    tile = [d.size for d in space.dims]
    along = [i for i, d in enumerate(space.dims) if all(d.loops.get(n) == loop for n, loop in columns.items())]
    if len(along) != 1:
        return None
    size = tile[along[0]]
    share = -(-size // target.workers)
    tile[along[0]] = min(size, -(-share // COLUMNS) * COLUMNS)
    return tile


def _columns(op: ir.Operation) -> int | None:
    """The loop of the columns of a product that the engine can do."""
    if not is_projected_product(op):
        return None
    types = [str(ir.ShapedType(v.type).element_type) for v in op.operands]
    if types[0] != types[1] or types[0] not in OPERANDS:
        return None
    maps = [[int(str(e)[1:]) for e in m.results] for m in affine_maps(op)]
    sizes = {loop: size for v, m in zip(op.operands, maps, strict=True) for loop, size in zip(m, shape_of(v), strict=True)}
    first, second, out = ([loop for loop in m if sizes[loop] > 1] for m in maps)
    sums = [loop for loop in first if loop not in out]
    if not out or len(out) > 2 or len(sums) != 1 or sums != [loop for loop in second if loop not in out]:
        return None
    rows, columns = out[:-1], out[-1]
    weights, inputs = (first, second) if columns in first else (second, first)
    if columns in inputs or any(loop in weights or sizes[loop] > ROWS for loop in rows):
        return None
    if weights != [columns, sums[0]] or inputs != [*rows, sums[0]]:
        return None
    return columns if sizes[sums[0]] * element_bytes(op.operands[0].type) % RUN_BYTES == 0 else None
