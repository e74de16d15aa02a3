"""What has other rows than a reduction is a stage of its own on a GPU: what joins its results, stores them across, or sums
along its rows."""

from collections.abc import Iterable, Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.simt.stage_rows import sums_other_rows
from kitsune_mlir.dialects.access import iterator_kinds
from kitsune_mlir.dialects.iteration import Space
from kitsune_mlir.dialects.products import is_contraction, is_generic

from .turned_rows import turns_long_rows

__all__ = ["rows_differ"]


def rows_differ(space: Space, stored: Sequence[ir.Value]) -> str | None:
    """Why ops, in the order of the program, are no stage without products that leaves some values behind; None if their rows do
    not speak against it."""
    other = sums_other_rows(space, stored) if space.dims else None
    return _joins_sums(space.ops) or turns_long_rows(space.ops) or other


def _joins_sums(group: Iterable[ir.Operation]) -> str | None:
    made: set[ir.Value] = set()
    for op in group:
        below = any(value in made for value in op.operands)
        if op.name == "tensor.concat" and below:
            return "rows that a reduction makes are joined with others"
        if below or (is_generic(op) and not is_contraction(op) and "reduction" in iterator_kinds(op)):
            made.update(op.results)
    return None
