"""Which dimensions of a task's tensors are rows and which are columns, seen from the reduction that threads make together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Container, Iterable, Mapping, Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.simt.affine_index import Index, Linear, add, scale
from kitsune_mlir.codegen.gpu.engines.simt.graph import ArgReduction, Graph, generic_sizes, reduced_size
from kitsune_mlir.dialects.access import affine_maps, iterator_kinds, plain_loops, reassociation, shape_of, static_ints
from kitsune_mlir.dialects.axes import Axes, Node
from kitsune_mlir.dialects.tile_records import Store
from kitsune_mlir.errors import UnsupportedError

__all__ = ["RowSpace", "find_rows", "linked"]

_PASSED_ON = ("linalg.generic", "tensor.concat", "tensor.extract_slice", "tensor.expand_shape", "tensor.collapse_shape")


@dataclasses.dataclass(frozen=True)
class RowSpace:
    """Rows and columns of a task.

    Attributes:
        rows, cols: (class, extent) of the dimensions, outermost first.
        row_major: neighbouring columns are neighbours in memory; else neighbouring rows are.
        shared: the reductions over exactly the columns for exactly the rows.
        full: stores of tensors with rows and columns.
        narrow: stores of tensors with rows alone.
    """

    classes: Axes
    rows: tuple[tuple[Node, int], ...]
    cols: tuple[tuple[Node, int], ...]
    row_major: bool
    shared: tuple[ir.Operation, ...]
    full: tuple[Store, ...]
    narrow: tuple[Store, ...]

    @property
    def row_count(self) -> int:
        return math.prod(extent for _, extent in self.rows)

    @property
    def col_count(self) -> int:
        return math.prod(extent for _, extent in self.cols)

    def coordinates(self, tensor: ir.Value, where: Mapping[Node, Index]) -> tuple[Index, ...]:
        """Coordinates of a tensor at a point: `where` gives the index of each class."""
        found: list[Index] = []
        for dim, extent in enumerate(shape_of(tensor)):
            found.append(Linear() if extent == 1 else where[self.classes.find((tensor, dim))])
        return tuple(found)

    def loops(self, op: ir.Operation, where: Mapping[Node, Index]) -> list[Index]:
        """Loop indices of a shared reduction at a point."""
        sizes = generic_sizes(op)
        return [Linear() if size == 1 else where[self.classes.find((op, loop))] for loop, size in enumerate(sizes)]

    # --- what depends on columns alone

    def is_column(self, op: ir.Operation) -> bool:
        """Whether all loops of an operation run along columns."""
        nodes = {node for node, _ in self.cols}
        return all(size == 1 or self.classes.find((op, loop)) in nodes for loop, size in enumerate(generic_sizes(op)))

    def maps_columns(self, op: ir.Operation, map_: ir.AffineMap) -> bool:
        """Whether an operand is read along columns, by plain loops, and along nothing else."""
        nodes, sizes = {node for node, _ in self.cols}, generic_sizes(op)
        loops = plain_loops(map_)
        return len(loops) > 0 and all(
            loop is not None and (sizes[loop] <= 1 or self.classes.find((op, loop)) in nodes) for loop in loops
        )

    def columns_at(self, parts: Sequence[Index]) -> dict[Node, Index]:
        """The index of each class of columns, given one for each of `cols`."""
        return {node: part for (node, _), part in zip(self.cols, parts, strict=True)}

    def column_loops(self, op: ir.Operation, where: Mapping[Node, Index]) -> list[Index]:
        """Loop indices of an operation at a column; those that run along rows are 0."""
        sizes = generic_sizes(op)
        return [where.get(self.classes.find((op, loop)), Linear()) if size > 1 else Linear() for loop, size in enumerate(sizes)]

    def column(self, op: ir.Operation, loops: Sequence[Index]) -> Index:
        """Number of the column at loop indices of an operation; along columns that it has no loop for, the first one."""
        found: Index = Linear()
        for node, extent in self.cols:
            own = [loops[loop] for loop in range(len(loops)) if self.classes.find((op, loop)) == node]
            found = add(scale(found, extent), own[0] if own else Linear())
        return found


def find_rows(graph: Graph, reductions: list[ir.Operation], stores: list[Store]) -> RowSpace:
    """Rows and columns by the largest of some reductions.

    Raises:
        UnsupportedError: dimensions of the tensors do not fall into rows and columns.
    """
    classes = linked(graph.task.work(), graph.loads)
    main = max(reductions, key=lambda op: (reduced_size(op), math.prod(generic_sizes(op))))
    rows, cols = _split(main, classes)
    row_ids, col_ids = {c for c, _ in rows}, {c for c, _ in cols}
    where = str(main.location)
    if row_ids & col_ids or len(row_ids) < len(rows) or len(col_ids) < len(cols):
        raise UnsupportedError(main.name, "every dimension is either of rows or of columns", None, where)
    for op in reductions:
        _adopt_loops(op, classes, row_ids, cols)
    shared = tuple(op for op in reductions if [{c for c, _ in part} for part in _split(op, classes)] == [row_ids, col_ids])
    full, narrow = [], []
    for store in stores:
        _adopt(store.tensor, classes, row_ids, cols)
        dims = [classes.find((store.tensor, d)) for d, extent in enumerate(shape_of(store.tensor)) if extent != 1]
        if len(set(dims)) < len(dims) or not set(dims) <= row_ids | col_ids:
            raise UnsupportedError(main.name, "results have the rows and columns of the reduction", None, where)
        if set(dims) == row_ids:
            narrow.append(store)
        elif set(dims) == row_ids | col_ids:
            full.append(store)
        else:
            raise UnsupportedError(main.name, "results have all rows of the reduction", None, where)
    for op in reductions:
        if isinstance(graph.reductions[op], ArgReduction) and op not in shared:
            raise UnsupportedError(op.name, "an extreme's index is looked for along all columns", None, str(op.location))
    last = classes.find((main, _order(main)[-1]))
    row_major = last in col_ids or not row_ids
    return RowSpace(classes, tuple(rows), tuple(cols), row_major, shared, tuple(full), tuple(narrow))


def _adopt(tensor: ir.Value, classes: Axes, rows: set[Node], cols: list[tuple[Node, int]]) -> None:
    """Take dimensions that nothing ties to the reduction for its columns, if they are as long.

    `x * rsqrt(mean(x * x))` reads x twice, and only the rows of the two are tied together.
    """
    shape = shape_of(tensor)
    free = [d for d, extent in enumerate(shape) if extent != 1 and classes.find((tensor, d)) not in rows]
    if [shape[d] for d in free] == [extent for _, extent in cols]:
        for dim, (node, _) in zip(free, cols, strict=True):
            classes.unite((tensor, dim), node)


def _adopt_loops(op: ir.Operation, classes: Axes, rows: set[Node], cols: list[tuple[Node, int]]) -> None:
    """As `_adopt`, for the reduced loops of another reduction over the same rows."""
    mine, reduced = _split(op, classes)
    if {c for c, _ in mine} == rows and [extent for _, extent in reduced] == [extent for _, extent in cols]:
        for (own, _), (node, _) in zip(reduced, cols, strict=True):
            if own not in rows:
                classes.unite(own, node)


def _order(op: ir.Operation) -> list[int]:
    """Loops as the dimensions of the largest operand follow each other, without loops of one step."""
    sizes = generic_sizes(op)
    best: list[int] = []
    for map_ in affine_maps(op):
        loops = [loop for loop in plain_loops(map_) if loop is not None]
        if len(loops) > len(best):
            best = loops
    best += [loop for loop in range(len(sizes)) if loop not in best]
    moving = [loop for loop in best if sizes[loop] != 1]
    return moving or best[:1]


def _split(op: ir.Operation, classes: Axes) -> tuple[list[tuple[Node, int]], list[tuple[Node, int]]]:
    """(class, extent) of a reduction's parallel and of its reduced loops."""
    kinds, sizes = iterator_kinds(op), generic_sizes(op)
    rows, cols = [], []
    for loop in _order(op):
        if sizes[loop] != 1:
            (cols if kinds[loop] == "reduction" else rows).append((classes.find((op, loop)), sizes[loop]))
    return rows, cols


def linked(ops: Iterable[ir.Operation], loads: Container[ir.Value]) -> Axes:
    """Which loops of operations, and dimensions of their results, walk together.

    Args:
        loads: tensors that come from memory, where each use may walk them in its own way.
    """
    classes = Axes()

    def passed(value: ir.Value) -> bool:
        """Whether a tensor's dimensions mean the same wherever it is used: not those of loads and constants."""
        if value in loads or isinstance(value.owner, ir.Block) or value.owner.name not in _PASSED_ON:
            return False
        maker = value.owner.operation
        return maker.name != "linalg.generic" or len(maker.operands) > len(maker.results)

    for op in ops:
        if op.name == "linalg.generic":
            values = [*op.operands, *op.results]
            maps = affine_maps(op)
            for value, map_ in zip(values, maps + maps[len(maps) - len(op.results) :], strict=True):
                if not isinstance(value.type, ir.RankedTensorType) or not (passed(value) or value in list(op.results)):
                    continue
                classes.walk(op, value, map_)
            continue
        for mine, source, theirs in _moved(op):
            if passed(source):
                classes.unite((op.results[0], mine), (source, theirs))
    return classes


def _moved(op: ir.Operation):
    """(result dimension, operand, operand dimension) of dimensions that a structural operation leaves as they are."""
    result = op.results[0] if op.results else None
    if op.name == "tensor.concat":
        dim = ir.IntegerAttr(op.attributes["dim"]).value
        for operand in op.operands:
            yield from ((d, operand, d) for d in range(len(shape_of(result))) if d != dim)
    elif op.name == "tensor.cast":
        yield from ((d, op.operands[0], d) for d in range(len(shape_of(result))))
    elif op.name == "tensor.extract_slice":
        source = shape_of(op.operands[0])
        if len(source) == len(shape_of(result)):
            strides = static_ints(op, "static_strides")
            yield from ((d, op.operands[0], d) for d, e in enumerate(shape_of(result)) if e == source[d] and strides[d] == 1)
    elif op.name in ("tensor.expand_shape", "tensor.collapse_shape"):
        expand = op.name == "tensor.expand_shape"
        wide = shape_of(result if expand else op.operands[0])
        for narrow, group in enumerate(reassociation(op)):
            moving = [d for d in group if wide[d] != 1]
            if len(moving) == 1:
                yield (moving[0], op.operands[0], narrow) if expand else (narrow, op.operands[0], moving[0])
