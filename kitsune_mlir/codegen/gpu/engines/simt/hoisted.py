"""Work that is the same for all rows of a task: done once by each block, and kept in shared memory.

Planning fuses a function of a vector, such as the sigmoid of a bias, into the loop over rows that uses it, where each row would
do it again. Here the part of a body that depends on columns alone is found by its maps. If it costs more than reading its
result does, the block makes it for all columns before its first row; in the body that value then is a load from shared memory.
It has the type there that it has in the program, so it is what every row would have computed. Sums and products with several
of them are one fma with two coefficients (`simt.column_affine`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.control_flow import for_
from kitsune_mlir.codegen.gpu.emit.inline_ptx import fresh
from kitsune_mlir.codegen.gpu.emit.memory import offset
from kitsune_mlir.codegen.gpu.emit.value import Value
from kitsune_mlir.codegen.gpu.engines.simt.affine_index import Atom, Index, Linear, affine, at, clamp, emit
from kitsune_mlir.codegen.gpu.engines.simt.cached import Kept
from kitsune_mlir.codegen.gpu.engines.simt.column_affine import QUAD, Fold, Line, evaluate, find_folds, leaves
from kitsune_mlir.codegen.gpu.engines.simt.evaluate import Evaluator
from kitsune_mlir.codegen.gpu.engines.simt.graph import Graph, needed
from kitsune_mlir.codegen.gpu.engines.simt.memory import SharedWindow
from kitsune_mlir.codegen.gpu.engines.simt.row_space import RowSpace
from kitsune_mlir.codegen.gpu.engines.simt.scalar_body import Lanes
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.dialects import deep
from kitsune_mlir.dialects.access import affine_maps, iterator_kinds
from kitsune_mlir.dialects.deep import Steps
from kitsune_mlir.dialects.sizes import element_bytes

__all__ = ["Column", "Table", "find_table"]

LEAST_COST = 4
"""Instructions an element from which a value is kept: reading it back takes one or two."""

FUNCTION_COST = 4
"""Of a function or a division: one at a quarter of the rate of others, or several."""

LEAST_ROWS = 4
"""Of a block's tiles, from which a block makes values for all of them first."""

MOST_BYTES = 16 << 10
"""Of all values that a block keeps."""

ALIGN = 16


@dataclasses.dataclass(frozen=True)
class Column:
    """A value of the body of `op` that depends on columns alone; its place in the table."""

    op: ir.Operation
    value: ir.Value
    start: int


@dataclasses.dataclass(frozen=True)
class Table:
    """What a block keeps for all rows.

    Attributes:
        space: rows and columns.
        columns: the values, one element a column each.
        bytes: of shared memory.
        folds: what is an fma of two coefficients, with their places.
    """

    space: RowSpace
    columns: tuple[Column, ...]
    bytes: int
    folds: tuple[tuple[Fold, Line, Line], ...] = ()

    def windows(self, pointer: Value) -> Kept:
        """The values' places in shared memory, of which `pointer` is the table's beginning."""
        count = self.space.col_count
        found: dict[ir.Value, SharedWindow] = {}
        for column in self.columns:
            found[column.value] = SharedWindow(offset(pointer, column.start), column.value.type, (count,), ALIGN)
        lines = {fold: (factor, addend) for fold, factor, addend in self.folds}

        def coefficients(fold: Fold, coordinates: Sequence[Index]) -> tuple[Lanes, Lanes]:
            factor, addend = lines[fold]
            return factor.read(pointer, coordinates[0]), addend.read(pointer, coordinates[0])

        return Kept(found, self._index, {fold.value.owner.operation: fold for fold in lines}, coefficients)

    def _index(self, op: ir.Operation, loops: Sequence[Index]) -> tuple[Index, ...]:
        return (self.space.column(op, loops),)

    def fill(self, graph: Graph, tile: TileContext, pointer: Value) -> None:
        """Make all values, by all threads of the block; a block barrier must follow.

        Args:
            tile: any tile: nothing here depends on it.
        """
        evaluator, vectors = self._evaluator(graph, tile)
        threads = tile.task.threads
        # In a loop over tiles this stays where it is, behind the loads of the tile.
        thread = Linear.of(Atom(fresh(tile.task.thread), 1, threads))

        def step(first: Value) -> None:
            with evaluator.scope():
                vector = Linear((*thread.terms, *Linear.of(Atom(first, threads, vectors)).terms))
                place = clamp(vector, vectors - 1) if vectors % threads else vector
                self._make(evaluator, self._where(evaluator, place), pointer)

        for_(0, vectors, threads, step)

    def begin(self, graph: Graph, tile: TileContext, pointer: Value) -> Callable[[], None]:
        """As `fill`, in two steps: loads are emitted here, what is made of them by the function that comes back."""
        evaluator, vectors = self._evaluator(graph, tile)
        threads = tile.task.threads
        if vectors > threads:
            return lambda: self.fill(graph, tile, pointer)
        thread = Linear.of(Atom(tile.task.thread, 1, threads))
        place = clamp(thread, vectors - 1) if vectors < threads else Linear.of(Atom(tile.task.thread, 1, vectors))
        index, where = self._where(evaluator, place)
        for op in {column.op: None for column in (*self.columns, *(fold for fold, _, _ in self.folds))}:
            loops = self.space.column_loops(op, where)
            for operand, map_ in zip(op.operands, affine_maps(op), strict=True):
                if operand in graph.loads and self.space.maps_columns(op, map_):
                    evaluator.tensor(operand, tuple(affine(part, loops, evaluator.width) for part in map_.results))
        return lambda: self._make(evaluator, (index, where), pointer)

    def _evaluator(self, graph: Graph, tile: TileContext) -> tuple[Evaluator, int]:
        """What evaluates vectors of columns, and how many of these there are."""
        count, threads = self.space.col_count, tile.task.threads
        width = next(w for w in (8, 4, 2, 1) if count % w == 0 and (w == 1 or count // w >= threads))
        width = max(width, QUAD) if self.folds else width
        return Evaluator(graph, tile, width), count // width

    def _where(self, evaluator: Evaluator, place: Linear) -> tuple[Linear, Mapping]:
        """First column of vector number `place`, and the indices of the columns' dimensions there."""
        width = evaluator.width
        index = Linear(tuple((atom, c * width) for atom, c in place.terms), 1 if width > 1 else 0, place.const * width)
        return index, self.space.columns_at(evaluator.spread(index, tuple(extent for _, extent in self.space.cols)))

    def _make(self, evaluator: Evaluator, there: tuple[Linear, Mapping], pointer: Value) -> None:
        """Make all values at a vector of columns."""
        (index, where), windows = there, self.windows(pointer).windows
        for column in self.columns:
            loops = self.space.column_loops(column.op, where)
            (lanes,) = evaluator.body(column.op, loops, [column.value])
            evaluator.memory.store(windows[column.value], (index,), lanes)
        for fold, factor, addend in self.folds:
            first = emit(at(index, 0))
            self._write(evaluator, fold.op, where, pointer, first, ((factor, fold.factor), (addend, fold.addend)))

    def _write(self, evaluator: Evaluator, op: ir.Operation, where, pointer: Value, first: Value, lines) -> None:
        """Make coefficients of some columns, from `first` on."""
        loops = self.space.column_loops(op, where)
        values = list(dict.fromkeys(value for _, term in lines for value in leaves(term)))
        known = dict(zip(values, evaluator.body(op, loops, values), strict=True))
        for line, term in lines:
            numbers = evaluate(term, known.__getitem__)
            line.write(pointer, first, [numbers[e if len(numbers) > 1 else 0] for e in range(evaluator.width)])


def find_table(graph: Graph, space: RowSpace, width: int) -> Table | None:
    """What a block should keep; None if nothing is worth it.

    Args:
        width: columns of the vectors that are read.
    """
    if not space.row_major or space.row_count < LEAST_ROWS:
        return None
    free = graph.precision.approximate and graph.precision.excess and width in (4, 8) and space.col_count % width == 0
    for fold in (True, False) if free else (False,):
        table = _table(graph, space, width, fold)
        if table.bytes and table.bytes <= MOST_BYTES:
            return table
    return None


def _table(graph: Graph, space: RowSpace, width: int, fold: bool) -> Table:
    columns: list[Column] = []
    folds: list[tuple[Fold, Line, Line]] = []
    start = 0
    known: Costs = {}
    for op in graph.task.work():
        if op.name != "linalg.generic" or space.is_column(op):
            continue
        costs = deep.evaluate(_costs(graph, space, op, known))
        found = find_folds(op, costs) if fold and "reduction" not in iterator_kinds(op) else []
        for one in found:
            lines = [Line(start + number * 4 * space.col_count, space.col_count, width) for number in range(2)]
            folds.append((one, lines[0], lines[1]))
            start += 8 * space.col_count
        for value in _frontier(op, costs, {one.value.owner.operation: one.base for one in found}):
            columns.append(Column(op, value, start))
            start += -(-space.col_count * element_bytes(value.type) // ALIGN) * ALIGN
    return Table(space, tuple(columns), start, tuple(folds))


def _frontier(op: ir.Operation, costs: Mapping[ir.Value, int], folded: Mapping[ir.Operation, ir.Value]) -> list[ir.Value]:
    """Values of a body that depend on columns alone, cost enough, and are used by what depends on rows, too.

    Args:
        folded: by operation, the one value that is needed for its result.
    """
    block = op.regions[0].blocks[0]
    inside = [o.operation for o in block.operations]
    used = needed(block, list(inside[-1].operands), (), folded)
    found: dict[ir.Value, None] = {}
    for inner in inside:
        if len(inner.results) and (inner.results[0] in costs or inner.results[0] not in used or inner in folded):
            continue
        for operand in inner.operands:
            if costs.get(operand, 0) >= LEAST_COST:
                found[_narrow(operand)] = None
    return list(found)


def _narrow(value: ir.Value) -> ir.Value:
    """What a value is widened from."""
    while not isinstance(value.owner, ir.Block) and value.owner.name == "arith.extf":
        value = value.owner.operands[0]
    return value


Costs = dict[ir.Operation, dict[ir.Value, int]]
"""By the generic, instructions for each value of its body that depends on columns alone."""


def _costs(graph: Graph, space: RowSpace, op: ir.Operation, known: Costs) -> Steps[dict[ir.Value, int]]:
    """Instructions for each value of a body that depends on columns alone; constants cost nothing."""
    if op not in known:
        known[op] = yield _find_costs(graph, space, op, known)
    return known[op]


def _find_costs(graph: Graph, space: RowSpace, op: ir.Operation, known: Costs) -> Steps[dict[ir.Value, int]]:
    block = op.regions[0].blocks[0]
    costs: dict[ir.Value, int] = {}
    for argument, operand, map_ in zip(block.arguments, op.operands, affine_maps(op), strict=True):
        if space.maps_columns(op, map_) and (cost := (yield _cost_of(graph, space, operand, known))) is not None:
            costs[argument] = cost
    if not costs:
        return {}
    for inner in [o.operation for o in block.operations]:
        costs.update((operand, 0) for operand in inner.operands if _is_constant(operand))
        if inner.name.startswith(("arith.", "math.")) and all(operand in costs for operand in inner.operands):
            function = inner.name.startswith("math.") or inner.name == "arith.divf"
            own = FUNCTION_COST if function else 0 if inner.name in ("arith.extf", "arith.truncf") else 1
            costs[inner.results[0]] = own + sum(costs[operand] for operand in inner.operands)
    return costs


def _is_constant(value: ir.Value) -> bool:
    return not isinstance(value.owner, ir.Block) and value.owner.name == "arith.constant"


def _cost_of(graph: Graph, space: RowSpace, tensor: ir.Value, known: Costs) -> Steps[int | None]:
    """Instructions for an element of a tensor that depends on columns alone; None if it depends on something else.

    Only what the program is given counts: what other tasks make may not be there when a block begins.
    """
    if tensor in graph.loads:
        load = graph.loads[tensor]
        fixed = load.buffer.role == "input" and all(isinstance(start, int) for start in load.offsets)
        return 0 if fixed else None
    op = tensor.owner
    if isinstance(op, ir.Block) or op.name != "linalg.generic" or "reduction" in iterator_kinds(op.operation):
        return None
    op = op.operation
    if not space.is_column(op):
        return None
    yielded = list(op.regions[0].blocks[0].operations)[-1].operands[list(op.results).index(tensor)]
    return (yield _costs(graph, space, op, known)).get(yielded)
