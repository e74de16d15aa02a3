"""Products with a sum of one term: every element is a factor of a row times one of a column, so they are element-wise work.

The gradient of a layer with one column is such a product, of the column's gradient and the layer's weight. As a product it is
a stage with a result of its own, rows x columns in f32; as element-wise work it is made where it is read.
"""

from torch_mlir import ir
from torch_mlir.dialects import arith, tensor

from kitsune_mlir.dialects.access import affine_maps, iterator_kinds, loop_sizes, shape_of
from kitsune_mlir.dialects.products import body_of, defining_op, fills_zero, is_projected_product
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.passes.reductions.associative import generic

__all__ = ["multiply_outer"]


def multiply_outer(module: ir.Operation) -> None:
    """Replace each such product of floats, from zero on, by a multiplication."""
    for op in [op for op in walk(module) if is_projected_product(op)]:
        kinds, sizes = iterator_kinds(op), loop_sizes(op)
        summed = [loop for loop, kind in enumerate(kinds) if kind == "reduction"]
        floats = any(inner.name == "arith.mulf" for inner in body_of(op))
        if not floats or any(sizes[loop] != 1 for loop in summed) or not fills_zero(defining_op(op.operands[2])):
            continue
        _replace(op, summed)


def _replace(op: ir.Operation, summed: list[int]) -> None:
    maps, element = affine_maps(op), ir.ShapedType(op.results[0].type).element_type
    kept = [loop for loop in range(len(iterator_kinds(op))) if loop not in summed]
    walked = [[ir.AffineDimExpr(e).position for e in map_.results] for map_ in maps]
    along = [
        ir.AffineMap.get(len(kept), 0, [ir.AffineDimExpr.get(kept.index(loop)) for loop in loops if loop in kept])
        for loops in walked
    ]
    with ir.InsertionPoint(op), op.location:
        factors = [
            _without(value, [dim for dim, loop in enumerate(loops) if loop in summed])
            for value, loops in zip(list(op.operands)[:2], walked, strict=False)
        ]
        made, block = generic(factors, [tensor.empty(shape_of(op.results[0]), element)], along, ["parallel"] * len(kept))
        with ir.InsertionPoint(block):
            wide = [v if v.type == element else arith.extf(element, v) for v in list(block.arguments)[:2]]
            ir.Operation.create("linalg.yield", [], [arith.mulf(*wide)])
    op.results[0].replace_all_uses_with(made.results[0])
    op.erase()


def _without(value: ir.Value, dims: list[int]) -> ir.Value:
    """A tensor without some dimensions, of extent 1: each is one with the dimension before it, the first with that after it."""
    shape = shape_of(value)
    if not dims:
        return value
    kept = [dim for dim in range(len(shape)) if dim not in dims]
    groups: list[list[int]] = [[] for _ in kept]
    for dim in range(len(shape)):
        if groups:
            groups[max(0, sum(one <= dim for one in kept) - 1)].append(dim)
    type_ = ir.RankedTensorType.get([shape[dim] for dim in kept], ir.ShapedType(value.type).element_type)
    return tensor.collapse_shape(type_, value, groups)
