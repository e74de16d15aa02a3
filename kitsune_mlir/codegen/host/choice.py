"""Chooses the schedule of a nest."""

from __future__ import annotations

from kitsune_mlir.codegen.host.contraction import Contraction, plan_contraction
from kitsune_mlir.codegen.host.elementwise import Elementwise, plan_elementwise
from kitsune_mlir.codegen.host.machine import Machine
from kitsune_mlir.codegen.host.nest import Nest
from kitsune_mlir.codegen.host.reduction import RowReduction, plan_reduction
from kitsune_mlir.codegen.host.transposing import Transposed, plan_transposed

__all__ = ["Schedule", "plan"]

Schedule = Elementwise | Transposed | RowReduction | Contraction


def plan(nest: Nest, machine: Machine) -> Schedule | None:
    """The schedule of a nest, or None if none takes it."""
    if not nest.reductions:
        return plan_transposed(nest, machine) or plan_elementwise(nest, machine)
    rows, columns = plan_reduction(nest, machine), plan_contraction(nest, machine)
    if rows is None or columns is None:
        return columns if rows is None else rows
    return columns if _prefers_columns(nest, columns) else rows


def _prefers_columns(nest: Nest, columns: Contraction) -> bool:
    """Whether to vectorise along the results: where they fill vectors, and their operands are contiguous or can be packed."""
    if nest.extents[columns.lane] * 2 < columns.lanes:
        return False
    return columns.panel is not None or all(a.coefficients[columns.lane] in (0, 1) for a in nest.inputs)
