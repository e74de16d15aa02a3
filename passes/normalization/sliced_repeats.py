"""Slices of what is repeated, of one repetition: slices of what there is to repeat.

An index that libraries expand to every column of what it scatters (`index[:, None].expand(-1, 64)`) comes back as its first
column. As a slice of the repeated tensor it would be written that often first. It may be a slice of a slice, and dimensions of
extent 1 may have been added to what was repeated (`index.view(-1, 1, 1).expand_as(messages)`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch_mlir import ir
from torch_mlir.dialects import tensor

from kitsune_mlir.dialects.access import affine_maps, dropped_dims, reassociation, shape_of, static_ints
from kitsune_mlir.dialects.products import body_of, defining_op, is_movement
from kitsune_mlir.dialects.verify import walk


@dataclass(frozen=True)
class _Slice:
    """A static slice of a tensor.

    Attributes:
        value: the tensor.
        starts, sizes, steps: along each of its dimensions.
        kept: the dimension that each one of the result shows; -1 for one of extent 1 that the tensor does not have.
    """

    value: ir.Value
    starts: Sequence[int]
    sizes: Sequence[int]
    steps: Sequence[int]
    kept: Sequence[int]


def slice_before_repeating(module: ir.Operation) -> None:
    """Let such slices read what is repeated."""
    for op in [op for op in walk(module) if op.name == "tensor.extract_slice" and len(op.operands) == 1]:
        part = _traced(_of(op))
        source = defining_op(part.value)
        if source is None or not is_movement(source) or body_of(source):
            continue
        given, result = affine_maps(source)
        if not given.is_projected_permutation or result != ir.AffineMap.get_identity(result.n_dims):
            continue
        read = [ir.AffineDimExpr(e).position for e in given.results]
        if not read or read != sorted(read) or any(size != 1 for dim, size in enumerate(part.sizes) if dim not in read):
            continue
        shape = shape_of(op.results[0])
        part_shape = [part.sizes[dim] for dim in part.kept if dim in read]
        if shape and not part_shape:
            continue
        starts, taken, steps = ([each[dim] for dim in read] for each in (part.starts, part.sizes, part.steps))
        type_ = ir.RankedTensorType.get(part_shape, ir.ShapedType(op.results[0].type).element_type)
        with ir.InsertionPoint(op), op.location:
            value = tensor.ExtractSliceOp(type_, source.operands[0], [], [], [], starts, taken, steps).result
            if part_shape != shape:
                value = tensor.ExpandShapeOp(op.results[0].type, value, _groups(part.kept, read), [], shape).result
        op.results[0].replace_all_uses_with(value)
        op.erase()


def _of(op: ir.Operation) -> _Slice:
    sizes, dropped = static_ints(op, "static_sizes"), dropped_dims(op)
    kept = [dim for dim in range(len(sizes)) if dim not in dropped]
    return _Slice(op.operands[0], static_ints(op, "static_offsets"), sizes, static_ints(op, "static_strides"), kept)


def _traced(part: _Slice) -> _Slice:
    """The slice as one of what its tensor is a static slice of, or had before dimensions of extent 1 were added."""
    maker = defining_op(part.value)
    if maker is not None and maker.name == "tensor.extract_slice" and len(maker.operands) == 1:
        before = _of(maker)
        starts, sizes, steps = list(before.starts), [1] * len(before.sizes), list(before.steps)
        for place, dim in enumerate(before.kept):
            starts[dim] += before.steps[dim] * part.starts[place]
            sizes[dim], steps[dim] = part.sizes[place], before.steps[dim] * part.steps[place]
        kept = [before.kept[place] if place >= 0 else -1 for place in part.kept]
        return _traced(_Slice(before.value, starts, sizes, steps, kept))
    if maker is not None and maker.name == "tensor.expand_shape":
        shape, groups = shape_of(part.value), reassociation(maker)
        if all(sum(shape[dim] != 1 for dim in group) <= 1 for group in groups):
            own = [max(group, key=lambda dim: shape[dim]) for group in groups]
            kept = [own.index(dim) if dim in own else -1 for dim in part.kept]
            starts, sizes, steps = ([each[dim] for dim in own] for each in (part.starts, part.sizes, part.steps))
            return _traced(_Slice(maker.operands[0], starts, sizes, steps, kept))
    return part


def _groups(kept: Sequence[int], read: Sequence[int]) -> list[list[int]]:
    """The result's dimensions that show each one of what is read: others, of extent 1, go with the one before."""
    groups: list[list[int]] = []
    for place, dim in enumerate(kept):
        if dim in read and (not groups or any(kept[p] in read for p in groups[-1])):
            groups.append([])
        groups = groups or [[]]
        groups[-1].append(place)
    return groups
