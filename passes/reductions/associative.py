"""Reductions that may be done in parts: which operation combines terms, its neutral element, and what marks the halves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch_mlir import ir
from torch_mlir.dialects import arith, tensor

from kitsune_mlir.dialects.access import access_of, affine_maps, is_tensor, iterator_kinds, loop_sizes, loops_in, shape_of
from kitsune_mlir.dialects.attribute_table import COMBINE, PARTIAL
from kitsune_mlir.dialects.products import body_of, defining_op, is_generic, yield_of

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
    indices = [index for map_ in affine_maps(op) for index in map_.results]
    mixed = {loop for index in indices if not isinstance(index, ir.AffineDimExpr) for loop in loops_in(index)}
    kinds, extents = iterator_kinds(op), loop_sizes(op, unknown=-1)
    sums = [loop for loop, kind in enumerate(kinds) if kind == "reduction" and extents[loop] >= 0 and loop not in mixed]
    extent, loop = max(((extents[loop], loop) for loop in sums), default=(0, -1))
    return (loop, extent) if sums else None


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
    elements = [ir.ShapedType(v.type).element_type if is_tensor(v) else v.type for v in values]
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


def keeps_apart(producer: Sequence[ir.Operation], consumer: Sequence[ir.Operation]) -> str | None:
    """Why two groups of ops stay stages of their own, because one has a half of a reduction in parts; None if none has.

    Between the halves, and after the second where more points are walked than it has results, joining would take back the
    tiles that the parts have given.
    """
    combining = [op for op in consumer if COMBINE in op.attributes]
    if combining and (any(PARTIAL in op.attributes for op in producer) or any(_combines(op, producer) for op in combining)):
        return "its parts are combined when all are there"
    ends = [op for op in producer if COMBINE in op.attributes]
    points = max((math.prod(shape_of(op.results[0])) for op in ends), default=0)
    if ends and any(is_generic(op) and _tiled_points(op) > points for op in consumer):
        return "what a reduction in parts gives is read by more tiles than it has"
    return None


def _combines(op: ir.Operation, producer: Sequence[ir.Operation]) -> bool:
    """Whether an op combines what a reduction among others makes: one that maps were joined to has no `PARTIAL` any more."""
    makers = [maker for value in op.operands if (maker := defining_op(value)) is not None and maker in producer]
    return any(is_generic(maker) and "reduction" in iterator_kinds(maker) for maker in makers)


def _tiled_points(op: ir.Operation) -> int:
    """Points that an op walks; of one that combines parts, which a tile goes over, those of its results."""
    access = access_of(op)
    if COMBINE in op.attributes or access is None:
        return math.prod(shape_of(op.results[0]))
    return math.prod(access.sizes)
