"""The `mma` engine: products on Hopper's tensor cores, with everything element-wise around them done in registers.

One block of 256 threads has a multiprocessor to itself. Its two warpgroups share a tile of up to 128 x 256; both operands
stream through a ring of stages in shared memory (`mma_ring`), or are copied there where TMA cannot read them (`mma_copy`).
The accumulators then run through the task's element-wise steps and are stored (`mma_epilogue`).
"""

from __future__ import annotations

from typing import ClassVar

from kitsune_mlir.codegen.gpu.barriers import fence_async_shared
from kitsune_mlir.codegen.gpu.builder import if_, warp_id
from kitsune_mlir.codegen.gpu.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.engine import Decline, Engine, Limits, Plan
from kitsune_mlir.codegen.gpu.mma_copy import Copier
from kitsune_mlir.codegen.gpu.mma_epilogue import Epilogue
from kitsune_mlir.codegen.gpu.mma_match import Mismatch
from kitsune_mlir.codegen.gpu.mma_order import ordered
from kitsune_mlir.codegen.gpu.mma_plan import THREADS, MmaPlan, make_plan
from kitsune_mlir.codegen.gpu.mma_ring import Ring
from kitsune_mlir.codegen.gpu.tasks import TaskView
from kitsune_mlir.codegen.gpu.value import Value, i32

__all__ = ["MmaEngine"]


class MmaEngine(Engine):
    """See the module's docstring."""

    name: ClassVar[str] = "mma"

    def plan(self, task: TaskView, limits: Limits) -> Plan | Decline:
        try:
            return make_plan(self.name, task, limits)
        except Mismatch as reason:
            return Decline(self.name, str(reason))

    def emit(self, plan: Plan, task: TaskContext) -> None:
        mma: MmaPlan = plan.private
        # The engine before may have used the same shared memory through the other proxy.
        fence_async_shared()
        task.sync()
        if mma.boxes is None:
            task.for_each_tile(lambda tile: _copied(mma, task, ordered(tile)))
        else:
            task.for_each_tile(lambda tile, first: _streamed(mma, task, tile.number, first), [i32(0)])


def _working(task: TaskContext, emit) -> None:
    """Emit code for the first 256 threads; surplus ones go straight to the barrier at the tile's end."""
    if task.threads == THREADS:
        emit()
    else:
        if_(warp_id(task.thread) < THREADS // 32, emit)


def _streamed(mma: MmaPlan, task: TaskContext, number: Value, first: Value) -> Value:
    """One tile with operands through the ring; `first` is the number of its first chunk. Returns the next tile's."""
    tile = ordered(TileContext(task, number))
    tile.resolve()
    thread, group = task.thread, warp_id(task.thread, 4)
    ring = Ring(mma, task, thread, group)
    following = first + mma.sum.chunks

    def start() -> None:
        if_(first == 0, lambda: ring.prefill(tile, first))  # later tiles: done by the tile before
        for wait in task.view.waits:
            tile.poll(wait)
        ring.fill_held(tile, first)

    def work() -> None:
        if_(thread == 0, start)
        accumulators = ring.product(tile, first)

        def look_ahead() -> None:
            after = number + task.blocks
            if_(after < task.view.tiles, lambda: ring.prefill(ordered(TileContext(task, after)), following))

        if_(thread == 0, look_ahead)
        _finish(mma, tile, thread, group, accumulators)

    _working(task, work)
    tile.finish()
    return following


def _copied(mma: MmaPlan, task: TaskContext, tile: TileContext) -> None:
    """One tile with operands that the threads copy."""
    tile.resolve()
    thread, group = task.thread, warp_id(task.thread, 4)
    tile.wait()

    def work() -> None:
        accumulators = Copier(mma, task, thread, group).product(tile)
        _finish(mma, tile, thread, group, accumulators)

    _working(task, work)
    tile.finish()


def _finish(mma: MmaPlan, tile: TileContext, thread: Value, group: Value, accumulators: list[Value]) -> None:
    epilogue = Epilogue(mma, tile, thread, group, accumulators)
    if mma.geometry.groups == 2:
        epilogue.store()
    else:
        if_(group == 0, epilogue.store)
