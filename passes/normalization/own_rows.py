"""Indices that are a loop's own position: `x[arange(n), i]` reads row r of x in row r of the result.

The importer writes every index as one that may be negative. A position is not, and an index that plainly is one lets the rows
be tiled (`dialects/iteration.py`).
"""

from torch_mlir import ir

from kitsune_mlir.dialects.access import constant_of
from kitsune_mlir.dialects.products import defining_op
from kitsune_mlir.dialects.verify import walk

LESS = 2  # the signed predicate of arith.cmpi


def index_own_rows(module: ir.Operation) -> None:
    """Replace "p, or p + n where p is negative" by p, where p is a `linalg.index`."""
    for op in [op for op in walk(module) if op.name == "arith.index_cast"]:
        chosen = defining_op(op.operands[0])
        if chosen is None or chosen.name != "arith.select":
            continue
        negative, _, position = chosen.operands
        cast, test = defining_op(position), defining_op(negative)
        if cast is None or cast.name != "arith.index_cast" or test is None or test.name != "arith.cmpi":
            continue
        index = defining_op(cast.operands[0])
        if index is None or index.name != "linalg.index" or test.operands[0] != position or constant_of(test.operands[1]) != 0:
            continue
        if ir.IntegerAttr(test.attributes["predicate"]).value == LESS:
            op.results[0].replace_all_uses_with(index.results[0])
