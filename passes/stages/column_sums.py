"""Sums of columns, and what is stored beside them: blocks share the tiles of a sum only where nothing else comes of it."""

import math
from collections.abc import Sequence

from torch_mlir import ir

from kitsune_mlir.dialects.access import affine_maps, iterator_kinds, loop_sizes, plain_loops, shape_of
from kitsune_mlir.dialects.attribute_table import COMBINE, PARTIAL
from kitsune_mlir.dialects.deep import postorder
from kitsune_mlir.dialects.products import is_contraction, is_generic
from kitsune_mlir.machine.target import Target

__all__ = ["LINE", "adds_columns", "sum_tiles_beside_rows"]

LINE = 32
"""Columns that a tile has at least where terms lie a row apart: a line of memory."""

FEW = 8
"""Times as many tiles there must be than there are, for a stage more to pay: the sum then reads again what was stored."""
HALF = 2
"""The same where what is stored comes of the sums: their rows are read again in any case, by one block or by another."""


def adds_columns(op: ir.Operation) -> bool:
    """Whether the terms of a reduction lie a row apart in an input: neighbours in memory are of different results."""
    kinds = iterator_kinds(op)
    walked = [plain_loops(map_) for map_ in affine_maps(op)[: -len(op.results)]]
    terms = [loops for loops in walked if any(loop is not None and kinds[loop] == "reduction" for loop in loops)]
    return any(loops[-1] is not None and kinds[loops[-1]] == "parallel" for loops in terms)


def sum_tiles_beside_rows(group: Sequence[ir.Operation], stored: Sequence[ir.Value], target: Target) -> int | None:
    """How many tiles a group has that adds columns and stores rows, too, where the machine wants more.

    A bias' gradient is the sum over all rows of what the layers before read, too, and a batch normalisation stores rows that it
    makes of the sums of all. Apart, blocks share each tile of the sum (`codegen/gpu/interface/split.py`), and the map has tiles
    for all.

    Args:
        stored: what of the group is needed outside of it.
    """
    beside = not any(map(is_contraction, group))  # a product has tiles of its own, and what is stored of it is theirs
    for op in group:
        if not is_generic(op) or is_contraction(op) or "reduction" not in iterator_kinds(op) or not adds_columns(op):
            continue
        points = math.prod(shape_of(op.results[0]))
        tiles = max(1, points // LINE)
        rows = [value for value in stored if math.prod(shape_of(value)) > LINE * points]
        if tiles * HALF < target.workers and any(op.results[0] in _made_of(value.owner, group) for value in rows):
            return tiles
        if {PARTIAL, COMBINE} & {*op.attributes}:  # `kitsune-split-reductions` has found as many tiles as it wants
            continue
        terms = {value for value in _made_of(op, group) if math.prod(shape_of(value)) > points}
        if tiles * FEW < target.workers and ((beside and rows) or any(value in terms for value in stored)):
            return tiles
    return None


def narrowed(group: Sequence[ir.Operation], points: int, target: Target) -> int | None:
    """How many tiles maps have that share so few points that the widest of them walks most of its own inside a tile.

    So they do where a vector is stored beside what it is added to, or where a pool reads at any index what is stored beside it.
    None where there are enough, or where something is no map and no sum of few terms.

    Args:
        points: of the dimensions that all of them share.
    """
    tiles = max(1, points // LINE)
    if tiles * FEW >= target.workers or not all(
        is_generic(op) and not is_contraction(op) and _terms(op) <= LINE for op in group
    ):
        return None
    widest = max(math.prod(shape_of(result)) for op in group for result in op.results)
    return tiles if widest > LINE * points else None


def _terms(op: ir.Operation) -> int:
    """How many terms each result of an op has."""
    return math.prod(size for size, kind in zip(loop_sizes(op), iterator_kinds(op), strict=True) if kind == "reduction")


def _made_of(op: ir.Operation, group: Sequence[ir.Operation]) -> list[ir.Value]:
    """What ops of a group make for one of them, directly or through others."""
    makers = {result: one for one in group for result in one.results}
    found = postorder(list(op.operands), lambda value: list(makers[value].operands) if value in makers else [])
    return [value for value in found if value in makers]
