"""Reductions over the columns of a row: each thread over its pairs, then the four lanes that share the row."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.builder import shuffle_xor
from kitsune_mlir.codegen.gpu.chain_lanes import Lanes
from kitsune_mlir.codegen.gpu.chain_match import NEUTRAL, Step, combination
from kitsune_mlir.codegen.gpu.mma_match import COL
from kitsune_mlir.codegen.gpu.value import Value, constant, select, wrap
from kitsune_mlir.dialects.access import affine_maps, shape_of

if TYPE_CHECKING:
    from kitsune_mlir.codegen.gpu.chain_eval import Evaluator, Place

__all__ = ["reduce_row", "reduced_cols"]

PARTS = 4
"""Independent running results of a thread, so that one addition need not wait for the one before."""


def reduced_cols(step: Step, sides: tuple[str, ...]) -> int:
    """Columns that a reduction runs over."""
    maps = affine_maps(step.op)
    for number in step.operands:
        for expression, extent in zip(maps[number].results, shape_of(step.op.operands[number]), strict=True):
            if isinstance(expression, ir.AffineDimExpr) and sides[expression.position] == COL:
                return extent
    return 1


def reduce_row(evaluator: Evaluator, step: Step, place: Place) -> Lanes:
    """The result of a reduction for the row of `place`, the same on the four lanes."""
    op = step.op
    combine, element = combination(op)
    cols = reduced_cols(step, evaluator.chain.sides[op])
    neutral = NEUTRAL[combine.name]
    parts: list[Value] = []
    count = 0
    for block in range(-(-cols // 8)):
        at = dataclasses.replace(place, block=block)
        lanes = evaluator.inner(op, element, at)
        for lane in range(2):
            value = lanes.at(lane)
            if 8 * block + 8 > cols:
                value = select(evaluator.memory.col(at) + lane < cols, value, constant(neutral, value.type))
            if len(parts) < PARTS:
                parts.append(value)
            else:
                parts[count % PARTS] = _combine(combine, parts[count % PARTS], value)
            count += 1
    while len(parts) > 1:
        parts = [_combine(combine, parts[i], parts[i + 1]) if i + 1 < len(parts) else parts[i] for i in range(0, len(parts), 2)]
    result = parts[0]
    for distance in (1, 2):
        result = _combine(combine, result, shuffle_xor(result, distance))
    start = evaluator.operand(op, len(op.operands) - 1, place)
    return Lanes(str(result.type), scalars=[_combine(combine, result, start.at(0))])


def _combine(combine: ir.Operation, a: Value, b: Value) -> Value:
    copy = ir.Operation.create(
        combine.name,
        results=[a.type],
        operands=[a.ir, b.ir],
        attributes={name: combine.attributes[name] for name in combine.attributes},
    )
    return wrap(copy.results[0])
