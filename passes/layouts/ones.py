"""Views of a tensor with other dimensions of extent 1."""

from collections.abc import Sequence

from torch_mlir import ir
from torch_mlir.dialects import tensor

from kitsune_mlir.dialects.access import shape_of

__all__ = ["with_ones"]


def with_ones(value: ir.Value, shape: Sequence[int]) -> ir.Value:
    """A view of a tensor, not all of whose extents are 1, with the same other extents in `shape`: collapsed, then expanded."""
    element = ir.ShapedType(value.type).element_type
    narrow = ir.RankedTensorType.get([extent for extent in shape if extent != 1], element)
    result = ir.RankedTensorType.get(list(shape), element)
    if result == value.type:
        return value
    if narrow != value.type:
        value = tensor.CollapseShapeOp(narrow, value, _groups(shape_of(value))).result
    if narrow != result:
        value = tensor.ExpandShapeOp(result, value, _groups(list(shape)), [], list(shape)).result
    return value


def _groups(shape: list[int]) -> ir.ArrayAttr:
    """For each wide dimension, it and the ones before it; the last ones belong to the last group."""
    groups: list[list[int]] = [[]]
    for dim in range(len(shape)):
        if groups[-1] and shape[groups[-1][-1]] != 1 and any(size != 1 for size in shape[dim:]):
            groups.append([])
        groups[-1].append(dim)
    i64 = ir.IntegerType.get_signless(64)
    return ir.ArrayAttr.get([ir.ArrayAttr.get([ir.IntegerAttr.get(i64, dim) for dim in group]) for group in groups])
