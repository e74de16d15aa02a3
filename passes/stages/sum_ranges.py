"""Which concatenations and gathered rows products on a GPU read in place, instead of from a copy that a stage of its own makes.

linear(cat([x, y, table[i]])): the `mma` engine sums over a range of terms after the other, each from a tensor of its own
(`codegen/gpu/engines/mma/k_ranges.py`). A chain's products do so anyway; where a product stays apart, what it reads is marked
here, and is then part of its stage like any other operation that costs nothing.
"""

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.interface.few_rows import few_rows
from kitsune_mlir.dialects.access import affine_maps, iterator_kinds, shape_of
from kitsune_mlir.dialects.attribute_table import IN_PLACE
from kitsune_mlir.dialects.products import constant_fill, defining_op, is_contraction, is_projected_product
from kitsune_mlir.dialects.sizes import element_bytes
from kitsune_mlir.passes.hoist_gathers import gather_of
from kitsune_mlir.passes.remarks import remark

from .grouping import Grouping

ROW_BYTES = 16
"""What rows of every range begin and end at: then TMA reads them, or threads copy them in pieces as large."""
GATHERED_BYTES = (2,)
"""Sizes of elements whose rows are gathered in place."""
MOST_RANGES = 8
MOST_GATHERED_TILES = 8
"""Tiles of columns that read the same gathered rows: each copies them again, by threads."""
TILE_COLUMNS = 256


def mark_ranges(grouping: Grouping) -> bool:
    """Mark what products of formed groups can read in place (`IN_PLACE`); whether there is any."""
    found = False
    for op in grouping.ops:
        if op.name == "tensor.concat" or gather_of(_result(op)) is not None:
            found |= _mark(grouping, op)
    return found


def _mark(grouping: Grouping, op: ir.Operation) -> bool:
    if IN_PLACE in op.attributes or _result(op) in grouping.returned or not _only_rows(grouping, op):
        return False
    parts = list(op.operands) if op.name == "tensor.concat" else [_result(op)]
    if op.name == "tensor.concat" and ir.IntegerAttr(op.attributes["dim"]).value != len(shape_of(_result(op))) - 1:
        return False
    filled = [constant_fill(defining_op(part)) is not None for part in parts]
    if any(maker is not None and maker.name in ("arith.constant", "tensor.splat") for maker in map(defining_op, parts)):
        return False  # a constant has no rows to tile
    size = element_bytes(_result(op).type)
    widths = [shape_of(part)[-1] * size for part, zeros in zip(parts, filled, strict=True) if not zeros]
    if len(parts) > MOST_RANGES or any(width % ROW_BYTES for width in widths):
        return False
    gathered = [part for part in parts if gather_of(part) is not None and len(list(part.uses)) == 1]
    # f32 rows would have to be copied with the weights: the warps that copy beside TMA split them in two
    # (`contraction.tf32x3`).
    if gathered and (size not in GATHERED_BYTES or _columns(op) > MOST_GATHERED_TILES * TILE_COLUMNS):
        if op.name != "tensor.concat":
            return False
        gathered = []
    made = [part for part in parts if part not in gathered and _made_in(grouping, part, grouping.group_of[hash(op)])]
    if len(made) > 1:
        return False  # one pass makes them all now; apart they would be several
    for part in gathered:
        part.owner.attributes[IN_PLACE] = ir.UnitAttr.get()
    op.attributes[IN_PLACE] = ir.UnitAttr.get()
    remark(
        op, f"read in place by products, {len(widths)} ranges of their sums" + f", {len(gathered)} gathered" * bool(gathered)
    )
    return True


def _result(op: ir.Operation) -> ir.Value:
    return op.results[0]


def _made_in(grouping: Grouping, value: ir.Value, group: int) -> bool:
    maker = defining_op(value)
    return maker is not None and grouping.group_of.get(hash(maker)) == group


def _users(value: ir.Value) -> list[ir.Operation]:
    return [use.owner.operation for use in value.uses]


def _columns(op: ir.Operation) -> int:
    """The most columns that a product of what `op` makes has."""
    return max(shape_of(user.results[0])[-1] for user in _users(_result(op)))


def _only_rows(grouping: Grouping, op: ir.Operation) -> bool:
    """Whether what `op` makes is read by products alone, as their rows, which stand apart from chains."""
    own = grouping.group_of[hash(op)]
    if any(is_contraction(other) for other in grouping.members[own]) or len(op.results) != 1:
        return False
    users = _users(_result(op))
    return bool(users) and all(_takes_rows(grouping, user, _result(op)) for user in users)


def _takes_rows(grouping: Grouping, op: ir.Operation, value: ir.Value) -> bool:
    if hash(op) not in grouping.group_of or not is_projected_product(op) or few_rows(op) is not None:
        return False
    group = grouping.members[grouping.group_of[hash(op)]]
    if len(grouping.space(group).dims) < 2 or [v for v in op.operands].count(value) != 1 or value == op.operands[2]:
        return False
    number = list(op.operands).index(value)
    mine, out = affine_maps(op)[number], affine_maps(op)[2]
    kinds = iterator_kinds(op)
    loops = [e.position for e in mine.results]
    # Rows first, then the one sum; and the rows are the first dimension of the result.
    sums = [loop for loop, kind in enumerate(kinds) if kind == "reduction"]
    return len(loops) == 2 and sums == loops[1:] and [e.position for e in out.results][0] == loops[0] and len(out.results) == 2
