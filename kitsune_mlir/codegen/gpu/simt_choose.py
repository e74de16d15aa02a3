"""The simt engine's cost rules: which schedule a task gets, how wide its vectors are and how many are in flight.

The rules, in the order in which they are applied:

1. No reductions, reductions over windows (pooling), or of fewer than `SHORT` elements: a map. Otherwise rows.
2. Vectors: the width with the fewest loads and stores an element, by a trial emission; the smaller one if it is close.
3. A row gets the fewest neighbouring threads (a power of two) that keep `ROW_ELEMENTS` of it in a thread's registers, but
   enough that all threads have work. More than a warp a row costs a barrier each reduction.
4. A thread has at least `BYTES_IN_FLIGHT` on the way, as far as `ROW_ELEMENTS` and the tile allow.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.simt_graph import Graph, generic_sizes, reduced_size
from kitsune_mlir.codegen.gpu.simt_maps import MapSchedule, emit_maps
from kitsune_mlir.codegen.gpu.simt_memory import Access
from kitsune_mlir.codegen.gpu.simt_probe import probe
from kitsune_mlir.codegen.gpu.simt_rows import emit_rows
from kitsune_mlir.codegen.gpu.simt_schedule import RowSchedule, levels_of, scratch_bytes
from kitsune_mlir.codegen.gpu.simt_space import RowSpace, find_rows
from kitsune_mlir.codegen.gpu.tasks import Store, TaskView, element_bytes
from kitsune_mlir.dialects.access import affine_maps, iterator_kinds, shape_of
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.errors import UnsupportedError

__all__ = ["Choice", "choose"]

THREADS = 256
SHORT = 8
"""Reductions of fewer elements are made by one thread."""

BYTES_IN_FLIGHT = 64
"""Bytes that a thread of a map or row schedule should have on the way: 256 threads, four blocks a multiprocessor."""

ROW_ELEMENTS = 32
"""Elements of rows that a thread keeps at a time, where several passes go over them."""

MOST_ELEMENTS = 64
"""... at most, before a row is read again from memory for each pass."""

LINE = 128
"""Bytes that neighbouring threads should read side by side: a line of the cache."""

CLOSE = 0.9
"""A wider vector must bring the accesses below this share of the narrower one's."""

REPEATED = 8
"""How often a thread may repeat a short reduction that neighbours make too."""

PRIVATE = 4096
"""Longest reduction that a thread makes alone."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """What to emit for a task: schedules one after the other, shared memory, registers a thread, words for `explain`."""

    graph: Graph
    schedules: tuple[MapSchedule | RowSchedule, ...]
    shared_bytes: int
    registers: int
    words: dict


def choose(task: TaskView) -> Choice:
    """A schedule for the task.

    Raises:
        UnsupportedError: the task is none that simt does; says why.
    """
    graph = Graph(task)
    reductions = {store: graph.needed(store.tensor) for store in task.stores}
    every = [op for op in graph.reductions if any(op in needed for needed in reductions.values())]
    if all(_is_private(op) for op in every):
        return _maps(graph, list(task.stores), every)
    alone = [store for store in task.stores if all(_is_private(op) for op in reductions[store])]
    try:
        return _rows(graph, every, list(task.stores), [])
    except UnsupportedError:
        together = [store for store in task.stores if store not in alone]
        if not alone:
            raise
        return _rows(graph, every, together, alone)


def _is_private(op: ir.Operation) -> bool:
    """Whether a thread makes a reduction alone: it is short, or over windows that overlap or lie apart."""
    kinds = iterator_kinds(op)
    if reduced_size(op) < SHORT:
        return True
    for map_ in affine_maps(op):
        for expression in map_.results:
            moving = [loop for loop in range(len(kinds)) if f"d{loop}" in _names(expression)]
            if not isinstance(expression, ir.AffineDimExpr) and any(kinds[loop] == "reduction" for loop in moving):
                return reduced_size(op) <= PRIVATE
    return False


def _names(expression: ir.AffineExpr) -> set[str]:
    text = str(expression)
    return {word for word in text.replace("(", " ").replace(")", " ").split() if word.startswith("d")}


# --- maps


def _maps(graph: Graph, stores: list[Store], reductions: Sequence[ir.Operation]) -> Choice:
    for op in reductions:
        kinds, sizes = iterator_kinds(op), generic_sizes(op)
        points = math.prod(size for size, kind in zip(sizes, kinds, strict=True) if kind == "parallel")
        most = max(math.prod(shape_of(store.tensor)) for store in stores)
        if most > REPEATED * points:
            limit = "a short reduction is used where it is made, not for many elements"
            raise UnsupportedError(op.name, limit, f"{points} results for {most} elements", str(op.location))
    schedules = tuple(map_schedules(graph, stores))
    words = {"schedule": "map", "width": schedules[0].width, "unroll": schedules[0].unroll}
    heavy = max(schedule.width * schedule.unroll for schedule in schedules) >= 16 and _has_functions(graph)
    return Choice(graph, schedules, 0, 80 if heavy else 64, words)


def _has_functions(graph: Graph) -> bool:
    """Whether elements go through functions that expand to tens of instructions each."""
    return any(op.name.startswith("math.") for top in graph.task.work() for op in walk(top))


def map_schedules(graph: Graph, stores: Sequence[Store]) -> list[MapSchedule]:
    """One schedule for the stores of each shape."""
    shapes: dict[tuple[int, ...], list[Store]] = {}
    for store in stores:
        shapes.setdefault(tuple(shape_of(store.tensor)), []).append(store)
    found = []
    for shape, group in shapes.items():
        points = math.prod(shape)

        def trial(width: int, group=group) -> list[Access]:
            schedule = MapSchedule(tuple(group), width, 1)
            return probe(graph.task, THREADS, lambda tile: emit_maps(schedule, graph, tile, probe=True))

        widths = [width for width in (1, 2, 4, 8, 16) if width <= max(1, points)]
        width, accesses = _best_width(widths, trial, _narrowest(graph))
        read = max(1, sum(access.bytes for access in accesses if not access.writes))
        unroll = max(1, min(BYTES_IN_FLIGHT // read, ROW_ELEMENTS // width, -(-points // (THREADS * width))))
        found.append(MapSchedule(tuple(group), width, unroll))
    return found


def _narrowest(graph: Graph) -> int:
    """Bytes of the smallest element that is loaded or stored."""
    task = graph.task
    return min(element_bytes(window.buffer.element) for window in (*task.loads, *task.stores))


def _best_width(widths: Sequence[int], trial, narrowest: int) -> tuple[int, list[Access]]:
    """The width with the fewest memory instructions a point, and its accesses."""
    best: tuple[int, list[Access]] | None = None
    cost = 0.0
    for width in widths:
        if width > 1 and (width * narrowest > 16 or width > 8 and narrowest > 1):
            break
        accesses = trial(width)
        each = sum(access.instructions for access in accesses) / width
        if best is None or each < CLOSE * cost:
            best, cost = (width, accesses), each
    assert best is not None
    return best


# --- rows


def _rows(graph: Graph, reductions: list[ir.Operation], stores: list[Store], alone: list[Store]) -> Choice:
    wide = [op for op in reductions if not _is_private(op)]
    space = find_rows(graph, wide, stores)
    for op in wide:
        if op not in space.shared:
            limit = "the reductions of a task are over the same columns"
            raise UnsupportedError(op.name, limit, generic_sizes(op), str(op.location))
    extent = (space.cols if space.row_major else space.rows)[-1][1]
    widths = [width for width in (1, 2, 4, 8, 16) if extent % width == 0]

    def trial(width: int) -> list[Access]:
        schedule = RowSchedule(space, THREADS, width, 1, 1, 1, True)
        return probe(graph.task, THREADS, lambda tile: emit_rows(schedule, graph, tile, probe=True))

    width, accesses = _best_width(widths, trial, _narrowest(graph))
    read = max(1, sum(access.bytes for access in accesses if not access.writes))
    schedule = row_schedule(space, width, read, len(levels_of(graph, space)))
    spans = scratch_bytes(schedule, graph)
    schedules = (schedule, *(map_schedules(graph, alone) if alone else ()))
    words = {
        "schedule": "rows" if space.row_major else "columns",
        "width": schedule.width,
        "threads_per_row": schedule.fast if space.row_major else schedule.slow,
        "unroll": schedule.unroll,
        "steps": schedule.steps,
        "resident": schedule.resident,
    }
    return Choice(graph, schedules, spans[-1][1], _registers(schedule, len(spans)), words)


def row_schedule(space: RowSpace, width: int, read: int, levels: int) -> RowSchedule:
    """Who shares rows.

    Args:
        width: points of a vector.
        read: bytes that a vector loads.
        levels: reductions that wait for each other.
    """
    rows, cols = space.row_count, space.col_count
    passes = levels + bool(space.full)  # how often the columns are gone over
    if not space.row_major:
        return _column_schedule(space, width, read, passes)
    vectors = -(-cols // width)
    most = max(1, MOST_ELEMENTS // width)
    wanted = max(1, ROW_ELEMENTS // width)
    fast = 1
    while fast < THREADS and fast < vectors:
        steps = -(-vectors // fast)
        if fast < 32 and fast * read < LINE:
            fast *= 2
            continue
        idle = rows * fast < THREADS // 2 and steps > 2
        if steps <= (wanted if fast < 32 else most) and not idle:
            break
        fast *= 2
    steps = -(-vectors // fast)
    slow = THREADS // fast
    resident = steps * width <= MOST_ELEMENTS
    if not resident:
        group = max(1, min(steps, BYTES_IN_FLIGHT * 2 // read, ROW_ELEMENTS // width))
        return RowSchedule(space, THREADS, width, fast, 1, group, False)
    unroll = max(1, min(BYTES_IN_FLIGHT // (steps * read), ROW_ELEMENTS // (steps * width), -(-rows // slow)))
    del passes
    return RowSchedule(space, THREADS, width, fast, unroll, steps, True)


def _column_schedule(space: RowSpace, width: int, read: int, passes: int) -> RowSchedule:
    """Rows are neighbours in memory: threads lie along them, and the rest of the block divides the columns."""
    vectors = -(-space.row_count // width)
    fast = 1
    while fast < vectors and fast < THREADS // 2:
        fast *= 2
    # A whole warp side by side is what memory wants; beyond that, threads are better used for more columns at a time.
    fast = min(fast, 32)
    steps = -(-space.col_count // (THREADS // fast))
    resident = passes > 1 and steps * width <= MOST_ELEMENTS
    group = steps if resident else max(1, min(steps, BYTES_IN_FLIGHT // read, ROW_ELEMENTS // width))
    return RowSchedule(space, THREADS, width, fast, 1, group, resident)


def _registers(schedule: RowSchedule, levels: int) -> int:
    """Registers a thread: enough for the values that live from level to level, and for addresses and temporaries."""
    alive = schedule.steps * schedule.width * schedule.unroll * (min(levels, 3) if schedule.resident else 1)
    for registers in (64, 80, 128, 168):
        if alive + 40 <= registers:
            return registers
    return 255
