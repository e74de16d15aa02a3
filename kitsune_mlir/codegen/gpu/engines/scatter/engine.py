"""The `scatter` engine: rows in memory added to rows of a result, named by indices, by vector reductions of up to 16 bytes.

One thread adds one vector of one row (`red.global.add`, PTX ISA, "red": vectors need sm_90). Neighbouring threads have
neighbouring vectors of a row, so a warp adds whole sectors, and the additions happen in L2.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import ClassVar

from kitsune_mlir.codegen.gpu.contraction.row_addition import Addition, widest
from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_
from kitsune_mlir.codegen.gpu.emit.memory import offset, reduce_add
from kitsune_mlir.codegen.gpu.emit.value import Value, cast, i64, minimum
from kitsune_mlir.codegen.gpu.emit.vectors import dtype_bytes, load_elements
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.codegen.gpu.interface.engine import Engine
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions, Plan
from kitsune_mlir.codegen.gpu.interface.traits import Traits
from kitsune_mlir.dialects.tile_records import Load, TaskView
from kitsune_mlir.machine.rates import ENGINES

__all__ = ["ScatterEngine"]

THREADS = 256
UNROLL = 4  # vectors of a thread in flight


class ScatterEngine(Engine):
    """See the module's docstring."""

    name: ClassVar[str] = "scatter"
    traits: ClassVar[Traits] = Traits(ENGINES["scatter"], row_updates="atomic")

    def plan(self, task: TaskView, options: KernelOptions) -> Plan | Decline:
        addition = _read(task)
        if isinstance(addition, str):
            return Decline(self.name, addition)
        parameters = {"rows": addition.indices.sizes[0], "width": addition.width}
        return Plan(self.name, task, threads=THREADS, registers=64, parameters=parameters, private=addition)

    def emit_tile(self, plan: Plan, tile: TileContext) -> None:
        tile.resolve()
        tile.index(plan.private.first)  # here, so that branches can use it
        tile.wait()
        if_(tile.task.thread < THREADS, lambda: _add(plan.private, tile))
        tile.finish()


def _read(task: TaskView) -> Addition | str:
    """The addition that a task consists of; a reason where it is none that this engine does."""
    work = task.work()
    if len(work) != 1 or work[0].name != "kitsune.scatter" or task.stores:
        return "the task is no scatter-add alone"
    op = work[0]
    updates, indices = (task.load_of(value) for value in list(op.operands)[:2])
    destination = next((b for b in task.buffers if b.value == op.operands[3]), None)
    if updates is None or indices is None or destination is None:
        return "the rows that are added are computed in the task"
    if updates.sizes[1:] != updates.buffer.shape[1:] or any(size != 1 for size in indices.sizes[1:]):
        return "parts of rows are added"
    dtype, columns = str(destination.element), math.prod(updates.sizes[1:])
    width = widest(dtype, columns, [updates.buffer.offset, destination.offset])
    if width is None:
        return f"no reduction adds {dtype} to rows of {columns} elements"
    return Addition(updates, indices, op.operands[2], destination, columns, width)


def _add_row(addition: Addition, tile: TileContext, row: Value, index: Value, column: Value, values: list[Value]) -> None:
    """Add `addition.width` values to the row that `index` (an integer) names, if there is one and `row` is not left out."""
    rows = addition.destination.shape[0]
    place = cast(index, "i64", signed=True)
    wanted = (row >= tile.index(addition.first)) & place.below(rows)
    size = dtype_bytes(str(addition.destination.element))
    address = (place * addition.columns + cast(column, "i64", signed=False)) * size
    if_(wanted, lambda: reduce_add(offset(tile.pointer(addition.destination), address), values))


def _add(addition: Addition, tile: TileContext) -> None:
    vectors = addition.columns // addition.width
    items = addition.indices.sizes[0] * vectors
    dtype = str(addition.destination.element)
    size = dtype_bytes(dtype)
    assert addition.updates is not None
    updates, indices = (_start(load, tile) for load in (addition.updates, addition.indices))
    index_type = str(addition.indices.buffer.element)

    def group(first: Value) -> None:
        additions: list[tuple[Value | None, Callable[[], None]]] = []
        for number in range(UNROLL):
            item = first + number * THREADS
            inside = item < items if items % (UNROLL * THREADS) else None
            safe = item if inside is None else minimum(item, items - 1)
            row, column = safe // vectors, safe % vectors * addition.width
            place = offset(updates, i64(safe) * (addition.width * size))
            values = load_elements(place, dtype, addition.width, align=addition.width * size)
            index = load_elements(offset(indices, i64(row) * dtype_bytes(index_type)), index_type, 1)[0]

            additions.append((inside, functools.partial(_add_row, addition, tile, row, index, column, values)))
        for inside, add in additions:
            add() if inside is None else if_(inside, add)

    for_(tile.task.thread, items, UNROLL * THREADS, group)


def _start(load: Load, tile: TileContext) -> Value:
    """Pointer to a window's first row."""
    buffer = load.buffer
    size = dtype_bytes(str(buffer.element))
    return offset(tile.pointer(buffer), i64(tile.index(load.offsets[0])) * (buffer.strides[0] * size))
