"""What follows a product of groups is written over the groups and their features, as the product is: one stage makes both.

A convolution in groups gives (batch, rows, columns, group, feature), and what reads it has channels, which are both in one
dimension. A reshape between the two cannot be inside a stage, so the sums would be stored as f32 and read again.
"""

from torch_mlir import ir
from torch_mlir.dialects import tensor

from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.contraction import conv_dims
from kitsune_mlir.dialects.iteration import is_reshape
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.dialects.products import is_contraction, is_projected_product
from kitsune_mlir.passes.layouts.ones import with_ones
from kitsune_mlir.passes.remarks import remark

from .through_reshapes import can_split, common_factors, is_map, loops_of_reads, reassociation_of, rewrite_over

__all__ = ["split_after_groups", "split_readers"]


def split_after_groups(block: ir.Block) -> None:
    """Write the element-wise generics that alone read a grouped convolution's result over groups and features."""
    for op in [o.operation for o in block.operations]:
        if is_contraction(op) and not is_projected_product(op) and _has_groups(op):
            with op.location:
                made = op.results[0]
                while made is not None:
                    made = split_readers(made)


def _has_groups(op: ir.Operation) -> bool:
    try:
        return conv_dims(op).group is not None
    except MatchFailure:
        return False


def split_readers(made: ir.Value) -> ir.Value | None:
    """Write the one reader of a value, through reshapes, over the value's dimensions; what it then makes, else None."""
    read = made
    while len(users := _users(read)) == 1 and is_reshape(users[0]):
        read = users[0].results[0]
    if read == made or len(users) != 1 or not is_map(users[0]):
        return None
    wide = [size for size in shape_of(made) if size != 1]
    factors = common_factors(wide, [size for size in shape_of(read) if size != 1])
    if factors is None or any(len(one) > 1 for one in factors[0]):
        return None
    split = iter(factors[1])
    known = [(1,) if size == 1 else next(split) for size in shape_of(read)]
    loops = loops_of_reads(users[0], {read: known})
    if loops is None or not can_split(users[0], loops):
        return None
    remark(users[0], "written over groups and their features, as what it reads")
    with ir.InsertionPoint(users[0]):
        # What differs in dimensions of 1 (a batch of one image, a line) is a view that is free inside a stage.
        view = with_ones(made, [size for one in known for size in one])
        joined = view
        if view.type != read.type:
            joined = tensor.collapse_shape(ir.RankedTensorType(read.type), view, reassociation_of(known))
    for number, value in enumerate(users[0].operands):
        if value == read:
            users[0].operands[number] = joined
    return rewrite_over(users[0], loops)


def _users(value: ir.Value) -> list[ir.Operation]:
    return list({hash(use.owner.operation): use.owner.operation for use in value.uses}.values())
