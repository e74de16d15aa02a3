"""Replaces each `linalg.generic` of a body by vector loops, in three rounds: convolutions and split products, chains of rows,
single nests.

What no schedule takes (dynamic shapes, divided indices, regions in the body, sorting, ...) is left to upstream's plain loops.
"""

from __future__ import annotations

from torch_mlir import ir

from kitsune_mlir.codegen.host.channels import channels_last
from kitsune_mlir.codegen.host.choice import plan
from kitsune_mlir.codegen.host.combiner import combiner_of
from kitsune_mlir.codegen.host.fusion import find_groups
from kitsune_mlir.codegen.host.machine import Machine
from kitsune_mlir.codegen.host.nest import Nest, read_nest
from kitsune_mlir.codegen.host.precompute import precompute_sides
from kitsune_mlir.dialects.verify import operations_named

__all__ = ["vectorize"]


def vectorize(root: ir.Operation, machine: Machine) -> None:
    """Replace every `linalg.generic` under `root` that a schedule takes by vector loops."""
    for op in operations_named(root, "linalg.generic"):
        nest = read_nest(precompute_sides(channels_last(op, machine), machine))
        if nest is not None and nest.reductions:
            allow_contraction(nest)
    for function in operations_named(root, "func.func"):
        for block in function.regions[0].blocks:
            for group in list(find_groups(block, machine)):
                group.emit()
    for op in operations_named(root, "linalg.generic"):
        nest = read_nest(op)
        schedule = None if nest is None else plan(nest, machine)
        if schedule is None:
            continue
        with ir.InsertionPoint(op), op.location:
            schedule.emit(schedule.nest.with_views(), {})
        op.erase()


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
