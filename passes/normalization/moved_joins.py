"""What is joined and then put in another order is put in that order first: the parts' makers may store it so, and one copy is
left.

The gradient of queries, keys and values that one product made (`qkv.reshape(B, N, 3, H, D).permute(2, 0, 3, 1, 4)`) joins three
tensors along the leading dimension, and puts heads behind rows again.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch_mlir import ir
from torch_mlir.dialects import tensor

from kitsune_mlir.dialects.access import reassociation, shape_of
from kitsune_mlir.dialects.products import body_of, defining_op, is_movement
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.passes.layouts.permute import order_of, reordered

__all__ = ["join_moved"]


def join_moved(module: ir.Operation) -> None:
    """Join what was moved in the place of moving what was joined, where nobody else reads that."""
    for op in [op for op in walk(module) if is_movement(op) and not body_of(op)]:
        order = order_of(op)
        view = defining_op(op.operands[0])
        join = defining_op(view.operands[0]) if view is not None and view.name == "tensor.expand_shape" else view
        if order is None or view is None or join is None or join.name != "tensor.concat":
            continue
        if all(len(list(one.results[0].uses)) == 1 for one in {view, join}):
            _join(op, order, view, join)


def _join(op: ir.Operation, order: Sequence[int], view: ir.Operation, join: ir.Operation) -> None:
    """Write the join of moved parts, if the view between parts them where they begin, and splits nothing else."""
    along = ir.IntegerAttr(join.attributes["dim"]).value
    split = view != join
    if split:
        groups = reassociation(view)
        shape = shape_of(view.results[0])
        parts = groups[along]
        extents = {shape_of(value)[along] for value in join.operands}
        alone = all(len(group) == 1 for n, group in enumerate(groups) if n != along)
        if not alone or len(parts) != 2 or shape[parts[0]] != len(join.operands) or extents != {shape[parts[1]]}:
            return
        place = list(order).index(parts[0])
        if place + 1 == len(order):
            return
        own = [dim - (dim > parts[0]) for dim in order if dim != parts[0]]
    else:
        place, own = list(order).index(along), list(order)
    element = ir.ShapedType(op.results[0].type).element_type
    with ir.InsertionPoint(op), op.location:
        moved = [reordered(value, own) for value in join.operands]
        wanted = shape_of(moved[0])
        wanted[place] = sum(shape_of(value)[place] for value in moved)
        dim = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), place)
        type_ = ir.RankedTensorType.get(wanted, element)
        joined = ir.Operation.create("tensor.concat", [type_], moved, {"dim": dim}).results[0]
        if split:
            result = shape_of(op.results[0])
            groups = [[n] for n in range(place)] + [[place, place + 1]] + [[n] for n in range(place + 2, len(result))]
            joined = tensor.ExpandShapeOp(op.results[0].type, joined, groups, [], result).result
    op.results[0].replace_all_uses_with(joined)
    for old in dict.fromkeys((op, view, join)):
        old.erase()
