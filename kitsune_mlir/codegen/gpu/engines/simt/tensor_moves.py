"""Movement of tensors, seen from the elements of the result: where each comes from.

Every function takes an evaluator, an operation and coordinates of its result, and gives steps to the elements there.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.value import Value, select
from kitsune_mlir.codegen.gpu.engines.simt.affine_index import (
    Index,
    Linear,
    add,
    at,
    clamped,
    divmod_index,
    emit,
    scale,
    with_units,
)
from kitsune_mlir.codegen.gpu.engines.simt.cached import Coordinates, PointEvaluator
from kitsune_mlir.codegen.gpu.engines.simt.scalar_body import Lanes
from kitsune_mlir.dialects.access import reassociation, shape_of, static_ints
from kitsune_mlir.dialects.deep import Steps
from kitsune_mlir.dialects.tile_records import Offset
from kitsune_mlir.errors import UnsupportedError

__all__ = ["MOVES"]


def _tensor_cast(evaluator: PointEvaluator, op: ir.Operation, coordinates: Coordinates) -> Steps[Lanes]:
    return (yield evaluator.tensor_steps(op.operands[0], coordinates))


def _tensor_extract_slice(evaluator: PointEvaluator, op: ir.Operation, coordinates: Coordinates) -> Steps[Lanes]:
    dynamic = list(op.operands)[1:]
    offsets: list[Offset] = []
    for number in static_ints(op, "static_offsets"):
        offsets.append(dynamic.pop(0) if number == ir.ShapedType.get_dynamic_size() else number)
    full = with_units(coordinates, shape_of(op.results[0]), static_ints(op, "static_sizes"))
    strides = static_ints(op, "static_strides")
    where = tuple(add(scale(i, s), evaluator.outer(o)) for i, s, o in zip(full, strides, offsets, strict=True))
    return (yield evaluator.tensor_steps(op.operands[0], where))


def _tensor_expand_shape(evaluator: PointEvaluator, op: ir.Operation, coordinates: Coordinates) -> Steps[Lanes]:
    shape, where = shape_of(op.results[0]), []
    for group in reassociation(op):
        total: Index = Linear()
        for dim in group:
            total = add(scale(total, shape[dim]), coordinates[dim])
        where.append(total)
    return (yield evaluator.tensor_steps(op.operands[0], tuple(where)))


def _tensor_collapse_shape(evaluator: PointEvaluator, op: ir.Operation, coordinates: Coordinates) -> Steps[Lanes]:
    shape = shape_of(op.operands[0])
    where: list[Index] = [Linear()] * len(shape)
    for group, index in zip(reassociation(op), coordinates, strict=True):
        # The outermost one takes what is left, undivided: an index need not be known to lie below the extent.
        first, *others = [dim for dim in group if shape[dim] != 1] or group[:1]
        for dim in reversed(others):
            index, where[dim] = divmod_index(index, shape[dim], evaluator.width)
        where[first] = index
    return (yield evaluator.tensor_steps(op.operands[0], tuple(where)))


def _tensor_pad(evaluator: PointEvaluator, op: ir.Operation, coordinates: Coordinates) -> Steps[Lanes]:
    if len(op.operands) > 1:
        raise UnsupportedError(op.name, "static amounts", None, str(op.location))
    block = op.regions[0].blocks[0]
    fill = list(block.operations)[-1].operands[0]
    if isinstance(fill.owner, ir.Block) and fill.owner == block:
        raise UnsupportedError(op.name, "one value for all of the padding", None, str(op.location))
    low, high = static_ints(op, "static_low"), static_ints(op, "static_high")
    padded = [dim for dim, amounts in enumerate(zip(low, high, strict=True)) if amounts != (0, 0)]
    shape, found = shape_of(op.operands[0]), []
    scattered = any(isinstance(coordinates[d], tuple) or coordinates[d].lane for d in padded)
    for e in range(evaluator.width if scattered else 1):
        where = [at(c, e) for c in coordinates] if scattered else list(coordinates)
        inside: Value | None = None
        for dim in padded:
            inner = add(where[dim], -low[dim])
            assert isinstance(inner, Linear)
            here = emit(inner).below(shape[dim])
            inside = here if inside is None else inside & here
            where[dim] = clamped(inner, shape[dim] - 1)
        values = yield evaluator.tensor_steps(op.operands[0], tuple(where))
        other = evaluator.splat(fill)[0]
        found += values if inside is None else [select(inside, value, other) for value in values]
    return found


def _tensor_concat(evaluator: PointEvaluator, op: ir.Operation, coordinates: Coordinates) -> Steps[Lanes]:
    dim = ir.IntegerAttr(op.attributes["dim"]).value
    pieces = [(value, shape_of(value)[dim]) for value in op.operands]
    index = coordinates[dim]
    starts = [sum(size for _, size in pieces[:number]) for number in range(len(pieces))]
    if isinstance(index, Linear) and (span := index.range(evaluator.width)) is not None:
        # Pieces that the vector cannot reach are left out.
        chosen = [n for n, s in enumerate(starts) if span[0] < s + pieces[n][1] and span[1] >= s]
        pieces, starts = [pieces[n] for n in chosen], [starts[n] for n in chosen]
    uniform = isinstance(index, Linear) and index.lane <= 1
    if uniform and index.lane:
        period = math.gcd(index.multiple, *starts, *(size for _, size in pieces))
        uniform = period % evaluator.width == 0
    points = [index] if uniform else [at(index, e) for e in range(evaluator.width)]
    parts: list[Lanes] = []
    for e, point in enumerate(points):
        reach = evaluator.width - 1 if uniform and point.lane else 0
        base = Linear(point.terms, 0, point.const)
        found: Lanes | None = None
        for (value, size), start in reversed(list(zip(pieces, starts, strict=True))):
            inner = add(base, -start)
            assert isinstance(inner, Linear)
            if len(pieces) > 1:
                inner = clamped(inner, size - 1 - reach)
            inner = Linear(inner.terms, point.lane, inner.const)
            others = coordinates if uniform else [at(c, e) for c in coordinates]
            values = yield evaluator.tensor_steps(value, (*others[:dim], inner, *others[dim + 1 :]))
            if found is None:
                found = values
                continue
            inside = emit(base) < start + size
            count = max(len(values), len(found))
            found = [select(inside, values[n % len(values)], found[n % len(found)]) for n in range(count)]
        assert found is not None
        parts.append(found)
    return parts[0] if uniform else [part[0] for part in parts]


MOVES: dict[str, Callable[[PointEvaluator, ir.Operation, Coordinates], Steps[Lanes]]] = {
    "tensor.cast": _tensor_cast,
    "tensor.extract_slice": _tensor_extract_slice,
    "tensor.expand_shape": _tensor_expand_shape,
    "tensor.collapse_shape": _tensor_collapse_shape,
    "tensor.pad": _tensor_pad,
    "tensor.concat": _tensor_concat,
}
"""By the name of the operation."""
