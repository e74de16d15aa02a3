"""Slices of what an element-wise op makes, where nobody reads the rest: the op is done on slices of what it reads.

Only where each leaves out half of the elements or more. Other slices are read where they lie, and cost nothing.
"""

from __future__ import annotations

import math

from torch_mlir import ir
from torch_mlir.dialects import tensor

from kitsune_mlir.dialects.access import affine_maps, dropped_dims, is_tensor, iterator_kinds, shape_of, static_ints
from kitsune_mlir.dialects.cloning import clone_with
from kitsune_mlir.dialects.products import body_of, defining_op, is_generic, is_movement
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.passes.layouts.permute import order_of
from kitsune_mlir.passes.reductions.associative import generic

__all__ = ["slice_before_maps"]


def slice_before_maps(module: ir.Operation) -> None:
    """Move such slices before the ops, and before those that made what these read."""
    pending = [op for op in walk(module) if op.name == "tensor.extract_slice"]
    while pending:
        op = pending.pop()
        source = defining_op(op.operands[0])
        if source is None or not _is_map(source) or not (slices := _slices_of(source)) or not all(map(_leaves_out, slices)):
            continue
        pending = [one for one in pending if one not in slices]
        for one in slices:
            pending += _sliced(one, source)
        if not list(source.results[0].uses):
            source.erase()
    for op in [op for op in walk(module) if is_movement(op) and not body_of(op)]:
        _undone(op)


def _undone(op: ir.Operation) -> None:
    """Read what was there before it was moved away, where an op moves it back."""
    before = defining_op(op.operands[0])
    if before is None or not is_movement(before) or body_of(before):
        return
    away, back = order_of(before), order_of(op)
    if away is not None and back is not None and [away[dim] for dim in back] == sorted(away):
        op.results[0].replace_all_uses_with(before.operands[0])


def _slices_of(source: ir.Operation) -> list[ir.Operation]:
    """The slice that alone reads what an op makes; of what is only moved (queries, keys and values that one product made, with
    heads before rows; every other pixel of an image) several that have no more elements than there are. Empty where others read
    it, unless it is only moved: moving a part in place of the whole costs nothing."""
    users = [use.owner.operation for use in source.results[0].uses]
    slices = [user for user in users if user.name == "tensor.extract_slice"]
    if len(users) > 1 and not is_movement(source):
        return []
    users = slices
    if sum(math.prod(shape_of(user.results[0])) for user in users) > math.prod(shape_of(source.results[0])):
        return []
    return users


def _leaves_out(op: ir.Operation) -> bool:
    """Whether a static slice has at most half of the elements."""
    if len(op.operands) > 1:
        return False
    return 2 * math.prod(shape_of(op.results[0])) <= math.prod(shape_of(op.operands[0]))


def _is_map(op: ir.Operation) -> bool:
    """Whether an op makes each element from elements at its own place alone, wherever that is."""
    if not is_generic(op) or len(op.results) != 1 or any(kind != "parallel" for kind in iterator_kinds(op)):
        return False
    *given, made = affine_maps(op)
    if made != ir.AffineMap.get_identity(made.n_dims) or not all(map_.is_projected_permutation for map_ in given):
        return False
    return not any(inner.regions or inner.name in ("linalg.index", "tensor.extract", "cf.assert") for inner in body_of(op))


def _sliced(op: ir.Operation, source: ir.Operation) -> list[ir.Operation]:
    """Do `source` on slices; those that were made, and those that read what it makes now."""
    starts, sizes, steps = (static_ints(op, f"static_{name}") for name in ("offsets", "sizes", "strides"))
    kept = [dim for dim in range(len(sizes)) if dim not in dropped_dims(op)]
    made: list[ir.Operation] = []

    def part(value: ir.Value, dims: list[int]) -> ir.Value:
        taken, shape = [sizes[dim] for dim in dims], [sizes[dim] for dim in dims if dim in kept]
        if taken == shape_of(value) == shape:
            return value
        element, maker = ir.ShapedType(value.type).element_type, defining_op(value)
        if maker is not None and maker.name == "tensor.empty":
            return tensor.empty(shape, element)
        type_ = ir.RankedTensorType.get(shape, element)
        slice_ = tensor.ExtractSliceOp(type_, value, [], [], [], [starts[d] for d in dims], taken, [steps[d] for d in dims])
        made.append(slice_.operation)
        return slice_.result

    maps = affine_maps(source)
    dims = [[ir.AffineDimExpr(expression).position for expression in map_.results] for map_ in maps]
    with ir.InsertionPoint(op), op.location:
        *inputs, start = [part(v, d) if is_tensor(v) else v for v, d in zip(source.operands, dims, strict=True)]
        loops = [[ir.AffineDimExpr.get(kept.index(dim)) for dim in found if dim in kept] for found in dims]
        maps = [ir.AffineMap.get(len(kept), 0, found) for found in loops]
        new, block = generic(inputs, [start], maps, [iterator_kinds(source)[dim] for dim in kept])
    known = dict(zip(source.regions[0].blocks[0].arguments, block.arguments, strict=True))
    with ir.InsertionPoint(block):
        for inner in source.regions[0].blocks[0].operations:
            clone_with(inner.operation, known)
    op.results[0].replace_all_uses_with(new.results[0])
    op.erase()
    readers = (use.owner.operation for use in new.results[0].uses)
    return made + [one for one in readers if one.name == "tensor.extract_slice"]
