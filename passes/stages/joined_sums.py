"""Concatenations of what a reduction makes are stages of their own on a GPU: a joined tensor has other rows."""

from collections.abc import Iterable

from torch_mlir import ir

from kitsune_mlir.dialects.access import iterator_kinds
from kitsune_mlir.dialects.products import is_contraction, is_generic

__all__ = ["joins_sums"]


def joins_sums(group: Iterable[ir.Operation]) -> str | None:
    """Why ops, in the order of the program, are no stage without products; None if this does not speak against it."""
    made: set[ir.Value] = set()
    for op in group:
        below = any(value in made for value in op.operands)
        if op.name == "tensor.concat" and below:
            return "rows that a reduction makes are joined with others"
        if below or (is_generic(op) and not is_contraction(op) and "reduction" in iterator_kinds(op)):
            made.update(op.results)
    return None
