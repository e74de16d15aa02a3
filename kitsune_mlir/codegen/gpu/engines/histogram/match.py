"""Which stages the histogram engine takes: a reduction that counts, and maps before and after it."""

from __future__ import annotations

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.interface.elements import beside_reduction
from kitsune_mlir.dialects.access import iterator_kinds
from kitsune_mlir.dialects.counting import Counting, counting_of
from kitsune_mlir.dialects.products import is_generic

__all__ = ["read"]


def read(ops: list[ir.Operation]) -> Counting | str:
    """The one reduction among some ops, with maps before and after it; a reason where it is more, or does not count."""
    reductions = [op for op in ops if is_generic(op) and "reduction" in iterator_kinds(op)]
    if len(reductions) != 1:
        return "it holds no reduction that counts" if not reductions else "it holds several reductions"
    (op,) = reductions
    found = counting_of(op)
    if isinstance(found, str):
        return found
    return beside_reduction(op, found.used, ops) or found
