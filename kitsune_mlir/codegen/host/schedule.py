"""Chooses a schedule for each `linalg.generic` of a body and replaces it by vector loops.

What no schedule takes (dynamic shapes, divided indices, regions in the body, sorting, ...) is left to upstream's plain loops.
"""

from __future__ import annotations

from torch_mlir import ir

from kitsune_mlir.codegen.host.contraction import Contraction, plan_contraction
from kitsune_mlir.codegen.host.elementwise import Elementwise, plan_elementwise
from kitsune_mlir.codegen.host.fusion import find_groups
from kitsune_mlir.codegen.host.machine import Machine
from kitsune_mlir.codegen.host.nest import Nest, read_nest
from kitsune_mlir.codegen.host.precompute import precompute_sides
from kitsune_mlir.codegen.host.reduction import RowReduction, combiner_of, plan_reduction
from kitsune_mlir.dialects.verify import walk

__all__ = ["Schedule", "plan", "vectorize"]

Schedule = Elementwise | RowReduction | Contraction


def vectorize(root: ir.Operation, machine: Machine) -> None:
    """Replace every `linalg.generic` under `root` that a schedule takes by vector loops."""
    for op in [o for o in walk(root) if o.name == "linalg.generic"]:
        nest = read_nest(precompute_sides(op, machine))
        if nest is not None and nest.reductions:
            allow_contraction(nest)
    for function in [o for o in walk(root) if o.name == "func.func"]:
        for block in function.regions[0].blocks:
            for group in list(find_groups(block, machine)):
                group.emit()
    for op in [o for o in walk(root) if o.name == "linalg.generic"]:
        schedule = plan(op, machine)
        if schedule is None:
            continue
        with ir.InsertionPoint(op), op.location:
            schedule.emit(schedule.nest.with_views(), {})
        op.erase()


def plan(op: ir.Operation, machine: Machine) -> Schedule | None:
    """The schedule of a `linalg.generic` on memrefs, or None."""
    nest = read_nest(op)
    if nest is None:
        return None
    if not nest.reductions:
        return plan_elementwise(nest, machine)
    rows, columns = plan_reduction(nest, machine), plan_contraction(nest, machine)
    if rows is None or columns is None:
        return columns if rows is None else rows
    return columns if _prefers_columns(nest, columns) else rows


def _prefers_columns(nest: Nest, columns: Contraction) -> bool:
    """Whether to vectorise along the results: where they fill vectors, and their operands are contiguous or can be packed."""
    if nest.extents[columns.lane] * 2 < columns.lanes:
        return False
    return columns.panel is not None or all(a.coefficients[columns.lane] in (0, 1) for a in nest.inputs)


def allow_contraction(nest: Nest) -> None:
    """Let the multiplications and additions of a sum of products become fused multiply-adds: more accurate, twice as fast."""
    contract = ir.Attribute.parse("#arith.fastmath<contract>")
    for i in range(len(nest.outputs)):
        combiner = combiner_of(nest, i)
        if combiner is None or combiner.name != "arith.addf" or isinstance(combiner.term.owner, ir.Block):
            continue
        term = combiner.term.owner.operation
        if term.name == "arith.mulf":
            term.attributes["fastmath"] = contract
            combiner.op.attributes["fastmath"] = contract
