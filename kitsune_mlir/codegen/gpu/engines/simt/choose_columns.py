"""Reductions along a dimension whose neighbours lie apart in memory: who shares them, and how long they stay in registers.

1. Threads of a warp lie along memory, at most a warp of vectors; the rest of the block divides the columns.
2. What is gone over several times stays in a block's registers where it fits them.
3. Else, in a program of its own, the blocks of a cluster divide the columns where that saves two passes over memory or more,
   and each keeps `LEAST_KEPT` bytes between their meetings: memory is read once.
4. Else each pass reads memory again, with large blocks where there are few.
"""

from __future__ import annotations

import dataclasses

from kitsune_mlir.codegen.gpu.engines.simt.graph import Graph
from kitsune_mlir.codegen.gpu.engines.simt.row_space import RowSpace
from kitsune_mlir.codegen.gpu.engines.simt.schedule import RowSchedule

__all__ = ["BYTES_IN_FLIGHT", "MOST_BLOCKS", "MOST_THREADS", "ROW_ELEMENTS", "THREADS", "column_schedule", "farther"]

THREADS = 256
MOST_THREADS = 1024
WARP = 32

BYTES_IN_FLIGHT = 64
"""Bytes that a thread should have on the way: 256 threads, four blocks a multiprocessor."""

ROW_ELEMENTS = 32
"""Elements of rows that a thread keeps at a time, where several passes go over them."""

MOST_BLOCKS = 8
"""Blocks of a cluster on every device."""

LEAST_KEPT = 40 << 10
"""Bytes of memory in a block's registers below which the blocks of a cluster would meet too often."""


def column_schedule(
    graph: Graph, space: RowSpace, width: int, read: int, passes: int, workers: int, cluster: int | None
) -> RowSchedule:
    """A schedule for rows that are neighbours in memory.

    Args:
        width: points of a vector.
        read: bytes that a vector loads.
        passes: over the columns.
        cluster: blocks that share the columns; None for the rule.
    """
    task = graph.task
    schedule = _schedule(space, width, read, passes, THREADS)
    alone = task.program_tasks == 1 and not task.waits and not task.posts
    if not alone or passes < 2:
        return schedule
    if cluster:
        return _shared(schedule, cluster)
    if schedule.resident:
        return schedule
    blocks = 2
    while passes > 2 and blocks <= MOST_BLOCKS:
        shared = _shared(schedule, blocks)
        if shared.resident and shared.col_steps * read * THREADS >= LEAST_KEPT:
            return shared
        blocks *= 2
    return _schedule(space, width, read, passes, MOST_THREADS) if task.tiles <= 2 * workers else schedule


def farther(schedule: RowSchedule, read: int, pieces: int) -> RowSchedule:
    """The same with more on the way, as far as a block that has a piece of each row has steps: for what is read once, mostly by
    one block of a multiprocessor."""
    most = min(2 * BYTES_IN_FLIGHT // read, 2 * ROW_ELEMENTS // schedule.width, schedule.col_steps // pieces)
    return dataclasses.replace(schedule, steps=max(schedule.steps, most))


def _schedule(space: RowSpace, width: int, read: int, passes: int, threads: int) -> RowSchedule:
    vectors = -(-space.row_count // width)
    fast = 1
    # A whole warp side by side is what memory wants; beyond that, threads are better used for more columns at a time.
    while fast < vectors and fast < WARP:
        fast *= 2
    steps = -(-space.col_count // (threads // fast))
    resident = passes > 1 and steps * width <= 2 * ROW_ELEMENTS
    group = steps if resident else max(1, min(steps, BYTES_IN_FLIGHT // read, ROW_ELEMENTS // width))
    return RowSchedule(space, threads, width, fast, 1, group, resident)


def _shared(schedule: RowSchedule, blocks: int) -> RowSchedule:
    """The same by the blocks of a cluster, resident where a thread can keep its share."""
    shared = dataclasses.replace(schedule, blocks=blocks)
    steps = shared.col_steps
    resident = steps * shared.width <= 2 * ROW_ELEMENTS
    return dataclasses.replace(shared, steps=steps if resident else schedule.steps, resident=resident)
