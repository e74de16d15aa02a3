"""Products of heads that are no fused attention read heads where they lie.

`q.transpose(1, 2) @ k.transpose(1, 2).transpose(2, 3)` and `torch.einsum("bqhd,bkhd->bhqk", q, k)` arrive as turned copies of
both factors, (batch, heads, rows, width), whose first two dimensions are merged to the batch of one product. With batch and
heads as loops of its own it reads (batch, rows, heads, width), as TMA does with a dimension more, and nothing is copied.
"""

from torch_mlir import ir

from kitsune_mlir.dialects.access import affine_maps, loop_sizes, shape_of
from kitsune_mlir.dialects.attribute_table import ATTENTION
from kitsune_mlir.dialects.contraction import contraction_dims
from kitsune_mlir.dialects.iteration import root_of
from kitsune_mlir.dialects.products import body_of, defining_op, is_generic, is_movement, is_projected_product
from kitsune_mlir.dialects.sizes import element_bytes
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.passes.layouts.ones import with_ones
from kitsune_mlir.passes.stages.split_results import split_readers
from kitsune_mlir.passes.stages.through_reshapes import common_factors, rewrite_over

__all__ = ["multiply_heads_where_they_lie"]

LEAST = 16
"""Rows, columns and terms of a product from which on it is one for tensor cores."""
COPIED = 16
"""Strides in bytes are multiples of this where TMA reads."""
MOST_DIMENSIONS = 5
"""Of a tensor that TMA reads."""


def multiply_heads_where_they_lie(module: ir.Operation) -> bool:
    """Let products of batches read factors that were turned as they were before; those of merged batches are written over the
    dimensions that were merged."""
    changed = False
    for op in [op for op in walk(module) if is_generic(op) and is_projected_product(op)]:
        found = _turned_factors(op)
        if found is not None:
            with op.location:
                _write_apart(op, *found)
            changed = True
    return changed


def _turned_factors(op: ir.Operation) -> tuple[int, tuple[int, ...], dict[int, ir.Operation]] | None:
    """The batch's loop, what it is merged of, and by number the factors that are read before they are turned."""
    dims = contraction_dims(op)
    if ATTENTION in op.attributes or len(dims.batch) != 1 or any(len(d) != 1 for d in (dims.m, dims.n, dims.k)):
        return None
    sizes, (batch,) = loop_sizes(op), dims.batch
    if min(sizes[loop] for loop in (*dims.m, *dims.n, *dims.k)) < LEAST:
        return None
    turned: dict[int, ir.Operation] = {}
    merged: set[tuple[int, ...]] = set()
    for number, map_ in enumerate(affine_maps(op)[:2]):
        move = defining_op(root_of(op.operands[number]))
        if (
            move is None
            or not is_movement(move)
            or body_of(move)
            or len(affine_maps(move)[0].results) != affine_maps(move)[0].n_dims
        ):
            continue
        place = next((n for n, e in enumerate(map_.results) if e.position == batch), None)
        factors = common_factors(_wide(shape_of(move.results[0])), shape_of(op.operands[number]))
        if place is None or factors is None or any(len(one) > 1 for one in factors[0]):
            continue
        split = factors[1]
        source = _wide(shape_of(move.operands[0]))
        inner = _order(move)[-1]  # of the turned dimensions, the one that is innermost in memory
        first = sum(len(one) for one in split[:place])
        fits = len(source) <= MOST_DIMENSIONS and source[-1] * element_bytes(move.operands[0].type) % COPIED == 0
        if all(len(one) == 1 or n == place for n, one in enumerate(split)) and fits:
            if not first <= inner < first + len(split[place]):
                turned[number] = move
                merged.add(split[place])
    return (batch, merged.pop(), turned) if len(merged) == 1 else None


def _wide(shape: list[int]) -> list[int]:
    return [size for size in shape if size != 1]


def _order(move: ir.Operation) -> list[int]:
    """For each wide dimension of what a movement reads, the number of the same among those of what it makes."""
    read, made = ([e.position for e in map_.results] for map_ in affine_maps(move))
    sizes = dict(zip(made, shape_of(move.results[0]), strict=True))
    wide = [loop for loop in made if sizes[loop] != 1]
    return [wide.index(loop) for loop in read if sizes[loop] != 1]


def _write_apart(op: ir.Operation, batch: int, merged: tuple[int, ...], turned: dict[int, ir.Operation]) -> None:
    loops = [merged if loop == batch else (size,) for loop, size in enumerate(loop_sizes(op))]
    written = rewrite_over(op, loops)
    product = written.owner
    maps = affine_maps(product)
    with ir.InsertionPoint(product):
        for number, move in turned.items():
            results = list(maps[number].results)
            order = _order(move)
            maps[number] = ir.AffineMap.get(maps[number].n_dims, 0, [results[dim] for dim in order])
            product.operands[number] = with_ones(move.operands[0], _wide(shape_of(move.operands[0])))
    product.attributes["indexing_maps"] = ir.ArrayAttr.get([ir.AffineMapAttr.get(map_) for map_ in maps])
    made: ir.Value | None = written
    while made is not None:
        made = split_readers(made)
