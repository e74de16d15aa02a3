"""Chains of layers for clusters: what the `cluster` engine takes (codegen/gpu/engines/chain/cluster/plan.py), and their tiles.

A cluster's blocks each make a slice of every layer, so layers may be wider than one block could hold. Between layers there are
element-wise steps only: what needs all columns of a row would need all blocks.
"""

from torch_mlir import ir

from kitsune_mlir.dialects.access import affine_maps, is_tensor, iterator_kinds, shape_of
from kitsune_mlir.dialects.iteration import Space, is_free
from kitsune_mlir.dialects.products import is_contraction, is_generic
from kitsune_mlir.machine.stage_cost import bulk_rate
from kitsune_mlir.machine.target import Target

from .gemm_chains import HANDOFF, Layer, layer_of

MOST_COLUMNS = 1024
SLICE = 128  # columns: two panels of 64, or one each for two blocks
ROWS = 64  # of a tile: with 128 twice as many blocks have to exchange twice as much (8192 rows of 512: 109 us beside 61)
LEAST_ROWS = 256  # of which clusters were measured to be faster than a task a layer (on an H200)
HELD_COLUMNS = 512  # an input of more leaves too little shared memory for weights on their way
SHORT = ("bf16", "f16")
PRODUCTS = 0.85  # of the tensor cores' rate that slices of layers reach (on an H200)
HAND_OVER = 0.3e-6  # seconds from the last product of a layer to the first of the next
TILES = ((128, 128), (64, 128), (64, 64))  # of products apart
START = 3e-6  # seconds until the first rows have come to all blocks


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


def layers_in(space: Space) -> list[Layer]:
    """The products of a chain."""
    return [layer_of(op) for op in space.ops if is_contraction(op)]


def cluster_seconds(space: Space, target: Target) -> float:
    """Time of a chain by clusters: waves of tiles, each as long as the products of a block's slices and their hand-overs."""
    return sum(seconds for _, seconds in cluster_limits(space, target))


def cluster_limits(space: Space, target: Target) -> list[tuple[str, float]]:
    """What that time consists of, the longest part first."""
    layers, columns = layers_in(space), 2 * SLICE  # of a block: a warpgroup's slice each
    blocks = max(2, max(-(-layer.columns // columns) for layer in layers))
    waves = -(-space.dims[0].size // ROWS // max(1, target.workers // blocks))
    rate = target.matrix_rate / target.workers * PRODUCTS
    products = sum(2 * ROWS * layer.depth * min(layer.columns, columns) / rate for layer in layers)
    parts = [
        ("products of the blocks' slices", waves * products),
        ("hand-overs inside of clusters", waves * len(layers) * HAND_OVER),
        ("the first rows", START),
    ]
    return sorted(parts, key=lambda part: -part[1])


def apart_seconds(layers: list[Layer], target: Target) -> float:
    """Time of the layers as products of their own, in the tiles that few rows get, as fast as L2 hands these their operands."""
    rate = target.matrix_rate / target.workers
    total = 0.0
    for layer in layers:
        found = []
        for rows, columns in TILES:
            tiles = -(-layer.rows // rows) * -(-layer.columns // columns)
            moved = 2 * tiles * (rows + columns) * layer.depth  # bytes of the operands' 16-bit numbers
            one = 2 * rows * columns * layer.depth / rate
            found.append(max(-(-tiles // target.workers) * one, moved / bulk_rate(target)))
        total += HANDOFF + min(found)
    return total


def cluster_tile(space: Space) -> int:
    """Rows of a tile."""
    return min(ROWS, space.dims[0].size)
