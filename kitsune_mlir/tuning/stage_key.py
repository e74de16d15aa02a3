"""What a stage computes, as a hash: equal for equal stages of different models, whatever they are called."""

from __future__ import annotations

import hashlib

from torch_mlir import ir

from kitsune_mlir.dialects.stage_graph import SCHEDULE

__all__ = ["stage_key"]

_IGNORED = {"sym_name", *SCHEDULE}


def stage_key(stage: ir.Operation, *context: str) -> str:
    """A hash of a stage's operations, types and attributes, without names, locations and its schedule.

    Args:
        context: what else a measurement depends on (target, version of the compiler).
    """
    numbers: dict[ir.Value, int] = {}
    text = "\n".join([*context, *_lines(stage, numbers)])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _lines(op: ir.Operation, numbers: dict[ir.Value, int]) -> list[str]:
    """The operation and what it holds; values are numbered in the order in which they are met, with their types."""

    def number(value: ir.Value) -> str:
        return f"{numbers.setdefault(value, len(numbers))}:{value.type}"

    attributes = sorted(f"{a}={op.attributes[a]}" for a in op.attributes if a not in _IGNORED)
    results = [number(result) for result in op.results]
    lines = [f"{results} = {op.name}({[number(v) for v in op.operands]}) {attributes}"]
    for region in op.regions:
        for block in region.blocks:
            lines.append(f"block {[number(a) for a in block.arguments]}")
            for inner in block.operations:
                lines += _lines(inner.operation, numbers)
            lines.append("end")
    return lines
