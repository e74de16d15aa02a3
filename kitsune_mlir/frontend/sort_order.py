"""NaN in sorts: above every number, as torch sorts, where torch-mlir's comparison of floats is false for it both ways round."""

from __future__ import annotations

from torch_mlir import ir
from torch_mlir.dialects import arith

__all__ = ["settle_sorts"]

UP, DOWN = (4, 5), (2, 3)
"""Predicates `olt`, `ole`; `ogt`, `oge` of `arith.cmpf`."""


def settle_sorts(block: ir.Block) -> None:
    """Give the sorts of a block comparisons that are an order of all floats."""
    for op in [o.operation for o in block.operations if o.operation.name == "tm_tensor.sort"]:
        body = op.regions[0].blocks[0]
        inner = [o.operation for o in body.operations]
        if len(inner) != 2 or inner[0].name != "arith.cmpf":
            continue
        predicate = ir.IntegerAttr(inner[0].attributes["predicate"]).value
        if predicate not in (*UP, *DOWN):
            continue
        last = inner[0].operands[1 if predicate in UP else 0]
        with ir.InsertionPoint(inner[1]), op.location:
            is_nan = arith.cmpf(arith.CmpFPredicate.UNO, last, last)
            inner[1].operands[0] = arith.ori(inner[0].results[0], is_nan)
