"""Weights that a block asks for while its kernel waits for the one before: the beginning of its first tile is brought to L2.

By ordinary prefetches of neighbouring sectors. Inside a kernel the ring alone is as fast or faster: what is asked for beyond it
queues up in front of the few bytes that other blocks are waiting for (measured on an H200).
"""

from __future__ import annotations

from kitsune_mlir.codegen.gpu.builder import for_, if_
from kitsune_mlir.codegen.gpu.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.gemv_plan import GemvPlan, Source
from kitsune_mlir.codegen.gpu.memory import offset, prefetch
from kitsune_mlir.codegen.gpu.mma_match import COL
from kitsune_mlir.codegen.gpu.value import Value, i64

__all__ = ["chunks_ahead", "fetch_ahead"]

AHEAD = 64 << 10
"""Bytes of a block's weights."""
SECTOR = 32
"""Bytes that one prefetch brings."""


def chunks_ahead(plan: GemvPlan) -> int:
    """How many whole chunks of the first pass are asked for; none if other tasks make the weights."""
    geometry = plan.geometry
    return 0 if plan.weights_wait else min(geometry.depth // geometry.chunk, AHEAD // geometry.weights_bytes)


def fetch_ahead(plan: GemvPlan, task: TaskContext, thread: Value, threads: int) -> None:
    """Bring the first weights of the block's first tile of a task to L2, if it has one."""
    geometry = plan.geometry
    run = chunks_ahead(plan) * geometry.chunk * geometry.bytes // SECTOR
    columns = min(geometry.pass_cols, geometry.cols)
    if not run:
        return

    def fetch() -> None:
        tile = TileContext(task, task.first)
        tile.resolve()
        for source in plan.weights:
            start = source.window.start(tile)

            def sector(number: Value, source: Source = source, start: Value = start) -> None:
                col, place = number // run, number % run
                prefetch(offset(offset(start, i64(col) * (source.window.stride(COL) * geometry.bytes)), place * SECTOR))

            for_(thread, columns * run, threads, sector)

    if_(task.first < task.view.tiles, fetch)
