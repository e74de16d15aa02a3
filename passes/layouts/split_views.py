"""Images with split dimensions (parts of a group norm's rows): views of images whose channels lie innermost."""

from collections.abc import Mapping, Sequence

from torch_mlir import ir
from torch_mlir.dialects import tensor

from kitsune_mlir.dialects.access import affine_maps, reassociation, shape_of

from .nhwc import rebuilt
from .permute import permuted

__all__ = ["Form", "read_forms", "split_view"]

Form = tuple[ir.Value, Sequence[int]]
"""A value in another order of dimensions: dimension i of it is dimension order[i] of the value that it stands for."""


def split_view(expand: ir.Operation, form: Form) -> Form:
    """What a tensor.expand_shape of a value makes of the value's other form, at the insertion point."""
    value, order = form
    shape, groups = shape_of(expand.results[0]), permuted(reassociation(expand), order)
    dims = [dim for group in groups for dim in group]
    places = [[dims.index(dim) for dim in group] for group in groups]
    wide = permuted(shape, dims)
    made = tensor.expand_shape(ir.RankedTensorType.get(wide, ir.ShapedType(value.type).element_type), value, places, [], wide)
    return made, dims


def read_forms(op: ir.Operation, forms: Mapping[ir.Value, Form]) -> None:
    """Let a linalg.generic read values in other forms, by permuted maps, where the op itself stays as it is."""
    maps, operands = affine_maps(op), list(op.operands)
    for number, value in enumerate(operands[: len(operands) - len(op.results)]):
        if value in forms:
            operands[number], order = forms[value]
            maps[number] = ir.AffineMap.get(maps[number].n_dims, 0, permuted(list(maps[number].results), order))
    new = rebuilt(op, operands, maps, [result.type for result in op.results])
    for old, made in zip(op.results, new.results, strict=True):
        old.replace_all_uses_with(made)
    op.erase()
