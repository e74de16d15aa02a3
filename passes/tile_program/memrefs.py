"""Memrefs of the tile program: types, windows and reshaped views of contiguous buffers; constants beside them."""

import math
from collections.abc import Collection

from torch_mlir import ir
from torch_mlir.dialects import arith, memref

from kitsune_mlir.dialects.access import reassociation

from .tiling import DYNAMIC

__all__ = ["flattened", "i64", "index", "memref_of", "reshape", "rows_of", "shape_of_type", "subview"]


def i64(value: int) -> ir.Attribute:
    """An i64 attribute."""
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def index(value: int) -> ir.Value:
    """An index constant at the insertion point."""
    return arith.constant(ir.IndexType.get(), value)


def memref_of(type_: ir.Type) -> ir.Type:
    """The contiguous memref type of a tensor type."""
    return ir.MemRefType.get(list(ir.ShapedType(type_).shape), ir.ShapedType(type_).element_type)


def subview(buffer: ir.Value, offsets: list[ir.Value | int], sizes: list[int], dropped: Collection[int] = ()) -> ir.Value:
    """memref.subview of a contiguous memref with unit strides; dimensions `dropped`, of extent 1, are left out."""
    shape = list(ir.ShapedType(buffer.type).shape)
    strides = [1] * len(shape)
    for d in reversed(range(len(shape) - 1)):
        strides[d] = strides[d + 1] * shape[d + 1]
    dynamic = [o for o in offsets if not isinstance(o, int)]
    static = [o if isinstance(o, int) else DYNAMIC for o in offsets]
    kept = [d for d in range(len(sizes)) if d not in dropped]
    if dynamic:
        start = ir.ShapedType.get_dynamic_stride_or_offset()
    else:
        start = sum(o * stride for o, stride in zip(static, strides, strict=True))
    layout = ir.StridedLayoutAttr.get(start, [strides[d] for d in kept])
    type_ = ir.MemRefType.get([sizes[d] for d in kept], ir.ShapedType(buffer.type).element_type, layout)
    return memref.SubViewOp(type_, buffer, dynamic, [], [], static, sizes, [1] * len(shape)).result


def reshape(buffer: ir.Value, tensor_type: ir.Type, view: ir.Operation, undo: bool) -> ir.Value:
    """The memref form of a tensor reshape `view` (or of its inverse), giving a memref of `tensor_type`'s shape."""
    expand = (view.name == "tensor.expand_shape") != undo
    type_ = memref_of(tensor_type)
    groups = reassociation(view)
    if expand:
        return memref.ExpandShapeOp(type_, buffer, groups, [], shape_of_type(tensor_type)).result
    return memref.CollapseShapeOp(type_, buffer, groups).result


def flattened(buffer: ir.Value) -> ir.Value:
    """A contiguous memref as one of a single dimension."""
    type_ = ir.ShapedType(buffer.type)
    shape = list(type_.shape)
    flat = ir.MemRefType.get([math.prod(shape)], type_.element_type)
    return memref.CollapseShapeOp(flat, buffer, [list(range(len(shape)))]).result


def shape_of_type(type_: ir.Type) -> list[int]:
    """The static shape of a shaped type."""
    return list(ir.ShapedType(type_).shape)


def rows_of(buffer: ir.Value, offset: ir.Value, rows: int, rank: int = 1) -> ir.Value:
    """Rows [offset, offset + rows) of a buffer as a tensor of a rank: without dimensions of extent 1 after the first."""
    shape = shape_of_type(buffer.type)
    dropped = range(1, 1 + len(shape) - rank)
    view = subview(buffer, [offset, *[0] * (len(shape) - 1)], [rows, *shape[1:]], dropped)
    type_ = ir.RankedTensorType.get(shape_of_type(view.type), ir.ShapedType(view.type).element_type)
    return ir.Operation.create("bufferization.to_tensor", [type_], [view], {"restrict": ir.UnitAttr.get()}).results[0]
