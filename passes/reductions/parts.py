"""Rewriting a reduction as parts of it side by side, and what combines their results."""

from __future__ import annotations

from collections.abc import Sequence

from torch_mlir import ir
from torch_mlir.dialects import arith, tensor

from kitsune_mlir.dialects.access import affine_maps, dropped_dims, is_tensor, iterator_kinds, shape_of, static_ints
from kitsune_mlir.dialects.attribute_table import COMBINE, PARTIAL
from kitsune_mlir.dialects.deep import Steps, evaluate
from kitsune_mlir.dialects.iteration import is_free
from kitsune_mlir.dialects.products import body_of, defining_op, is_contraction, is_generic, yield_of
from kitsune_mlir.dialects.sizes import tensor_bytes

from .associative import NEUTRAL, Reduction, filled, generic

Cut = dict[tuple[ir.Value, tuple[bool, ...]], ir.Value]
"""Values that were cut, with the dimensions that were."""


def in_parts(reduction: Reduction, loop: int, parts: int, cut: Cut | None = None) -> list[ir.Value]:
    """Emit a reduction as `parts` reductions of neighbouring terms side by side, and one that combines their results.

    `parts` divides the extent of `loop`. The order of all combinations is fixed. Gives the values that the results become.
    `cut`: values that another reduction was given in the same parts; new ones are added.
    """
    op = reduction.op
    starts = []
    for result, combiner in zip(op.results, reduction.combiners, strict=True):
        element = ir.ShapedType(result.type).element_type
        starts.append(filled([parts, *shape_of(result)], element, NEUTRAL[combiner]))
    partial = evaluate(_with_part(op, loop, parts, starts, {} if cut is None else cut))
    partial.attributes[PARTIAL] = ir.UnitAttr.get()
    return _combined(reduction, partial)


def _with_part(op: ir.Operation, loop: int, parts: int, starts: Sequence[ir.Value], made: Cut) -> Steps[ir.Operation]:
    """A copy of a generic with one more loop, the first: it is the part of `loop`, which is as much shorter.

    What indexes by `loop` has two dimensions for it; a result that does not gets one more dimension in front.
    """
    loops, inputs = len(iterator_kinds(op)), len(op.operands) - len(op.results)
    later = ir.AffineMap.get(loops + 1, 0, [ir.AffineDimExpr.get(d + 1) for d in range(loops)])
    part = ir.AffineDimExpr.get(0)
    operands, maps = [], []
    for number, (value, map_) in enumerate(zip(op.operands, affine_maps(op), strict=True)):
        along = [isinstance(e, ir.AffineDimExpr) and e.position == loop for e in map_.results]
        expressions = []
        for expression, split in zip(map_.results, along, strict=True):
            expressions += [part, expression.compose(later)] if split else [expression.compose(later)]
        if number < inputs:
            operands.append((yield _cut(value, tuple(along), parts, made)))
        else:
            operands.append(starts[number - inputs])
            expressions = expressions if any(along) else [part, *expressions]
        maps.append(ir.AffineMap.get(loops + 1, 0, expressions))
    copy = op.clone().operation
    for number, value in enumerate(operands):
        copy.operands[number] = value
    for result, start in zip(copy.results, starts, strict=True):
        result.set_type(start.type)
    copy.attributes["indexing_maps"] = ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps])
    parallel = ir.Attribute.parse("#linalg.iterator_type<parallel>")
    copy.attributes["iterator_types"] = ir.ArrayAttr.get([parallel, *ir.ArrayAttr(op.attributes["iterator_types"])])
    _shift_indices(copy, loop, _extent(op, loop) // parts)
    return copy


def _combined(reduction: Reduction, partial: ir.Operation) -> list[ir.Value]:
    """The results of a reduction over the leading dimension of the partial results, from where the reduction starts."""
    values = []
    for number, combiner in enumerate(reduction.combiners):
        start = reduction.op.operands[reduction.inputs + number]
        rank = len(shape_of(start)) + 1
        whole = ir.AffineMap.get_identity(rank)
        inner = ir.AffineMap.get(rank, 0, [ir.AffineDimExpr.get(d) for d in range(1, rank)])
        op, block = generic([partial.results[number]], [start], [whole, inner], ["reduction", *["parallel"] * (rank - 1)])
        with ir.InsertionPoint(block):
            term, sum_ = block.arguments
            made = ir.Operation.create(combiner, [sum_.type], [sum_, term]).results[0]
            ir.Operation.create("linalg.yield", [], [made])
        op.attributes[COMBINE] = ir.UnitAttr.get()
        values.append(op.results[0])
    return values


def _extent(op: ir.Operation, loop: int) -> int:
    for value, map_ in zip(op.operands, affine_maps(op), strict=True):
        for extent, expression in zip(shape_of(value), map_.results, strict=True):
            if isinstance(expression, ir.AffineDimExpr) and expression.position == loop:
                return extent
    raise ValueError(f"no operand of {op.name} is indexed by loop {loop}")


def _cut(value: ir.Value, along: tuple[bool, ...], parts: int, made: Cut) -> Steps[ir.Value]:
    """A value with each dimension that is marked in `along` split into (parts, rest).

    What is made element by element is made again in this shape, so that it can be part of the reduction's stage; all else
    is seen in this shape where it lies. So is what a product's stage makes of its sums: made again, the sums had to be stored.
    """
    if not any(along):
        return value
    if (value, along) not in made:
        made[value, along] = yield _cut_apart(value, along, parts, made)
    return made[value, along]


def _cut_apart(value: ir.Value, along: tuple[bool, ...], parts: int, made: Cut) -> Steps[ir.Value]:
    shape: list[int] = []
    groups: list[list[int]] = []
    for extent, split in zip(shape_of(value), along, strict=True):
        new = [parts, extent // parts] if split else [extent]
        groups.append(list(range(len(shape), len(shape) + len(new))))
        shape += new
    maker = defining_op(value)
    element = ir.ShapedType(value.type).element_type
    if maker is not None and sum(along) == 1 and (loop := _elementwise_loop(maker, list(along).index(True))) is not None:
        if not _ends_a_product(maker):
            return (yield _with_part(maker, loop, parts, [tensor.empty(shape, element)], made)).results[0]
    if maker is not None and (source := _before_slice(maker, along, parts)) is not None:
        return source
    return tensor.ExpandShapeOp(ir.RankedTensorType.get(shape, element), value, groups, [], shape).result


def _before_slice(maker: ir.Operation, along: tuple[bool, ...], parts: int) -> ir.Value | None:
    """Neighbouring parts of a larger tensor, of which `maker` takes neighbouring rows: a view of that, and a slice.

    Stages read slices where they lie, and views of what is in memory; a view of a slice would be a copy.
    """
    if maker.name != "tensor.extract_slice" or len(maker.operands) > 1 or sum(along) > 1:
        return None
    starts, sizes, strides = (static_ints(maker, f"static_{name}") for name in ("offsets", "sizes", "strides"))
    source, dim = maker.operands[0], along.index(True)
    extents, rest = shape_of(source), sizes[dim] // parts
    others = [d for d in range(len(sizes)) if d != dim]
    if dropped_dims(maker) or any(stride != 1 for stride in strides) or any(sizes[d] != extents[d] for d in others):
        return None
    if extents[dim] % rest or starts[dim] % rest:
        return None

    def split(values: list[int], outer: int, inner: int) -> list[int]:
        return [*values[:dim], outer, inner, *values[dim + 1 :]]

    wide, kept = split(extents, extents[dim] // rest, rest), split(sizes, parts, rest)
    groups = [[d] if d < dim else [d, d + 1] if d == dim else [d + 1] for d in range(len(sizes))]
    element = ir.ShapedType(source.type).element_type
    view = tensor.ExpandShapeOp(ir.RankedTensorType.get(wide, element), source, groups, [], wide).result
    offsets = split(starts, starts[dim] // rest, 0)
    type_ = ir.RankedTensorType.get(kept, element)
    return tensor.ExtractSliceOp(type_, view, [], [], [], offsets, kept, [1] * len(kept)).result


def _ends_a_product(maker: ir.Operation) -> bool:
    """Whether an element-wise generic works on a product's sums, directly or through others, and its result is no wider."""
    result = maker.results[0]
    alike = [v for v in list(maker.operands)[:-1] if is_tensor(v) and shape_of(v) == shape_of(result)]
    if tensor_bytes(result.type) > max((tensor_bytes(v.type) for v in alike), default=0):
        return False
    todo, seen = alike, set[ir.Value]()
    while todo:
        value = todo.pop()
        op = defining_op(value)
        if op is None or value in seen:
            continue
        seen.add(value)
        if is_contraction(op):
            return True
        if is_generic(op) and set(iterator_kinds(op)) == {"parallel"}:
            todo += [v for v in list(op.operands)[: -len(op.results)] if is_tensor(v) and shape_of(v) == shape_of(result)]
    return False


def _elementwise_loop(op: ir.Operation, dim: int) -> int | None:
    """The loop that walks dimension `dim` of an element-wise generic's result; None for another op, or where inputs are
    walked by sums of loops."""
    if not is_generic(op) or len(op.results) != 1 or is_free(op) or set(iterator_kinds(op)) != {"parallel"}:
        return None
    *inputs, out = affine_maps(op)
    start = list(op.regions[0].blocks[0].arguments)[-1]
    if not out.is_permutation or list(start.uses) or yield_of(op).operands[0] == start:
        return None
    if not all(isinstance(e, ir.AffineDimExpr | ir.AffineConstantExpr) for map_ in inputs for e in map_.results):
        return None
    expression = out.results[dim]
    return expression.position if isinstance(expression, ir.AffineDimExpr) else None


def _shift_indices(copy: ir.Operation, loop: int, rest: int) -> None:
    """Positions that the body asks for: loops have new numbers, and that of the split loop counts from its part's start."""
    i64 = ir.IntegerType.get_signless(64)
    for inner in [o for o in body_of(copy) if o.name == "linalg.index"]:
        position = ir.IntegerAttr(inner.attributes["dim"]).value
        inner.attributes["dim"] = ir.IntegerAttr.get(i64, position + 1)
        if position != loop:
            continue
        uses = [(use.owner.operation, use.operand_number) for use in inner.results[0].uses]
        with ir.InsertionPoint.after(inner), inner.location:
            part = ir.Operation.create("linalg.index", [ir.IndexType.get()], [], {"dim": ir.IntegerAttr.get(i64, 0)}).results[0]
            start = arith.muli(part, arith.constant(ir.IndexType.get(), rest))
            whole = arith.addi(inner.results[0], start)
        for user, number in uses:
            user.operands[number] = whole
