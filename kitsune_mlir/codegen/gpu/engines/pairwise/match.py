"""result[..., i, j] is a reduction over k of f(left[..., i, k], right[..., j, k]), for any f."""

from __future__ import annotations

import dataclasses

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.reduce import COMBINING
from kitsune_mlir.codegen.gpu.interface.elements import beside_reduction, needed_for
from kitsune_mlir.dialects.access import affine_maps, iterator_kinds, loop_sizes
from kitsune_mlir.dialects.products import body_of, constant_fill, defining_op, is_contraction, is_generic, yield_of

__all__ = ["Pairwise", "read"]

LEAST_TERMS, MOST_TERMS = 8, 512
CHUNKS = (32, 16, 8, 4)
"""Terms that a thread takes at a time."""


@dataclasses.dataclass(frozen=True)
class Pairwise:
    """Attributes:
    op: the reduction. kind: how terms are combined (`emit.reduce`).
    term: what is combined, in its body. body: the operations that make it.
    left, right: numbers of the operands that do not depend on the last, and on the last but one, dimension of the result.
    terms: of a result. chunk: of them that are made at a time.
    """

    op: ir.Operation
    kind: str
    term: ir.Value
    body: tuple[ir.Operation, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    terms: int
    chunk: int


def read(ops: list[ir.Operation]) -> Pairwise | str:
    """The one such reduction among some ops, with maps before and after it; a reason where it is more, or other, than that."""
    reductions = [op for op in ops if is_generic(op) and "reduction" in iterator_kinds(op)]
    if len(reductions) != 1:
        return "it holds no reduction" if not reductions else "it holds several reductions"
    (op,) = reductions
    found = _pairwise(op)
    if isinstance(found, str):
        return found
    return beside_reduction(op, (*found.left, *found.right), ops) or found


def _pairwise(op: ir.Operation) -> Pairwise | str:
    no = "its reduction is not over pairs of rows"
    kinds, maps, sizes = iterator_kinds(op), affine_maps(op), loop_sizes(op)
    if len(op.results) != 1 or kinds.count("reduction") != 1 or len(kinds) < 3 or is_contraction(op):
        return no
    start = defining_op(op.operands[len(op.operands) - 1])
    if start is None or constant_fill(start) is None:
        return "its reduction starts with what is no constant"
    along = kinds.index("reduction")
    results = [e.position if isinstance(e, ir.AffineDimExpr) else None for e in maps[-1].results]
    if results != [loop for loop in range(len(kinds)) if loop != along]:
        return no
    accumulated = op.regions[0].blocks[0].arguments[len(op.operands) - 1]
    last = defining_op(yield_of(op).operands[0])
    if last is None or last.name not in COMBINING or accumulated not in list(last.operands):
        return "it combines by more than one operation"
    term = next((value for value in last.operands if value != accumulated), None)
    if term is None:
        return no
    body = needed_for(term, body_of(op))
    if any(inner.regions or not inner.name.startswith(("arith.", "math.")) for inner in body):
        return "its terms are read by index"
    used = {value for inner in body for value in inner.operands} | {term}
    if accumulated in used:
        return no
    left, right = [], []
    for number, argument in enumerate(list(op.regions[0].blocks[0].arguments)[:-1]):
        if argument not in used:
            continue
        dims = [e.position if isinstance(e, ir.AffineDimExpr) else None for e in maps[number].results]
        if None in dims or along not in dims or dims[-1] != along or (results[-2] in dims and results[-1] in dims):
            return no
        (right if results[-1] in dims else left).append(number)
    if not any(results[-2] in _dims(maps[number]) for number in left) or not right:
        return no
    terms = sizes[along]
    chunk = next((chunk for chunk in CHUNKS if terms % chunk == 0), None)
    if chunk is None or not LEAST_TERMS <= terms <= MOST_TERMS:
        return f"it reduces {terms} elements"
    return Pairwise(op, COMBINING[last.name], term, tuple(body), tuple(left), tuple(right), terms, chunk)


def _dims(map_: ir.AffineMap) -> list[int]:
    return [expression.position for expression in map_.results if isinstance(expression, ir.AffineDimExpr)]
