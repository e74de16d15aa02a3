"""Which schedule a task gets: maps, or rows (`simt.choose_rows`).

1. No reductions, reductions over windows (pooling), or of fewer than `short_reductions.SHORT` elements: a map. Otherwise rows.
2. A map's vectors have the width with the fewest loads and stores an element, by a trial emission; the smaller one if it is
   close.
3. A thread has `BYTES_IN_FLIGHT` on the way, as far as registers and the tile allow.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.simt.choose_rows import (
    DEFAULTS,
    Overrides,
    choose_rows,
    registers_of,
    shared_bytes,
)
from kitsune_mlir.codegen.gpu.engines.simt.dry_run import probe
from kitsune_mlir.codegen.gpu.engines.simt.graph import Graph, generic_sizes
from kitsune_mlir.codegen.gpu.engines.simt.hoisted import Table, find_table
from kitsune_mlir.codegen.gpu.engines.simt.linear import is_flat
from kitsune_mlir.codegen.gpu.engines.simt.maps import MapSchedule, try_maps
from kitsune_mlir.codegen.gpu.engines.simt.memory import Access
from kitsune_mlir.codegen.gpu.engines.simt.schedule import RowSchedule
from kitsune_mlir.codegen.gpu.engines.simt.short_reductions import is_private
from kitsune_mlir.codegen.gpu.engines.simt.staging import Staging
from kitsune_mlir.codegen.gpu.engines.simt.transpose import CrossedLoad, crossed_loads
from kitsune_mlir.codegen.gpu.engines.simt.updates import Update, read_update
from kitsune_mlir.codegen.gpu.engines.simt.widths import best_width, widest_vector
from kitsune_mlir.codegen.gpu.interface.split import Split
from kitsune_mlir.dialects.access import iterator_kinds, shape_of
from kitsune_mlir.dialects.joined import panels_of
from kitsune_mlir.dialects.sizes import element_bytes
from kitsune_mlir.dialects.tile_records import Store, TaskView
from kitsune_mlir.dialects.unchanged import found_once
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.errors import UnsupportedError

__all__ = ["Choice", "choose"]

Output = Store | Update
"""What a task leaves behind."""

_Trial = tuple[tuple[Access, ...], tuple[tuple[int, int], ...]]
"""What a trial emission loads and stores, and the numbers of loads that it reads along another dimension than their last, each
with that."""

THREADS = 256
BYTES_IN_FLIGHT = 64
"""Bytes that a thread of a map or row schedule should have on the way: 256 threads, four blocks a multiprocessor."""

BYTES_ALONE = 128
"""The same where a multiprocessor has one block: there are no more tiles than multiprocessors."""

FLAT_VECTORS = 32
"""Least vectors of a tile that is taken as a span of memory."""

MOST_ELEMENTS = 32
"""Elements of a result that a thread makes at a time."""

LEAST_PANEL, SECTOR = 64, 32
"""Bytes of a panel's row, and what they are a multiple of: what memory writes at a time."""

REPEATED = 8
"""How often a thread may repeat a short reduction that neighbours make too."""

TABLE_ALIGN = 128
"""Where a table begins in shared memory."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """What to emit for a task: schedules one after the other, the block that they want, words for `explain`.

    Attributes:
        registers: a thread.
        staging: what goes through shared memory.
        split: several blocks share each tile.
        cluster: blocks of a cluster that have each tile together.
        table: what a block makes for all rows, at the end of its shared memory.
    """

    graph: Graph
    schedules: tuple[MapSchedule | RowSchedule, ...]
    threads: int
    shared_bytes: int
    registers: int
    words: dict
    staging: Staging | None = None
    split: Split | None = None
    cluster: int = 1
    table: Table | None = None

    @property
    def alone(self) -> bool:
        """Whether the launch has a block for each tile, which one pass of its threads does (see `Plan.streaming`)."""
        (schedule, *others), task = self.schedules, self.graph.task
        if others or not isinstance(schedule, RowSchedule) or self.staging is not None:
            return False
        if task.program_tasks > 1 or task.program_signals or task.spatial:
            return False
        return schedule.resident and schedule.rows_at_once >= schedule.space.row_count

    @property
    def table_start(self) -> int:
        """Where the table begins in the block's shared memory."""
        return self.shared_bytes - (self.table.bytes if self.table else 0)


def choose(task: TaskView, tuning: Overrides = DEFAULTS, workers: int = 132) -> Choice:
    """A schedule for the task.

    Args:
        tuning: choices that are not left to the rules.
        workers: multiprocessors.

    Raises:
        UnsupportedError: the task is none that simt does; says why.
    """
    graph = Graph(task)
    stores = [*task.stores, *(read_update(task, op) for op in graph.scatters)]
    reductions = {store: graph.needed(store.tensor) for store in stores}
    every = [op for op in graph.reductions if any(op in needed for needed in reductions.values())]
    if all(is_private(op) for op in every):
        return _maps(graph, stores, every, workers)
    alone = [store for store in stores if all(is_private(op) for op in reductions[store])]
    together = [store for store in task.stores if store not in alone]
    if any(isinstance(store, Update) and store not in alone for store in stores):
        raise UnsupportedError("kitsune.atomic_scatter", "rows that maps make are put there", None, str(task.op.location))
    try:
        return _rows(graph, every, list(task.stores), [store for store in alone if isinstance(store, Update)], tuning, workers)
    except UnsupportedError:
        if not alone:
            raise
        return _rows(graph, every, together, alone, tuning, workers)


def _rows(
    graph: Graph, reductions: list[ir.Operation], stores: list[Store], alone: list[Output], tuning: Overrides, workers: int
) -> Choice:
    found = choose_rows(graph, [op for op in reductions if not is_private(op)], stores, tuning, workers, bool(alone))
    schedule = found.schedule
    # What crosses in shared memory would lie where the rows' parts are exchanged.
    schedules = (schedule, *(map_schedules(graph, alone, crossing=False) if alone else ()))
    words = {
        "schedule": "rows" if schedule.space.row_major else "columns",
        "threads": schedule.threads,
        "width": schedule.width,
        "threads_per_row": schedule.fast if schedule.space.row_major else schedule.slow,
        "unroll": schedule.unroll,
        "steps": schedule.steps,
        "resident": schedule.resident,
    }
    if found.staging is not None:
        words["slots"] = found.staging.slots
    split = found.split if not alone else None
    if split is not None:
        words["pieces"] = split.pieces
    if schedule.blocks > 1:
        words["cluster"] = schedule.blocks
    shared, registers = shared_bytes(found, graph), registers_of(found)
    table = find_table(graph, schedule.space, schedule.width) if schedule.blocks == 1 and split is None else None
    if table is not None:
        words["kept"] = len(table.columns) + 2 * len(table.folds)
        shared = -(-shared // TABLE_ALIGN) * TABLE_ALIGN + table.bytes
    return Choice(graph, schedules, schedule.threads, shared, registers, words, found.staging, split, schedule.blocks, table)


# --- maps


def _maps(graph: Graph, stores: list[Output], reductions: Sequence[ir.Operation], workers: int) -> Choice:
    for op in reductions:
        kinds, sizes = iterator_kinds(op), generic_sizes(op)
        points = math.prod(size for size, kind in zip(sizes, kinds, strict=True) if kind == "parallel")
        most = max(math.prod(shape_of(store.tensor)) for store in stores)
        if most > REPEATED * points:
            limit = "a short reduction is used where it is made, not for many elements"
            raise UnsupportedError(op.name, limit, f"{points} results for {most} elements", str(op.location))
    alone = graph.task.tiles <= workers
    schedules = tuple(map_schedules(graph, stores, BYTES_ALONE if alone else BYTES_IN_FLIGHT))
    words = {"schedule": "map", "width": schedules[0].width, "unroll": schedules[0].unroll}
    if schedules[0].flat:
        words["flat"] = True
    if schedules[0].panels > 1:
        words["panels"] = schedules[0].panels
    heavy = max(schedule.width * schedule.unroll for schedule in schedules) >= 16 and _has_functions(graph)
    shared = sum(crossed.bytes for schedule in schedules for crossed in schedule.crossed)
    if shared:
        words["crossed"] = len(schedules[0].crossed)
    return Choice(graph, schedules, THREADS, shared, 80 if heavy else 64, words)


def _has_functions(graph: Graph) -> bool:
    """Whether elements go through functions that expand to tens of instructions each."""
    return any(op.name.startswith("math.") for top in graph.task.work() for op in walk(top))


def map_schedules(
    graph: Graph, stores: Sequence[Output], in_flight: int = BYTES_IN_FLIGHT, crossing: bool = True
) -> list[MapSchedule]:
    """One schedule for the stores of each shape.

    Args:
        in_flight: bytes that a thread should have on the way.
        crossing: whether loads that are read across their rows may turn in shared memory.
    """
    shapes: dict[tuple[int, ...], list[Output]] = {}
    for store in stores:
        shapes.setdefault(tuple(shape_of(store.tensor)), []).append(store)
    found = []
    for shape, group in shapes.items():
        panels = _panels(graph, group)

        def attempt(width: int, crossed: tuple[CrossedLoad, ...] = (), group=group, panels=panels) -> _Trial:
            schedule = MapSchedule(tuple(group), width, 1, crossed, panels=panels)
            loads = graph.task.loads
            # Of tasks that are alike, `stores` are alike where there are as many.
            key = ("maps", *graph.key, len(stores), *(stores.index(one) for one in group), "by", width, panels)
            key = (*key, *((loads.index(one.load), one.across, one.start, one.row_bytes, one.inner) for one in crossed))

            def emit() -> _Trial:
                accesses, seen = probe(graph.task, THREADS, lambda tile: try_maps(schedule, graph, tile))
                numbers = {load.tensor: number for number, load in enumerate(loads)}
                return tuple(accesses), tuple((numbers[tensor], across) for tensor, across in seen.items())

            return found_once(key, emit)

        # A second schedule of the task would use the same shared memory.
        points = math.prod(shape)
        alone = crossing and len(shapes) == 1 and points > 1 and not graph.scatters
        _, seen = attempt(2, panels=1) if alone else ((), ())
        crossed = tuple(crossed_loads([(graph.task.loads[number], across) for number, across in seen], points))
        panels = 1 if crossed else panels
        points //= panels

        def trial(width: int, attempt=attempt, crossed=crossed, panels=panels) -> Sequence[Access]:
            return attempt(width, crossed, panels=panels)[0]

        plain = [store for store in group if isinstance(store, Store)]
        rows = [store.columns for store in group if isinstance(store, Update)]
        rows += [shape[-1] // panels] if panels > 1 else []
        widths = [width for width in (1, 2, 4, 8, 16) if width <= max(1, points) and not any(n > 1 and n % width for n in rows)]
        width, accesses = best_width(widths, trial, graph)
        read = max(1, sum(access.bytes for access in accesses if not access.writes))
        wide = widest_vector([element_bytes(window.buffer.element) for window in (*graph.task.loads, *group)])
        if width < wide and points >= FLAT_VECTORS * wide and not crossed and not rows and is_flat(graph, plain):
            unroll = max(1, min(in_flight * width // (read * wide), -(-points // (THREADS * wide))))
            found.append(MapSchedule(tuple(group), wide, unroll, flat=True))
            continue
        unroll = max(1, min(in_flight // read, MOST_ELEMENTS // (width * panels), -(-points // (THREADS * width))))
        found.append(MapSchedule(tuple(group), width, unroll, crossed, panels=panels))
    return found


def _panels(graph: Graph, outputs: Sequence[Output]) -> int:
    """Panels of what is stored that threads make side by side (`MapSchedule.panels`), of whole sectors of memory; 1 where it is
    made in one."""
    if len(outputs) != 1 or not isinstance(outputs[0], Store):
        return 1
    tensor = outputs[0].tensor
    panels = panels_of(tensor, set(graph.task.work()))
    columns = shape_of(tensor)[-1] // panels * element_bytes(tensor.type) if panels > 1 else 0
    return panels if columns >= LEAST_PANEL and columns % SECTOR == 0 else 1
