"""Slices of what is repeated, of one repetition: slices of what there is to repeat.

An index that libraries expand to every column of what it scatters (`index[:, None].expand(-1, 64)`) comes back as its first
column. As a slice of the repeated tensor it would be written that often first.
"""

from torch_mlir import ir
from torch_mlir.dialects import tensor

from kitsune_mlir.dialects.access import affine_maps, dropped_dims, shape_of, static_ints
from kitsune_mlir.dialects.products import body_of, defining_op, is_movement
from kitsune_mlir.dialects.verify import walk


def slice_before_repeating(module: ir.Operation) -> None:
    """Let such slices read what is repeated."""
    for op in [op for op in walk(module) if op.name == "tensor.extract_slice" and len(op.operands) == 1]:
        source = defining_op(op.operands[0])
        if source is None or not is_movement(source) or body_of(source):
            continue
        given, result = affine_maps(source)
        if not given.is_projected_permutation or result != ir.AffineMap.get_identity(result.n_dims):
            continue
        read = [ir.AffineDimExpr(e).position for e in given.results]
        sizes = static_ints(op, "static_sizes")
        if not read or read != sorted(read) or any(size != 1 for dim, size in enumerate(sizes) if dim not in read):
            continue
        starts, taken, steps = (
            [static_ints(op, f"static_{word}")[d] for d in read] for word in ("offsets", "sizes", "strides")
        )
        shape = shape_of(op.results[0])
        kept = [dim for dim in range(len(sizes)) if dim not in dropped_dims(op)]
        element = ir.ShapedType(op.results[0].type).element_type
        part_shape = [sizes[dim] for dim in kept if dim in read]
        type_ = ir.RankedTensorType.get(part_shape, element)
        with ir.InsertionPoint(op), op.location:
            value = tensor.ExtractSliceOp(type_, source.operands[0], [], [], [], starts, taken, steps).result
            if part_shape != shape:
                value = tensor.ExpandShapeOp(op.results[0].type, value, _groups(kept, read), [], shape).result
        op.results[0].replace_all_uses_with(value)
        op.erase()


def _groups(kept: list[int], read: list[int]) -> list[list[int]]:
    """The result's dimensions that show each one of what is read: others, of extent 1, go with the one before."""
    groups: list[list[int]] = []
    for place, dim in enumerate(kept):
        if dim in read and (not groups or any(kept[p] in read for p in groups[-1])):
            groups.append([])
        groups = groups or [[]]
        groups[-1].append(place)
    return groups
