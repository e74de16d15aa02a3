"""Maps on both sides of a reshape become one stage: both are written over dimensions that either shape is made of.

A group norm is computed over (samples, groups, elements) and scaled over (samples, channels, height, width). Between them is a
reshape that merges and splits dimensions, which one stage cannot hold: the normalised tensor is stored and read again. Over
(samples, groups, channels of a group, height, width) both are the same loops, and the reshapes are views of what they read and
write (MLIR's `linalg` folds reshapes by expansion in the same way).
"""

import math
from collections.abc import Sequence
from itertools import pairwise

from torch_mlir import ir
from torch_mlir.dialects import tensor

from kitsune_mlir.dialects.access import affine_maps, is_tensor, iterator_kinds, shape_of
from kitsune_mlir.dialects.attribute_table import NO_FUSION
from kitsune_mlir.dialects.cloning import clone_with
from kitsune_mlir.dialects.iteration import is_free, is_reshape, root_of
from kitsune_mlir.dialects.products import body_of, constant_fill, defining_op, is_generic
from kitsune_mlir.dialects.verify import captures
from kitsune_mlir.passes.layouts.by_index import filled
from kitsune_mlir.passes.remarks import remark

from .grouping import Grouping

__all__ = [
    "can_split",
    "common_factors",
    "is_map",
    "loops_of_reads",
    "merge_through_reshapes",
    "reassociation_of",
    "rewrite_over",
]

Factors = tuple[int, ...]
"""What a dimension is split into, outermost first."""


def common_factors(a: Sequence[int], b: Sequence[int]) -> tuple[list[Factors], list[Factors]] | None:
    """Factors of each dimension of two shapes of as many elements, so that both are made of the same ones in the same order.

    None where there are none, (2, 3) and (3, 2), and for shapes with dimensions of one element or none.
    """
    if math.prod(a) != math.prod(b) or min((*a, *b), default=1) < 2:
        return None
    bounds = sorted({*_bounds(a), *_bounds(b)})
    if any(outer % inner for inner, outer in pairwise(bounds)):
        return None
    return _factors(a, bounds), _factors(b, bounds)


def _bounds(shape: Sequence[int]) -> list[int]:
    """Elements in a step along each dimension, and in all."""
    return [math.prod(shape[n:]) for n in range(len(shape) + 1)]


def _factors(shape: Sequence[int], bounds: Sequence[int]) -> list[Factors]:
    found = []
    for outer, inner in pairwise(_bounds(shape)):
        steps = [bound for bound in bounds if inner <= bound <= outer]
        found.append(tuple(high // low for low, high in reversed(list(pairwise(steps)))))
    return found


def merge_through_reshapes(grouping: Grouping) -> bool:
    """Write groups of maps, and those that read them through a reshape alone, over common dimensions; whether there is any."""
    taken: set[int] = set()
    plans = []
    for a in grouping.members:
        found = _reader(grouping, a) if a not in taken else None
        if found is not None and found[0] not in taken and (plan := _planned(grouping, a, *found)) is not None:
            taken |= {a, found[0]}
            plans.append((plan, found[2].owner))
    for plan, reshape in plans:
        remark(reshape, "what makes it and what reads it are one stage")
        for op, loops in plan:
            with op.location:
                rewrite_over(op, loops)
    return bool(plans)


def _reader(grouping: Grouping, a: int) -> tuple[int, ir.Value, ir.Value] | None:
    """The group that reads, through reshapes, the one value of a group of maps that anything reads; what is made and read."""
    members = grouping.members[a]
    if not all(map(is_map, members)):
        return None
    ends = [op.results[0] for op in members if any(use.owner.operation not in members for use in op.results[0].uses)]
    if len(ends) != 1:
        return None
    value = ends[0]
    while len(users := list({hash(use.owner.operation): use.owner.operation for use in value.uses}.values())) == 1:
        if not is_reshape(users[0]):
            break
        value = users[0].results[0]
    groups = {grouping.group_of.get(hash(user)) for user in users}
    b = groups.pop() if len(groups) == 1 else None
    if b is None or value == ends[0] or value in grouping.returned or not all(map(is_map, grouping.members[b])):
        return None
    return b, ends[0], value


def is_map(op: ir.Operation) -> bool:
    """Whether an op is an element-wise generic that reads and writes rows of dimensions as they are, in any order."""
    if not is_generic(op) or len(op.results) != 1 or NO_FUSION in op.attributes or set(iterator_kinds(op)) - {"parallel"}:
        return False
    if any(name.startswith("kitsune.") for name in op.attributes) or any(map(is_tensor, captures(op))):
        return False
    if any(inner.name == "linalg.index" for inner in body_of(op)):
        return False
    return all(isinstance(e, ir.AffineDimExpr) for map_ in affine_maps(op) for e in map_.results)


def _planned(
    grouping: Grouping, a: int, b: int, made: ir.Value, read: ir.Value
) -> list[tuple[ir.Operation, list[Factors]]] | None:
    """The ops of two groups, and the factors of their loops."""
    factors = common_factors(shape_of(made), shape_of(read))
    if factors is None:
        return None
    plan = [(op, factors[0]) for op in grouping.members[a]]
    if not all(_has_dimensions_of(op, made) for op, _ in plan):
        return None
    known: dict[ir.Value, list[Factors]] = {read: factors[1]}
    for op in grouping.members[b]:
        loops = loops_of_reads(op, known)
        if loops is None:
            return None
        known[op.results[0]] = [loops[e.position] for e in affine_maps(op)[-1].results]
        plan.append((op, loops))
    return plan if all(can_split(op, loops) for op, loops in plan) else None


def can_split(op: ir.Operation, loops: list[Factors]) -> bool:
    """Whether a view can show what an op reads with its dimensions split: a slice or a constant lies in no memory."""
    for value, map_ in zip(op.operands, affine_maps(op), strict=True):
        maker = defining_op(root_of(value))
        split = any(len(loops[e.position]) > 1 for e in map_.results)
        if split and maker is not None and is_free(maker) and maker.name != "tensor.empty":
            return False
    return True


def _has_dimensions_of(op: ir.Operation, made: ir.Value) -> bool:
    """Whether an op's loops are the dimensions of `made`, in their order."""
    out = [e.position for e in affine_maps(op)[-1].results]
    return shape_of(op.results[0]) == shape_of(made) and out == list(range(len(iterator_kinds(op))))


def loops_of_reads(op: ir.Operation, known: dict[ir.Value, list[Factors]]) -> list[Factors] | None:
    """Factors of the loops of an op by those of what it reads; None where two disagree."""
    sizes: dict[int, int] = {}
    found: dict[int, Factors] = {}
    for value, map_ in zip(op.operands, affine_maps(op), strict=True):
        for n, e in enumerate(map_.results):
            sizes[e.position] = shape_of(value)[n]
            factors = known[value][n] if value in known else None
            if factors is not None and found.setdefault(e.position, factors) != factors:
                return None
    return [found.get(loop, (sizes[loop],)) for loop in range(len(iterator_kinds(op)))]


def rewrite_over(op: ir.Operation, loops: list[Factors]) -> ir.Value:
    """Write an op over the factors of its loops; what it gave is a view of what it gives now, which is returned."""
    starts = [sum(map(len, loops[:loop])) for loop in range(len(loops) + 1)]
    groups = [[e.position for e in map_.results] for map_ in affine_maps(op)]
    maps = [
        ir.AffineMap.get(
            starts[-1], 0, [ir.AffineDimExpr.get(d) for loop in group for d in range(starts[loop], starts[loop + 1])]
        )
        for group in groups
    ]
    old, kinds = op.results[0], ir.ArrayAttr(op.attributes["iterator_types"])
    with ir.InsertionPoint(op):
        operands = [_split(v, [loops[loop] for loop in group]) for v, group in zip(op.operands, groups, strict=True)]
        attributes = {
            "iterator_types": ir.ArrayAttr.get([kind for kind, one in zip(kinds, loops, strict=True) for _ in one]),
            "indexing_maps": ir.ArrayAttr.get([ir.AffineMapAttr.get(map_) for map_ in maps]),
            "operandSegmentSizes": op.attributes["operandSegmentSizes"],
        }
        new = ir.Operation.create("linalg.generic", [operands[-1].type], operands, attributes, regions=1)
        block, body = op.regions[0].blocks[0], new.regions[0].blocks
        places = [argument.type for argument in block.arguments]
        copied = body.append(*places, arg_locs=[ir.Location.current] * len(places))
        mapping = dict(zip(block.arguments, copied.arguments, strict=True))
        with ir.InsertionPoint(copied):
            for inner in block.operations:
                clone_with(inner.operation, mapping)
        result = new.results[0]
        if result.type != old.type:
            result = tensor.collapse_shape(old.type, result, reassociation_of([loops[loop] for loop in groups[-1]]))
    old.replace_all_uses_with(result)
    op.erase()
    return new.results[0]


def reassociation_of(factors: Sequence[Factors]) -> list[list[int]]:
    starts = [sum(map(len, factors[:n])) for n in range(len(factors) + 1)]
    return [list(range(low, high)) for low, high in pairwise(starts)]


def _split(value: ir.Value, factors: Sequence[Factors]) -> ir.Value:
    """A tensor with its dimensions split: what it is a view of, where that has these dimensions or can be split into them."""
    shape = [size for group in factors for size in group]
    type_ = ir.RankedTensorType(value.type)
    maker = defining_op(value)
    if maker is not None and maker.name == "tensor.empty":
        return tensor.empty(shape, type_.element_type)
    if (constant := constant_fill(maker)) is not None and shape != shape_of(value):
        return filled(shape, constant.attributes["value"])
    source = value
    while (maker := defining_op(source)) is not None and is_reshape(maker):
        source = maker.operands[0]
        if shape_of(source) == shape:
            return source
        split = common_factors(shape_of(source), shape)
        if split is not None and [size for group in split[0] for size in group] == shape:
            value, factors = source, split[0]
    if shape == shape_of(value):
        return value
    return tensor.expand_shape(ir.RankedTensorType.get(shape, type_.element_type), value, reassociation_of(factors), [], shape)
