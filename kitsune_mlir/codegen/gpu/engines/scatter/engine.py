"""The `scatter` engine: rows in memory put into rows of a result, named by indices, by atomics of up to 16 bytes.

One thread has one vector of one row (`red.global.add`, PTX ISA, "red": vectors need sm_90; others: `contraction.combination`).
Neighbouring threads have neighbouring vectors of a row, so a warp changes whole sectors, and atomics happen in L2.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import ClassVar

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.contraction.combination import Combination
from kitsune_mlir.codegen.gpu.contraction.row_addition import WIDTHS, crosses
from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_
from kitsune_mlir.codegen.gpu.emit.memory import offset, reduce_add
from kitsune_mlir.codegen.gpu.emit.value import Value, cast, i64, maximum, minimum, select
from kitsune_mlir.codegen.gpu.emit.vectors import dtype_bytes, load_elements
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.codegen.gpu.interface.engine import Engine
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions, Plan
from kitsune_mlir.codegen.gpu.interface.traits import Traits
from kitsune_mlir.codegen.gpu.interface.window import BASE_ALIGN
from kitsune_mlir.dialects.scatter_kinds import ADDITIONS, ASSIGN
from kitsune_mlir.dialects.sizes import HALF_TYPES
from kitsune_mlir.dialects.tile_records import Buffer, Load, TaskView
from kitsune_mlir.machine.rates import ENGINES

__all__ = ["ScatterEngine"]

THREADS = 256
UNROLL = 4  # vectors of a thread in flight


class ScatterEngine(Engine):
    """See the module's docstring."""

    name: ClassVar[str] = "scatter"
    traits: ClassVar[Traits] = Traits(ENGINES["scatter"], row_updates="atomic", ends_early=True)

    def plan(self, task: TaskView, options: KernelOptions) -> Plan | Decline:
        scatter = _read(task)
        if isinstance(scatter, str):
            return Decline(self.name, scatter)
        width = WIDTHS[scatter.combination.dtype][0] if _crosses(scatter) else scatter.combination.width
        parameters = {"rows": scatter.indices.sizes[0], "width": width}
        return Plan(self.name, task, threads=THREADS, registers=64, parameters=parameters, private=scatter)

    def emit_tile(self, plan: Plan, tile: TileContext) -> None:
        tile.resolve()
        tile.index(plan.private.first)  # here, so that branches can use it
        tile.wait()
        if_(tile.task.thread < THREADS, lambda: _scatter(plan.private, tile))
        tile.finish()


@dataclasses.dataclass(frozen=True)
class _Scatter:
    """A `kitsune.atomic_scatter` of rows that lie in memory.

    Attributes:
        updates, indices: what is loaded.
        first: rows of the tile before it are left out.
        destination: the result.
        columns: elements of a row.
        combination: what is done with a vector.
    """

    updates: Load
    indices: Load
    first: ir.Value
    destination: Buffer
    columns: int
    combination: Combination


def _read(task: TaskView) -> _Scatter | str:
    """The scatter that a task consists of; a reason where it is none that this engine does."""
    work = task.work()
    if len(work) != 1 or work[0].name != "kitsune.atomic_scatter" or task.stores:
        return "the task is no scatter alone"
    op = work[0]
    updates, indices = (task.load_of(value) for value in list(op.operands)[:2])
    destination = next((b for b in task.buffers if b.value == op.operands[3]), None)
    if updates is None or indices is None or destination is None:
        return "the rows are computed in the task"
    if updates.sizes[1:] != updates.buffer.shape[1:] or any(size != 1 for size in indices.sizes[1:]):
        return "parts of rows are put there"
    kind, dtype = ir.StringAttr(op.attributes["kind"]).value, str(destination.element)
    if dtype in HALF_TYPES and kind not in (*ADDITIONS, ASSIGN):
        return f"{dtype} is added or assigned, and combined otherwise in f32"
    columns = math.prod(updates.sizes[1:])
    combination = Combination.of(kind, dtype, columns, [updates.buffer.offset, destination.offset], destination.shape[0])
    return _Scatter(updates, indices, op.operands[2], destination, columns, combination)


def _scatter(scatter: _Scatter, tile: TileContext) -> None:
    if _crosses(scatter):
        _add_crossing(scatter, tile)
        return
    combination = scatter.combination
    width, size = combination.width, dtype_bytes(combination.dtype)
    vectors = scatter.columns // width
    items = scatter.indices.sizes[0] * vectors
    updates, indices = (_start(load, tile) for load in (scatter.updates, scatter.indices))
    index_type = str(scatter.indices.buffer.element)

    def group(first: Value) -> None:
        puts: list[tuple[Value | None, Callable[[], None]]] = []
        for number in range(UNROLL):
            item = first + number * THREADS
            inside = item < items if items % (UNROLL * THREADS) else None
            safe = item if inside is None else minimum(item, items - 1)
            row, column = safe // vectors, safe % vectors * width
            values = combination.load(offset(updates, i64(safe) * (width * size)))
            index = load_elements(offset(indices, i64(row) * dtype_bytes(index_type)), index_type, 1)[0]
            puts.append((inside, _put(scatter, tile, row, index, column, values)))
        for inside, put in puts:
            put() if inside is None else if_(inside, put)

    for_(tile.task.thread, items, UNROLL * THREADS, group)


def _crosses(scatter: _Scatter) -> bool:
    """Whether vectors that are aligned in the result begin and end anywhere in a row."""
    aligned = scatter.destination.offset % BASE_ALIGN == 0
    return aligned and crosses(scatter.combination.kind, scatter.combination.dtype, scatter.columns)


def _add_crossing(scatter: _Scatter, tile: TileContext) -> None:
    """Rows of any length: a thread has a vector of the result, of which the row has all elements or some."""
    dtype, columns = scatter.combination.dtype, scatter.columns
    width, size = WIDTHS[dtype][0], dtype_bytes(dtype)
    vectors = -(-(columns + width - 1) // width)
    rows = scatter.indices.sizes[0]
    updates, indices = (_start(load, tile) for load in (scatter.updates, scatter.indices))
    index_type = str(scatter.indices.buffer.element)

    def group(first: Value) -> None:
        adds: list[tuple[Value, Value, Value, list[Value]]] = []
        for number in range(UNROLL):
            item = first + number * THREADS
            row = minimum(item // vectors, rows - 1)
            index = load_elements(offset(indices, i64(row) * dtype_bytes(index_type)), index_type, 1)[0]
            place, there = _target(scatter, tile, row, index)
            wanted = (item < rows * vectors) & there
            start = select(wanted, place, 0) * columns
            column = item % vectors * width - (cast(start, "i32") & (width - 1))
            source = offset(updates, i64(row) * (columns * size))
            inside = [minimum(maximum(column + n, 0), columns - 1) for n in range(width)]
            values = [load_elements(offset(source, at * size), dtype, 1)[0] for at in inside]
            target = offset(tile.pointer(scatter.destination), (start + cast(column, "i64", signed=True)) * size)
            adds.append((wanted, column, target, values))
        for wanted, column, target, values in adds:
            if_(wanted, lambda c=column, t=target, v=values: _add_part(t, v, c, columns, size))

    for_(tile.task.thread, rows * vectors, UNROLL * THREADS, group)


def _add_part(target: Value, values: list[Value], column: Value, columns: int, size: int) -> None:
    """Add those values of a vector that lie in a row; `column` is the first one's, before the row or in it."""

    def some() -> None:
        for n, value in enumerate(values):
            place = offset(target, n * size)
            if_((column + n >= 0) & (column + n < columns), lambda place=place, value=value: reduce_add(place, [value]))

    if_((column >= 0) & (column + len(values) <= columns), lambda: reduce_add(target, values), some)


def _target(scatter: _Scatter, tile: TileContext, row: Value, index: Value) -> tuple[Value, Value]:
    """The row of the result that `index` (an integer) names, and whether (i1) there is one and `row` is not left out."""
    place = cast(index, "i64", signed=True)
    return place, (row >= tile.index(scatter.first)) & place.below(scatter.destination.shape[0])


def _put(
    scatter: _Scatter, tile: TileContext, row: Value, index: Value, column: Value, values: list[Value]
) -> Callable[[], None]:
    """What puts a vector of values into the row that `index` (an integer) names, if there is one and `row` is not left out."""
    combination = scatter.combination
    size = dtype_bytes(combination.dtype)

    def element(place: Value) -> Value:
        return place * scatter.columns + cast(column, "i64", signed=False)

    def start() -> Value:
        return tile.pointer(scatter.destination)

    if not combination.looks_first:

        def put() -> None:
            place, wanted = _target(scatter, tile, row, index)
            if_(wanted, lambda: combination.put_at(start(), element(place), values, []))

        return put
    place, wanted = _target(scatter, tile, row, index)
    before = combination.load(offset(start(), element(select(wanted, place, 0)) * size))

    def put_after_look() -> None:
        if_(wanted, lambda: combination.put_at(start(), element(place), values, before))

    return put_after_look


def _start(load: Load, tile: TileContext) -> Value:
    """Pointer to a window's first row."""
    buffer = load.buffer
    size = dtype_bytes(str(buffer.element))
    return offset(tile.pointer(buffer), i64(tile.index(load.offsets[0])) * (buffer.strides[0] * size))
