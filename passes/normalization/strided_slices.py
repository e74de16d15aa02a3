"""Every other row of a large tensor, as a part of a tensor that has these rows in a dimension of their own.

Tiles go along dimensions that are taken whole, or from a place on; along one of which every other number is taken they do not,
and each walks all of it. What a convolution with a step and one tap reads (`image[:, ::2, ::2]`) is such a slice.
"""

from __future__ import annotations

from torch_mlir import ir
from torch_mlir.dialects import tensor

from kitsune_mlir.dialects.access import dropped_dims, shape_of, static_ints
from kitsune_mlir.dialects.products import defining_op
from kitsune_mlir.dialects.sizes import tensor_bytes
from kitsune_mlir.dialects.verify import walk

__all__ = ["part_steps"]

LEAST_BYTES = 1 << 20
"""Of a slice: of smaller ones one block may walk what it likes."""


def part_steps(module: ir.Operation) -> None:
    """Rewrite such slices, those of slices as one, where the steps divide what they go along, but for the last dimension."""
    found = [op for op in walk(module) if op.name == "tensor.extract_slice" and len(op.operands) == 1]
    large = [op for op in found if tensor_bytes(op.results[0].type) >= LEAST_BYTES]
    for op in [_of_whole(op) for op in reversed(large)]:  # the last first: what it was made of may be nobody's then
        if list(op.results[0].uses):
            _part(op)
        else:
            op.erase()


def _box(op: ir.Operation) -> tuple[list[int], list[int], list[int]]:
    """Offsets, sizes and strides."""
    offsets, sizes, strides = (static_ints(op, f"static_{name}") for name in ("offsets", "sizes", "strides"))
    return offsets, sizes, strides


def _of_whole(op: ir.Operation) -> ir.Operation:
    """A slice of what its operand is a slice of, in its place; itself where its operand is none that keeps all dimensions."""
    before = defining_op(op.operands[0])
    if before is None or before.name != "tensor.extract_slice" or len(before.operands) > 1 or dropped_dims(before):
        return op
    (first, _, steps), (offsets, sizes, strides) = _box(before), _box(op)
    starts = [start + step * offset for start, step, offset in zip(first, steps, offsets, strict=True)]
    both = [step * stride for step, stride in zip(steps, strides, strict=True)]
    with ir.InsertionPoint(op), op.location:
        new = tensor.ExtractSliceOp(op.results[0].type, before.operands[0], [], [], [], starts, sizes, both).operation
    op.results[0].replace_all_uses_with(new.results[0])
    op.erase()
    return new


def _part(op: ir.Operation) -> None:
    offsets, sizes, strides = _box(op)
    shape = shape_of(op.operands[0])
    stepped = [dim for dim, stride in enumerate(strides) if stride > 1]
    if not stepped or strides[-1] > 1 or dropped_dims(op):
        return
    if any(shape[dim] != sizes[dim] * strides[dim] or offsets[dim] >= strides[dim] for dim in stepped):
        return
    parted, starts, taken, groups = list[int](), list[int](), list[int](), list[list[int]]()
    for dim, extent in enumerate(shape):
        groups.append([len(parted)])
        if dim in stepped:
            groups[-1].append(len(parted) + 1)
            parted, starts, taken = [*parted, sizes[dim], strides[dim]], [*starts, 0, offsets[dim]], [*taken, sizes[dim], 1]
        else:
            parted, starts, taken = [*parted, extent], [*starts, offsets[dim]], [*taken, sizes[dim]]
    element = ir.ShapedType(op.results[0].type).element_type
    with ir.InsertionPoint(op), op.location:
        wide = tensor.expand_shape(ir.RankedTensorType.get(parted, element), op.operands[0], groups, [], parted)
        new = tensor.ExtractSliceOp(op.results[0].type, wide, [], [], [], starts, taken, [1] * len(parted))
    op.results[0].replace_all_uses_with(new.result)
    op.erase()
