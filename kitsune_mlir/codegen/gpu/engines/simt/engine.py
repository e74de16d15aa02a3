"""The simt engine: vectorised maps, and chains of maps and reductions over rows that stay in registers.

A task's tensors are never made as such. The engine asks for the elements of what is stored, and each is pulled through the
operations that make it, down to loads (`simt.evaluate`), so a chain of any length is one loop over memory. Two schedules ask:

* `simt.maps`: every thread for itself, by vectors, which may go to rows that indices name (`simt.updates`); loads that are
  read across their rows turn in shared memory (`simt.transpose`), rows do not matter where each element needs only those at
  its own place (`simt.linear`), and what is joined is made in panels between the seams (`dialects.joined`);
* `simt.rows`: the threads that share a row reduce over it together, through shuffles and shared memory. Its tiles may pass
  through shared memory (`simt.staging`), several blocks may share a long reduction (`simt.split_rows`), and the blocks of a
  cluster a row that none of them can keep (`simt.cluster_rows`).

`simt.choose` decides, by the rules written there and in `simt.choose_rows`. The engine declines matrix products, sorting,
scatter and everything else that has no pointwise form.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import ClassVar

from kitsune_mlir.codegen.gpu.contraction.row_addition import crosses
from kitsune_mlir.codegen.gpu.emit.control_flow import if_
from kitsune_mlir.codegen.gpu.emit.memory import offset
from kitsune_mlir.codegen.gpu.emit.value import Value
from kitsune_mlir.codegen.gpu.engines.simt import tiles
from kitsune_mlir.codegen.gpu.engines.simt.cached import Kept, Windows
from kitsune_mlir.codegen.gpu.engines.simt.choose import Choice, choose
from kitsune_mlir.codegen.gpu.engines.simt.choose_rows import DEFAULTS, Overrides
from kitsune_mlir.codegen.gpu.engines.simt.cluster_rows import Cluster
from kitsune_mlir.codegen.gpu.engines.simt.maps import MapSchedule, emit_maps
from kitsune_mlir.codegen.gpu.engines.simt.rows import emit_rows, sync_workers
from kitsune_mlir.codegen.gpu.engines.simt.schedule import RowSchedule
from kitsune_mlir.codegen.gpu.engines.simt.split_rows import Piece
from kitsune_mlir.codegen.gpu.engines.simt.staging import Pipeline
from kitsune_mlir.codegen.gpu.interface.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.interface.engine import Engine
from kitsune_mlir.codegen.gpu.interface.offer import Candidate, Offer
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions, Plan
from kitsune_mlir.codegen.gpu.interface.traits import Traits
from kitsune_mlir.dialects.access import iterator_kinds
from kitsune_mlir.dialects.iteration import Space
from kitsune_mlir.dialects.products import is_generic
from kitsune_mlir.dialects.tile_records import TaskView
from kitsune_mlir.errors import KitsuneError
from kitsune_mlir.machine.rates import ENGINES
from kitsune_mlir.machine.target import Target

__all__ = ["SimtEngine"]

FEW_THREADS = 256
"""Threads of a block that every kernel has room for."""


class SimtEngine(Engine):
    """See the module's docstring."""

    name: ClassVar[str] = "simt"
    traits: ClassVar[Traits] = Traits(
        ENGINES["simt"],
        general=True,
        keeps_order=True,
        polls_with_all_threads=True,
        ends_early=True,
        crowd=4,
        shares_sums=True,
    )

    def __init__(self, tuning: Overrides = DEFAULTS):
        self.tuning = tuning

    def offer(self, candidate: Candidate, machine: Target, options: KernelOptions) -> Offer | Decline:
        return tiles.offer(self.name, candidate, machine)

    def adds_rows(self, space: Space, kind: str, dtype: str, columns: int) -> bool:
        maps = all("reduction" not in iterator_kinds(op) for op in space.ops if is_generic(op))
        return maps and not crosses(kind, dtype, columns)

    def plan(self, task: TaskView, options: KernelOptions) -> Plan | Decline:
        try:
            choice = choose(task, self.tuning, options.workers)
            if choice.threads > options.threads:
                choice = choose(task, dataclasses.replace(self.tuning, threads=FEW_THREADS), options.workers)
        except KitsuneError as error:
            return Decline(self.name, str(error))
        if choice.threads > options.threads:
            return Decline(self.name, f"its rows need {choice.threads} threads; the kernel has {options.threads}")
        if choice.shared_bytes > options.shared_bytes:
            return Decline(self.name, f"its reductions need {choice.shared_bytes} bytes of shared memory")
        return Plan(
            engine=self.name,
            task=task,
            shared_bytes=choice.shared_bytes,
            threads=choice.threads,
            barriers=(1,) * (choice.staging.slots * choice.staging.parts) if choice.staging else (),
            async_reads=choice.staging is not None and any(p.window.buffer.role != "input" for p in choice.staging.loads),
            async_writes=choice.staging is not None and bool(choice.staging.stores),
            registers=choice.registers,
            parameters=choice.words,
            split=choice.split,
            streaming=choice.staging is None or choice.staging.slots == 1,
            cluster=choice.cluster,
            private=choice,
        )

    def emit(self, plan: Plan, task: TaskContext) -> None:
        choice: Choice = plan.private
        if choice.split is not None:
            task.for_each_piece(lambda tile, number: self._emit_piece(choice, tile, number))
            return
        cluster, kept = None, None
        if choice.table is not None:
            kept = choice.table.windows(offset(task.shared, choice.table_start))
        if choice.cluster > 1:
            (schedule,) = choice.schedules
            assert isinstance(schedule, RowSchedule)
            cluster = Cluster.open(schedule.blocks, schedule.share)
        if choice.staging is not None:
            pipeline = Pipeline(choice.staging, choice.graph, task, cluster)

            def work(tile: TileContext, windows: Windows, arrive: Callable[[Value], None] | None) -> None:
                self._emit_work(choice, tile, windows, cluster, arrive, kept)

            pipeline.run(work, functools.partial(self._prepare, choice, task) if kept is not None else None)
        elif cluster is not None:
            cluster.meet()
            task.for_each_tile(lambda tile: self._emit_work(choice, tile, None, cluster))
        elif kept is not None and choice.alone:
            # The launch has a block for each tile, whose loads are under way while it makes what it keeps. Without a loop over
            # tiles it takes fewer registers: five of a row of 32 elements a thread.
            assert choice.table is not None
            table, tile = choice.table, TileContext(task, task.first, task.first)

            def body() -> None:
                finish = table.begin(choice.graph, TileContext(task, task.first), offset(task.shared, choice.table_start))
                self._emit_tile(plan, tile, dataclasses.replace(kept, meet=lambda: (finish(), task.sync()) and None))

            if_(task.first < task.tiles, body)
        elif kept is not None:
            self._prepare(choice, task)
            task.for_each_tile(lambda tile: self._emit_tile(plan, tile, kept))
            task.sync()
        else:
            super().emit(plan, task)

    @staticmethod
    def _fill(choice: Choice, task: TaskContext) -> None:
        assert choice.table is not None
        choice.table.fill(choice.graph, TileContext(task, task.first), offset(task.shared, choice.table_start))

    @classmethod
    def _prepare(cls, choice: Choice, task: TaskContext) -> None:
        """What the block makes for all rows."""
        cls._fill(choice, task)
        task.sync()

    def emit_tile(self, plan: Plan, tile: TileContext) -> None:
        self._emit_tile(plan, tile, None)

    def _emit_tile(self, plan: Plan, tile: TileContext, kept: Kept | None) -> None:
        choice: Choice = plan.private
        tile.wait()
        self._emit_work(choice, tile, None, kept=kept)
        # Without posts and shared memory that tiles write nobody waits for this one inside the kernel: warps may run ahead.
        if plan.task.posts or (choice.table_start if choice.table else plan.shared_bytes):
            tile.finish()

    @staticmethod
    def _emit_piece(choice: Choice, tile: TileContext, number: Value) -> None:
        (schedule,) = choice.schedules
        assert choice.split is not None and isinstance(schedule, RowSchedule)
        tile.wait()
        rows = schedule.space.row_count
        piece = Piece(choice.split, number, tile, rows, lambda: sync_workers(tile, schedule))
        emit_rows(schedule, choice.graph, tile, piece=piece)
        if_(piece.last, tile.finish, tile.task.sync)

    @staticmethod
    def _emit_work(
        choice: Choice,
        tile: TileContext,
        windows: Windows | None,
        cluster: Cluster | None = None,
        arrive: Callable[[Value], None] | None = None,
        kept: Kept | None = None,
    ) -> None:
        for schedule in choice.schedules:
            if isinstance(schedule, MapSchedule):
                emit_maps(schedule, choice.graph, tile)
            else:
                emit_rows(schedule, choice.graph, tile, windows, cluster=cluster, arrive=arrive, kept=kept)
