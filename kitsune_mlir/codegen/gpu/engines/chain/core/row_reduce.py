"""Reductions over the columns of a row: each thread over its pairs, then the four lanes that share the row."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.contraction.axes import COL
from kitsune_mlir.codegen.gpu.contraction.elementwise import Step
from kitsune_mlir.codegen.gpu.contraction.packed_pair import Lanes
from kitsune_mlir.codegen.gpu.emit.control_flow import shuffle_xor
from kitsune_mlir.codegen.gpu.emit.operation import clone
from kitsune_mlir.codegen.gpu.emit.value import Value, constant, select
from kitsune_mlir.codegen.gpu.engines.chain.core.body import Chain
from kitsune_mlir.codegen.gpu.engines.chain.core.fragment_index import FragmentIndex
from kitsune_mlir.codegen.gpu.engines.chain.core.match import NEUTRAL, combination
from kitsune_mlir.codegen.gpu.engines.chain.core.operand_reads import Memory
from kitsune_mlir.dialects.access import affine_maps, shape_of

__all__ = ["reduce_rows", "reduced_cols"]

PARTS = 4
"""Independent running results of a thread, so that one addition need not wait for the one before."""


class Elements(Protocol):
    """What a reduction reads of the evaluator that asks for it."""

    chain: Chain
    memory: Memory

    def operand(self, op: ir.Operation, number: int, place: FragmentIndex) -> Lanes:
        """The elements of an operand of a generic."""
        ...

    def inner(self, op: ir.Operation, value: ir.Value, place: FragmentIndex) -> Lanes:
        """The elements of a value of a generic's body."""
        ...


def reduced_cols(step: Step, sides: tuple[str, ...]) -> int:
    """Columns that a reduction runs over."""
    maps = affine_maps(step.op)
    for number in step.operands:
        for expression, extent in zip(maps[number].results, shape_of(step.op.operands[number]), strict=True):
            if isinstance(expression, ir.AffineDimExpr) and sides[expression.position] == COL:
                return extent
    return 1


def reduce_rows(evaluator: Elements, step: Step, places: Sequence[FragmentIndex]) -> list[Lanes]:
    """The results of a reduction for the rows of `places`, each the same on all lanes that share the row.

    Lanes exchange the results of all rows in turns: an exchange takes longer than everything else.
    """
    op = step.op
    combine, _ = combination(op)
    results = [_of_thread(evaluator, step, place) for place in places]
    for bit in range(evaluator.memory.across.bit_length() - 1):
        results = [_combine(combine, result, shuffle_xor(result, 1 << bit)) for result in results]
    starts = [evaluator.operand(op, len(op.operands) - 1, place) for place in places]
    return [
        Lanes(str(result.type), scalars=[_combine(combine, result, start.at(0))])
        for result, start in zip(results, starts, strict=True)
    ]


def _of_thread(evaluator: Elements, step: Step, place: FragmentIndex) -> Value:
    """A reduction of the columns that the thread has of a row."""
    combine, element = combination(step.op)
    cols, across = reduced_cols(step, evaluator.chain.sides[step.op]), evaluator.memory.across
    neutral = NEUTRAL[combine.name]
    parts: list[Value] = []
    count = 0
    for block in range(-(-cols // (2 * across))):
        at = dataclasses.replace(place, block=block)
        lanes = evaluator.inner(step.op, element, at)
        for lane in range(2):
            value = lanes.at(lane)
            if 2 * across * (block + 1) > cols:
                value = select(evaluator.memory.col(at) + lane < cols, value, constant(neutral, value.type))
            if len(parts) < PARTS:
                parts.append(value)
            else:
                parts[count % PARTS] = _combine(combine, parts[count % PARTS], value)
            count += 1
    while len(parts) > 1:
        parts = [_combine(combine, parts[i], parts[i + 1]) if i + 1 < len(parts) else parts[i] for i in range(0, len(parts), 2)]
    return parts[0]


def _combine(combine: ir.Operation, a: Value, b: Value) -> Value:
    return clone(combine, [a, b], [a.type])[0]
