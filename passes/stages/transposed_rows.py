"""Layers over a dimension that lies across memory (token mixing) are products of a batch, which read and write it as it lies.

A linear layer's product comes with its rows merged into one dimension, (batch, channels) of (batch, tokens, channels) that was
transposed. What is merged has to be copied in that order first, and what comes out is transposed by who reads it. As a product
over (batch, channels) its factor is what was transposed, which tensor cores read along either dimension, and its result is
stored in the order in which it is read.
"""

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.chain.layers import WIDTH
from kitsune_mlir.dialects.access import affine_maps, is_tensor, iterator_kinds, reassociation, shape_of
from kitsune_mlir.dialects.attribute_table import ATTENTION
from kitsune_mlir.dialects.contraction import subscripts
from kitsune_mlir.dialects.products import defining_op, is_generic, is_movement, is_projected_product
from kitsune_mlir.dialects.sizes import HALF_TYPES, element_bytes
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.passes.remarks import remark

from .split_results import split_readers
from .through_reshapes import rewrite_over

__all__ = ["split_transposed_rows"]

TILE_ROWS, MOST_WASTE = 64, 1.4
"""Rows of a tile; how much longer all tiles may be than the rows of all batches."""
ROW_BYTES = 16
"""TMA reads rows that begin at multiples of so many bytes."""


def split_transposed_rows(module: ir.Operation) -> bool:
    """Split the rows of every product whose factor was transposed before they were merged, or whose result is transposed after
    they are split; whether there is any."""
    changed = False
    for op in [op for op in walk(module) if is_projected_product(op)]:
        wide = _merged_rows(op)
        if wide is None:
            continue
        rows = shape_of(wide)[:2]
        if _was_transposed(wide) or _is_transposed(op.results[0], rows):
            remark(op, f"rows of {rows[1]}, transposed in memory, are a batch of {rows[0]}")
            with op.location:
                made: ir.Value | None = rewrite_over(op, [tuple(rows), *((size,) for size in _sizes(op)[1:])])
                while made is not None:
                    made = split_readers(made)
            changed = True
    return changed


def _sizes(op: ir.Operation) -> list[int]:
    """Extents of the loops m, n, k of a product."""
    (rows, terms), columns = shape_of(op.operands[0]), shape_of(op.results[0])[1]
    return [rows, columns, terms]


def _merged_rows(op: ir.Operation) -> ir.Value | None:
    """What a product of 16-bit numbers reads with its first two dimensions merged, if tiles of one batch's rows waste little.

    A layer that a chain can hold stays as it is, for that keeps what is between layers on chip; not so if its rows are odd: a
    chain reads these element by element (two layers of 129 tokens took 23 us on an H200, two products 7)."""
    if not is_generic(op) or ATTENTION in op.attributes or subscripts(op) not in ("mk,nk->mn", "mk,kn->mn"):
        return None
    loops = [[e.position for e in map_.results] for map_ in affine_maps(op)]
    if loops[0] != [0, 2] or loops[2] != [0, 1] or len(iterator_kinds(op)) != 3:
        return None
    maker = defining_op(op.operands[0])
    if maker is None or maker.name != "tensor.collapse_shape" or reassociation(maker) != [[0, 1], [2]]:
        return None
    wide = maker.operands[0]
    rows = shape_of(wide)[1]
    if max(_sizes(op)[1:]) <= WIDTH and all(_is_aligned(size, wide) for size in _sizes(op)[1:]):
        return None
    if str(ir.ShapedType(wide.type).element_type) not in HALF_TYPES or not _is_aligned(rows, wide):
        return None
    return wide if -(-rows // TILE_ROWS) * TILE_ROWS <= MOST_WASTE * rows else None


def _is_aligned(extent: int, value: ir.Value) -> bool:
    return extent * element_bytes(ir.ShapedType(value.type).element_type) % ROW_BYTES == 0


def _was_transposed(value: ir.Value) -> bool:
    """Whether the last two dimensions of a tensor are another one's in the other order, moved and nothing else."""
    maker = defining_op(value)
    if maker is None or not is_movement(maker) or not is_tensor(maker.operands[0]) or len(shape_of(maker.operands[0])) != 3:
        return False
    given, made = ([ir.AffineDimExpr(e).position for e in map_.results] for map_ in affine_maps(maker))
    return maker.operands[0].type != value.type and given == [made[0], made[2], made[1]]


def _is_transposed(value: ir.Value, rows: list[int]) -> bool:
    """Whether a product's result, after element-wise work on it alone, is read with its rows split and transposed."""
    while True:
        users = list({hash(use.owner.operation): use.owner.operation for use in value.uses}.values())
        if len(users) != 1:
            return False
        (user,) = users
        if user.name == "tensor.expand_shape":
            again = shape_of(user.results[0])[:2] == rows and reassociation(user) == [[0, 1], [2]]
            return again and _read_across(user.results[0])
        if not is_generic(user) or len(user.results) != 1 or set(iterator_kinds(user)) != {"parallel"}:
            return False
        value = user.results[0]


def _read_across(value: ir.Value) -> bool:
    """Whether the one reader of a tensor writes it with its last two dimensions in the other order."""
    users = list(value.uses)
    if len(users) != 1 or not is_generic(users[0].owner.operation):
        return False
    op, number = users[0].owner.operation, users[0].operand_number
    if number >= len(op.operands) - len(op.results) or set(iterator_kinds(op)) != {"parallel"}:
        return False
    maps = affine_maps(op)
    read, made = list(maps[number].results), list(maps[-1].results)
    return len(read) == len(made) == 3 and read == [made[0], made[2], made[1]]
