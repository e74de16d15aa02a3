"""Slices of what an element-wise op makes, where nobody reads the rest: the op is done on slices of what it reads.

Only where that leaves out half of the elements or more. Other slices are read where they lie, and cost nothing.
"""

from __future__ import annotations

import math

from torch_mlir import ir
from torch_mlir.dialects import tensor

from kitsune_mlir.dialects.access import affine_maps, dropped_dims, is_tensor, iterator_kinds, shape_of, static_ints
from kitsune_mlir.dialects.cloning import clone_with
from kitsune_mlir.dialects.products import body_of, defining_op, is_generic
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.passes.reductions.associative import generic

__all__ = ["slice_before_maps"]


def slice_before_maps(module: ir.Operation) -> None:
    """Move such slices before the ops, and before those that made what these read."""
    pending = [op for op in walk(module) if op.name == "tensor.extract_slice"]
    while pending:
        op = pending.pop()
        source = defining_op(op.operands[0])
        if source is not None and _leaves_out(op) and _is_map(source) and len(list(source.results[0].uses)) == 1:
            pending += _sliced(op, source)


def _leaves_out(op: ir.Operation) -> bool:
    """Whether a static slice has at most half of the elements, and all of the dimensions."""
    if len(op.operands) > 1 or dropped_dims(op):
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
    """Do `source` on slices; those that were made."""
    starts, sizes, steps = (static_ints(op, f"static_{name}") for name in ("offsets", "sizes", "strides"))
    made: list[ir.Operation] = []

    def part(value: ir.Value, dims: list[int]) -> ir.Value:
        taken = [sizes[dim] for dim in dims]
        if taken == shape_of(value):
            return value
        element, maker = ir.ShapedType(value.type).element_type, defining_op(value)
        if maker is not None and maker.name == "tensor.empty":
            return tensor.empty(taken, element)
        type_ = ir.RankedTensorType.get(taken, element)
        slice_ = tensor.ExtractSliceOp(type_, value, [], [], [], [starts[d] for d in dims], taken, [steps[d] for d in dims])
        made.append(slice_.operation)
        return slice_.result

    dims = [[ir.AffineDimExpr(expression).position for expression in map_.results] for map_ in affine_maps(source)]
    with ir.InsertionPoint(op), op.location:
        *inputs, start = [part(v, d) if is_tensor(v) else v for v, d in zip(source.operands, dims, strict=True)]
        new, block = generic(inputs, [start], affine_maps(source), iterator_kinds(source))
    known = dict(zip(source.regions[0].blocks[0].arguments, block.arguments, strict=True))
    with ir.InsertionPoint(block):
        for inner in source.regions[0].blocks[0].operations:
            clone_with(inner.operation, known)
    op.results[0].replace_all_uses_with(new.results[0])
    op.erase()
    source.erase()
    return made
