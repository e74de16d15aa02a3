"""Weights that a block asks for while its kernel waits for the one before: the beginning of its first tile is brought to L2.

Inside a kernel the ring alone is faster: what is asked for beyond it queues up in front of the few bytes that other blocks are
waiting for. Llama layers, one token, on an H200: 64 KB a block asked for during attention cost 0.4 %, 128 KB 1.7 %; 64 KB asked
for at the end of a run of products, behind which a norm comes, 2.9 %; and a ring that went on with the next run's weights while
the warps that multiply did the norm, 1.8 %.
"""

from __future__ import annotations

from kitsune_mlir.codegen.gpu.contraction.axes import COL
from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_
from kitsune_mlir.codegen.gpu.emit.value import Value
from kitsune_mlir.codegen.gpu.engines.gemv.plan import GemvPlan, Source
from kitsune_mlir.codegen.gpu.interface.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.sm90 import tma

__all__ = ["chunks_ahead", "fetch_ahead"]

AHEAD = 128 << 10
"""Bytes of a block's weights."""


def chunks_ahead(plan: GemvPlan) -> int:
    """How many whole chunks of the first pass are asked for; none if other tasks make the weights."""
    geometry = plan.geometry
    return 0 if plan.weights_wait else min(geometry.depth // geometry.chunk, AHEAD // geometry.weights_bytes)


def fetch_ahead(plan: GemvPlan, task: TaskContext, thread: Value, threads: int) -> None:
    """Bring the first weights of the block's first tile of a task to L2, if it has one."""
    geometry = plan.geometry
    panels = chunks_ahead(plan) * geometry.panels
    boxes = -(-min(geometry.pass_cols, geometry.cols) // geometry.box_cols)
    if not panels:
        return

    def fetch() -> None:
        tile = TileContext(task, task.first)
        tile.resolve()
        for number, source in enumerate(plan.weights):

            def box(index: Value, number: int = number, source: Source = source) -> None:
                panel, box = index // boxes, index % boxes
                places = source.places(tile, {COL: box * geometry.box_cols, "": panel * geometry.panel})
                tma.prefetch_tile(task.tensor_map(number), places)

            for_(thread, panels * boxes, threads, box)

    if_(task.first < task.view.tiles, fetch)
