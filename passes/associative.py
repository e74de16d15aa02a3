"""Reductions that may be done in parts: which operation combines terms, its neutral element, and both as IR."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch_mlir import ir
from torch_mlir.dialects import arith, tensor

from kitsune_mlir.dialects.access import access_of, affine_maps, iterator_kinds, shape_of
from kitsune_mlir.dialects.products import body_of, is_generic, yield_of

NEUTRAL: dict[str, float | str] = {
    "arith.addf": 0.0, "arith.addi": 0, "arith.mulf": 1.0, "arith.muli": 1,
    "arith.maximumf": -math.inf, "arith.maxnumf": -math.inf, "arith.minimumf": math.inf, "arith.minnumf": math.inf,
    "arith.maxsi": "least", "arith.maxui": 0, "arith.minsi": "most", "arith.minui": -1,
    "arith.ori": 0, "arith.andi": -1, "arith.xori": 0,
}  # fmt: skip
"""Combiners that may take terms in any order, and what changes nothing under them ("least", "most": of signed integers).

Floating-point addition and multiplication are so up to rounding, which PyTorch's own sums leave open too.
"""


@dataclass(frozen=True)
class Reduction:
    """A generic all of whose results are reductions: `result[i] = combiners[i](result[i], term)`."""

    op: ir.Operation
    combiners: tuple[str, ...]

    @property
    def inputs(self) -> int:
        """How many of the operands are read; the others are what the results start from."""
        return len(self.op.operands) - len(self.op.results)


def reduction_of(op: ir.Operation) -> Reduction | str | None:
    """The reduction that an op is; why it may not be done in parts; None where it reduces nothing."""
    if not is_generic(op) or "reduction" not in iterator_kinds(op):
        return None
    count = len(op.results)
    starts = list(op.regions[0].blocks[0].arguments)[-count:]
    combiners = []
    for number, made in enumerate(yield_of(op).operands):
        inner = made.owner if isinstance(made, ir.OpResult) else None
        if inner is None or inner.operation not in body_of(op) or inner.name not in NEUTRAL:
            return f"its result {number} is no sum, product, maximum or minimum of terms"
        if list(inner.operands).count(starts[number]) != 1 or len(list(starts[number].uses)) != 1:
            return f"a term of its result {number} depends on the terms before"
        combiners.append(inner.name)
    for map_ in affine_maps(op)[-count:]:
        if not map_.is_projected_permutation:
            return "its result is not indexed by plain loops"
    return Reduction(op, tuple(combiners))


def splittable_loop(reduction: Reduction) -> tuple[int, int] | None:
    """The longest loop of a reduction that is summed over and indexes operands by itself; (loop, extent)."""
    op = reduction.op
    extents: dict[int, int] = {}
    mixed: set[int] = set()
    for value, map_ in zip(op.operands, affine_maps(op), strict=True):
        for extent, expression in zip(shape_of(value), map_.results, strict=True):
            if isinstance(expression, ir.AffineDimExpr):
                extents[expression.position] = extent
            else:
                mixed |= {loop for loop in range(map_.n_dims) if expression.is_function_of_dim(loop)}
    sums = [loop for loop, kind in enumerate(iterator_kinds(op)) if kind == "reduction"]
    found = [(extents[loop], loop) for loop in sums if loop in extents and loop not in mixed]
    if not found:
        return None
    extent, loop = max(found)
    return loop, extent


def constant_like(element: ir.Type, value: float | str) -> ir.Value:
    """A scalar constant of an element type at the insertion point."""
    if isinstance(element, ir.IntegerType):
        width = element.width
        number = {"least": -(1 << (width - 1)), "most": (1 << (width - 1)) - 1}.get(str(value), value)
        if width == 1:
            number = int(bool(number))
        return arith.constant(element, int(number))
    return arith.constant(element, float(value))


def generic(
    inputs: Sequence[ir.Value], starts: Sequence[ir.Value], maps: Sequence[ir.AffineMap], kinds: Sequence[str]
) -> tuple[ir.Operation, ir.Block]:
    """A linalg.generic without a body yet, and its block; its results have the types of `starts`."""
    values = [*inputs, *starts]
    elements = [ir.ShapedType(v.type).element_type for v in values]
    attributes = {
        "indexing_maps": ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps]),
        "iterator_types": ir.ArrayAttr.get([ir.Attribute.parse(f"#linalg.iterator_type<{kind}>") for kind in kinds]),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(inputs), len(starts)]),
    }
    op = ir.Operation.create("linalg.generic", [v.type for v in starts], values, attributes, regions=1)
    return op, op.regions[0].blocks.append(*elements, arg_locs=[ir.Location.current] * len(elements))


def filled(shape: Sequence[int], element: ir.Type, value: float | str) -> ir.Value:
    """A tensor of one value, as the planning passes know fills."""
    number = constant_like(element, value)
    empty = tensor.empty(list(shape), element)
    op, block = generic([], [empty], [ir.AffineMap.get_identity(len(shape))], ["parallel"] * len(shape))
    with ir.InsertionPoint(block):
        ir.Operation.create("linalg.yield", [], [number])
    return op.results[0]


def in_parts(reduction: Reduction, loop: int, parts: int) -> list[ir.Value]:
    """Emit a reduction as `parts` reductions of neighbouring terms side by side, and one that combines their results.

    `parts` divides the extent of `loop`. The order of all combinations is fixed. Gives the values that the results become.
    """
    op = reduction.op
    kinds, count = iterator_kinds(op), len(op.results)
    copy_operands, maps = [], []
    rank = len(kinds) + 1
    for value, map_ in list(zip(op.operands, affine_maps(op), strict=True))[: reduction.inputs]:
        along = [isinstance(e, ir.AffineDimExpr) and e.position == loop for e in map_.results]
        expressions = []
        for expression, split in zip(map_.results, along, strict=True):
            shifted = expression.compose(_shift(len(kinds)))
            expressions += [ir.AffineDimExpr.get(0), shifted] if split else [shifted]
        copy_operands.append(_cut(value, along, parts))
        maps.append(ir.AffineMap.get(rank, 0, expressions))
    for number, map_ in enumerate(affine_maps(op)[-count:]):
        shape, element = shape_of(op.results[number]), ir.ShapedType(op.results[number].type).element_type
        copy_operands.append(filled([parts, *shape], element, NEUTRAL[reduction.combiners[number]]))
        shifted = [e.compose(_shift(len(kinds))) for e in map_.results]
        maps.append(ir.AffineMap.get(rank, 0, [ir.AffineDimExpr.get(0), *shifted]))
    partial = op.clone().operation
    for number, value in enumerate(copy_operands):
        partial.operands[number] = value
    for result, value in zip(partial.results, copy_operands[-count:], strict=True):
        result.set_type(value.type)
    partial.attributes["indexing_maps"] = ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps])
    parallel = ir.Attribute.parse("#linalg.iterator_type<parallel>")
    partial.attributes["iterator_types"] = ir.ArrayAttr.get([parallel, *ir.ArrayAttr(op.attributes["iterator_types"])])
    _shift_indices(partial, loop, _extent(op, loop) // parts)
    partial.attributes[PARTIAL] = ir.UnitAttr.get()
    return _combined(reduction, partial)


PARTIAL, COMBINE = "kitsune.partial", "kitsune.combine"
"""Marks of the two halves of a reduction in parts: `kitsune-form-stages` leaves what goes between them in memory."""


def keeps_apart(producer: Sequence[ir.Operation], consumer: Sequence[ir.Operation]) -> str | None:
    """Why two groups of ops stay stages of their own, because one has a half of a reduction in parts; None if none has.

    Between the halves, and after the second where more points are walked than it has results, joining would take back the
    tiles that the parts have given.
    """
    if any(PARTIAL in op.attributes for op in producer) and any(COMBINE in op.attributes for op in consumer):
        return "its parts are combined when all are there"
    ends = [op for op in producer if COMBINE in op.attributes]
    points = max((math.prod(shape_of(op.results[0])) for op in ends), default=0)
    if ends and any(is_generic(op) and math.prod(_points(op)) > points for op in consumer):
        return "what a reduction in parts gives is read by more tiles than it has"
    return None


def _points(op: ir.Operation) -> tuple[int, ...]:
    access = access_of(op)
    return access.sizes if access is not None else ()


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


def _shift(loops: int) -> ir.AffineMap:
    """Loop d becomes loop d + 1: loop 0 is the part."""
    return ir.AffineMap.get(loops + 1, 0, [ir.AffineDimExpr.get(d + 1) for d in range(loops)])


def _extent(op: ir.Operation, loop: int) -> int:
    for value, map_ in zip(op.operands, affine_maps(op), strict=True):
        for extent, expression in zip(shape_of(value), map_.results, strict=True):
            if isinstance(expression, ir.AffineDimExpr) and expression.position == loop:
                return extent
    raise ValueError(f"no operand of {op.name} is indexed by loop {loop}")


def _cut(value: ir.Value, along: Sequence[bool], parts: int) -> ir.Value:
    """A value with each dimension that is marked in `along` split into (parts, rest)."""
    if not any(along):
        return value
    shape: list[int] = []
    groups: list[list[int]] = []
    for extent, split in zip(shape_of(value), along, strict=True):
        new = [parts, extent // parts] if split else [extent]
        groups.append(list(range(len(shape), len(shape) + len(new))))
        shape += new
    type_ = ir.RankedTensorType.get(shape, ir.ShapedType(value.type).element_type)
    return tensor.ExpandShapeOp(type_, value, groups, [], shape).result


def _shift_indices(partial: ir.Operation, loop: int, rest: int) -> None:
    """Positions that the body asks for: loops have new numbers, and that of the split loop counts from its part's start."""
    for inner in [o for o in body_of(partial) if o.name == "linalg.index"]:
        position = ir.IntegerAttr(inner.attributes["dim"]).value
        i64 = ir.IntegerType.get_signless(64)
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
