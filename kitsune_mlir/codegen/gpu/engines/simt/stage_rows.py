"""What speaks against one stage of several sums, before it is one: threads share the rows of one kind only.

`simt.row_space` finds rows and columns by the largest reduction of a task that threads make together. Every other one then is
over the same columns, and what is stored of them has all rows: layer norm's gradient of its input sums along rows, the
gradient of embedded positions over the batch of what comes of it, which are rows there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.simt.graph import generic_sizes, reduced_size
from kitsune_mlir.codegen.gpu.engines.simt.row_space import linked
from kitsune_mlir.codegen.gpu.engines.simt.short_reductions import is_private
from kitsune_mlir.dialects.access import is_tensor, iterator_kinds, shape_of
from kitsune_mlir.dialects.axes import Axes, Node
from kitsune_mlir.dialects.iteration import Space, is_trivial_reshape
from kitsune_mlir.dialects.products import is_generic
from kitsune_mlir.errors import UnsupportedError

__all__ = ["sums_other_rows"]


def sums_other_rows(space: Space, stored: Iterable[ir.Value] | None = None) -> str | None:
    """Why the engine does not do operations without products as one stage; None if their rows do not speak against it.

    Args:
        stored: what the stage leaves behind, at least those results that none of its operations reads.
    """
    try:
        wide = [n for n, op in enumerate(space.ops) if _reduces(op) and not is_private(op)]
    except UnsupportedError as error:
        return str(error)
    if not wide:
        return None
    classes = linked(space.ops, _from_memory(space.ops))
    rows = [_rows(space, n, classes) for n in wide]
    if any(found != rows[0] for found in rows):
        return "one reduction goes along what are rows of another one"
    below = _made_of(space.ops, {space.ops[n] for n in wide})
    read = {value for op in space.ops for value in op.operands}
    ends = stored if stored is not None else [r for op in space.ops for r in op.results if is_tensor(r) and r not in read]
    for value in ends:
        dims = {classes.find((value, d)) for d in range(len(shape_of(value)))}
        if value in below and not rows[0] <= dims:
            return "a result that comes of a reduction does not have all of its rows"
    main = max((space.ops[n] for n in wide), key=lambda op: (reduced_size(op), math.prod(generic_sizes(op))))
    if any(value in below and _has_other_columns(value, main, classes) for value in ends):
        return "a result that comes of a reduction has other columns"
    return None


def _has_other_columns(value: ir.Value, main: ir.Operation, classes: Axes) -> bool:
    """Whether what a result has beside a reduction's rows is neither what that sums up, nor as long."""
    sizes, kinds = generic_sizes(main), iterator_kinds(main)
    rows = {classes.find((main, loop)) for loop, kind in enumerate(kinds) if kind == "parallel"}
    summed = [loop for loop, kind in enumerate(kinds) if kind == "reduction" and sizes[loop] != 1]
    free = [dim for dim, extent in enumerate(shape_of(value)) if extent != 1 and classes.find((value, dim)) not in rows]
    if not free or {classes.find((value, dim)) for dim in free} == {classes.find((main, loop)) for loop in summed}:
        return False
    return sorted(shape_of(value)[dim] for dim in free) != sorted(sizes[loop] for loop in summed)


def _reduces(op: ir.Operation) -> bool:
    return is_generic(op) and "reduction" in iterator_kinds(op)


def _rows(space: Space, n: int, classes: Axes) -> set[Node]:
    """Rows of a reduction, but for those that tiles are cut along: all of the stage has these."""
    op, sizes = space.ops[n], generic_sizes(space.ops[n])
    cut = {classes.find((op, dim.loops[n])) for dim in space.dims if n in dim.loops}
    parallel = {loop for loop, kind in enumerate(iterator_kinds(op)) if kind == "parallel" and sizes[loop] != 1}
    return {classes.find((op, loop)) for loop in parallel} - cut


def _from_memory(ops: Iterable[ir.Operation]) -> set[ir.Value]:
    """What others make that operations read, and slices and views of it: a tile has each by a load of its own."""
    every = list(ops)
    made = {result for op in every for result in op.results}
    found = {value for op in every for value in op.operands if value not in made}
    for op in every:
        if (op.name == "tensor.extract_slice" or is_trivial_reshape(op)) and op.operands[0] in found:
            found.update(op.results)
    return found


def _made_of(ops: Iterable[ir.Operation], sources: set[ir.Operation]) -> set[ir.Value]:
    """The results of some operations, and everything that is made of them."""
    found: set[ir.Value] = set()
    for op in ops:
        if op in sources or any(value in found for value in op.operands):
            found.update(op.results)
    return found
