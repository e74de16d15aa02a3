"""Chains of layers for clusters: what the `cluster` engine takes (codegen/gpu/cluster_plan.py), and their tiles.

A cluster's blocks each make a slice of every layer, so layers may be wider than one block could hold. Between layers there are
element-wise steps only: what needs all columns of a row would need all blocks.
"""

from torch_mlir import ir

from kitsune_mlir.dialects.access import affine_maps, is_tensor, iterator_kinds, shape_of
from kitsune_mlir.dialects.iteration import Space, is_free
from kitsune_mlir.dialects.products import is_contraction, is_generic
from kitsune_mlir.target import Target

MOST_COLUMNS = 1024
SLICE = 128  # columns: two panels of 64, or one each for two blocks
WIDE_ROWS, ROWS = 128, 64  # rows of a tile, where half of shared memory holds them, and else
HELD_COLUMNS = 512  # columns of 128 rows that are half of shared memory
SHORT = ("bf16", "f16")


def cluster_reason(space: Space) -> str | None:
    """Why a row-local group is no chain for a cluster; None if it is one."""
    made = [op for op in space.ops if any(is_tensor(r) for r in op.results)]
    ops = [op for op in made if op.name not in ("tensor.empty", "arith.constant")]
    layers = [op for op in ops if is_contraction(op)]
    if len(space.dims) != 1 or not layers:
        return "a cluster's tiles are rows of layers"
    for op in ops:
        if op in layers:
            maps = [str(m).partition(" -> ")[2] for m in affine_maps(op)]
            types = {str(ir.ShapedType(v.type).element_type) for v in list(op.operands)[:2]}
            columns = shape_of(op.results[0])[-1]
            if maps[:2] != ["(d0, d2)", "(d1, d2)"] or not types <= set(SHORT):
                return "a cluster's layers multiply rows by a 16-bit weight of columns x sum"
            last = op is layers[-1]
            if columns > MOST_COLUMNS or columns % (SLICE if not last else ROWS) or shape_of(op.operands[0])[1] > MOST_COLUMNS:
                return f"a layer of {columns} columns; a cluster has multiples of {SLICE} up to {MOST_COLUMNS}"
        elif not is_free(op) and (not (is_generic(op) or op.name == "linalg.fill") or "reduction" in iterator_kinds(op)):
            return f"'{op.name}' takes whole rows, which no block of a cluster has"
    return None


def cluster_tile(space: Space, target: Target) -> int:
    """Rows of a tile: many where memory holds them, and clusters of four have them all at once."""
    widest = max(max(shape_of(op.results[0])[-1], shape_of(op.operands[0])[-1]) for op in space.ops if is_contraction(op))
    rows = WIDE_ROWS if widest <= HELD_COLUMNS and space.dims[0].size > ROWS * (target.workers // 4) else ROWS
    return min(rows, space.dims[0].size)
