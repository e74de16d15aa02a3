"""The `rows` engine: successive layers for tiles of up to 16 rows, so that few rows still give every multiprocessor a tile.

Every tile reads all weights from L2, which is what takes its time: it pays where `chain`, with tiles of 64 rows, would leave
most of the machine idle, and the weights are a few hundred kilobytes.
"""

from __future__ import annotations

from typing import ClassVar

from kitsune_mlir.codegen.gpu.contraction.match import COL, ROW
from kitsune_mlir.codegen.gpu.contraction.packed_pair import Lanes
from kitsune_mlir.codegen.gpu.emit.control_flow import if_, lane_id, warp_id
from kitsune_mlir.codegen.gpu.emit.memory import offset
from kitsune_mlir.codegen.gpu.emit.value import Value, i32, i64
from kitsune_mlir.codegen.gpu.emit.vectors import element_bytes, store_elements
from kitsune_mlir.codegen.gpu.engines.chain.few_rows.emit import FewRows
from kitsune_mlir.codegen.gpu.engines.chain.few_rows.plan import FewRowsPlan, plan_few_rows
from kitsune_mlir.codegen.gpu.interface.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.interface.engine import Engine
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions, Plan
from kitsune_mlir.codegen.gpu.interface.thread_group import ThreadGroup
from kitsune_mlir.codegen.gpu.interface.tile_view import TaskView
from kitsune_mlir.codegen.gpu.interface.window import Window
from kitsune_mlir.codegen.gpu.sm90.mbarrier import fence_async
from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.match_failure import MatchFailure

__all__ = ["RowsEngine"]

WARPS = 8
REGISTERS = 168
CREW = 1
"""Named barrier of the warps at work."""


class RowsEngine(Engine):
    """See the module's docstring."""

    name: ClassVar[str] = "rows"

    def plan(self, task: TaskView, limits: KernelOptions) -> Plan | Decline:
        try:
            plan = plan_few_rows(task, WARPS, limits.shared_bytes)
        except MatchFailure as reason:
            return Decline(self.name, str(reason))
        if plan.bytes > limits.shared_bytes:
            return Decline(self.name, f"rows need {plan.bytes} bytes of shared memory; there are {limits.shared_bytes}")
        if limits.threads < 32 * WARPS:
            return Decline(self.name, f"{WARPS} warps are needed; there are {limits.threads // 32}")
        parameters = {"layers": [[layer.layer.depth, layer.layer.cols] for layer in plan.layers], "rows": plan.chain.rows}
        if plan.ring:
            parameters["ring"] = f"{plan.ring.slots} x {plan.ring.slot_bytes} bytes"
        threads = 32 * WARPS
        return Plan(
            self.name,
            task,
            shared_bytes=plan.bytes,
            threads=threads,
            registers=REGISTERS,
            dependent=True,
            barriers=plan.ring.barriers(WARPS) if plan.ring else (),
            tensor_maps=plan.ring.map_uses if plan.ring else (),
            parameters=parameters,
            private=plan,
        )

    def emit(self, plan: Plan, task: TaskContext) -> None:
        def tile(tile: TileContext, turn: Value) -> Value:
            self._tile(plan, tile, turn)
            return turn + 1

        task.for_each_tile(tile, [i32(0)])

    def _tile(self, plan: Plan, tile: TileContext, turn: Value) -> None:
        layers: FewRowsPlan = plan.private
        task = tile.task
        tile.resolve()
        group = ThreadGroup.part(task, 0, 32 * WARPS, CREW)
        window = Window.of(layers.store, (ROW, COL)[: len(shape_of(layers.store.tensor))])

        def wait() -> None:
            if_(warp_id(group.thread) == 0, lambda: tile.poll_by_warp(lane_id(group.thread)))
            group.sync()
            if task.kernel.fences:
                fence_async()

        def run() -> None:
            waits = task.view.waits or task.kernel.dependent
            FewRows(layers, tile, group, task.shared, 0, turn).run(write, wait if waits else None)

        def write(row: Value, col: Value, lanes: Lanes) -> None:
            place = i64(row) * window.stride(ROW) + i64(col) * window.stride(COL)
            target, size = offset(window.start(tile), place * window.bytes), element_bytes(window.dtype)
            if window.along(COL):
                together = window.stride(COL) == 1 and window.align((COL,)) >= min(16, 2 * size)
                pairs = [(target, lanes.scalars)] if together else []
                if not together:
                    pairs = [(offset(target, n * window.stride(COL) * size), [lanes.at(n)]) for n in range(2)]
                for pointer, values in pairs:
                    store_elements(values, pointer, window.dtype, min(16, len(values) * size))
            else:
                if_(lane_id(group.thread) % 4 == 0, lambda: store_elements([lanes.at(0)], target, window.dtype, size))

        if_(task.thread < group.threads, run)
        tile.finish()
