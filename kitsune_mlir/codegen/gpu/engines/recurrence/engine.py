"""The recurrence engine: a recurrent layer's steps in one task, each block with some hidden units for all of them.

The block's rows of the weights stay in registers. After each step blocks hand their units' hidden states to each other
through L2: two arrays take turns, and a counter says how many blocks have written theirs, so that one poll a step is enough
(Diamos et al., "Persistent RNNs: Stashing Recurrent Weights On-Chip", 2016). A block overwrites an array when all others have
posted the step after it, which they do when they have read it.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.recurrence.emit import emit_piece
from kitsune_mlir.codegen.gpu.engines.recurrence.layout import Layer, Layout, layout_of
from kitsune_mlir.codegen.gpu.interface.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.interface.elements import unreadable
from kitsune_mlir.codegen.gpu.interface.engine import Engine, Steps
from kitsune_mlir.codegen.gpu.interface.offer import Candidate, Offer
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions, Plan
from kitsune_mlir.codegen.gpu.interface.split import Split
from kitsune_mlir.codegen.gpu.interface.traits import Traits
from kitsune_mlir.dialects.recurrence import RECURRENCE, Recurrence
from kitsune_mlir.dialects.tile_records import TaskView
from kitsune_mlir.machine.rates import ENGINES
from kitsune_mlir.machine.target import Target

__all__ = ["RecurrenceEngine"]


@dataclasses.dataclass(frozen=True)
class _Planned:
    what: Recurrence
    layout: Layout


def read(ops: list[ir.Operation], options: KernelOptions) -> _Planned | str:
    """The one recurrence among some ops, and how it is done; a reason where that is not possible."""
    found = [op for op in ops if op.name == RECURRENCE]
    if len(found) != 1:
        return "it holds no recurrence" if not found else "it holds several recurrences"
    if (reason := unreadable([op for op in ops if op != found[0]])) is not None:
        return reason
    what = Recurrence.of(found[0])
    layer = Layer.of(what, options.matmul_precision == "highest")
    layout = layout_of(layer, options.workers, options.shared_bytes, options.threads, not options.debug)
    if layout is None:
        sizes = f"{what.hidden} hidden units and a batch of {what.batch}"
        return f"{sizes} do not fit {options.workers} multiprocessors"
    return _Planned(what, layout)


class RecurrenceEngine(Engine):
    """See the module's docstring."""

    name: ClassVar[str] = "recurrence"
    traits: ClassVar[Traits] = Traits(ENGINES["recurrence"], one_block=True)

    def offer(self, candidate: Candidate, machine: Target, options: KernelOptions) -> Offer | Decline:
        found = read(candidate.space.ops, options)
        if isinstance(found, str):
            return Decline(self.name, found)
        return Offer(self.name, tuple(dim.size for dim in candidate.space.dims))

    def step(self, op: ir.Operation) -> Steps | None:
        found = read([op], KernelOptions())
        return None if isinstance(found, str) else Steps(found.what.steps, found.layout.step_seconds, found.layout.pieces)

    def plan(self, task: TaskView, options: KernelOptions) -> Plan | Decline:
        found = read(task.work(), options)
        if isinstance(found, str):
            return Decline(self.name, found)
        what, layout = found.what, found.layout
        if not {store.tensor for store in task.stores} <= set(what.op.results):
            return Decline(self.name, "it stores what the recurrence does not make")
        if not set(what.given) <= {load.tensor for load in task.loads}:
            return Decline(self.name, "what is given is not in memory")
        groups = layout.directions * layout.batch_blocks
        return Plan(
            self.name,
            task,
            shared_bytes=layout.shared_bytes,
            threads=layout.threads,
            registers=layout.registers,
            parameters={
                **{"units": layout.units, "rows": layout.rows, "pieces": layout.pieces, "warps": layout.warps},
                **{"held": layout.held, "stored": layout.stored, "again": layout.own_k_blocks - layout.held - layout.stored},
                **{"together": layout.together, "passes": layout.passes, "flagged": layout.flagged},
            },
            split=Split(layout.pieces, groups * 2 * layout.state_bytes, groups, layout.pieces, spread=True, own=True),
            private=found,
        )

    def emit(self, plan: Plan, task: TaskContext) -> None:
        planned: _Planned = plan.private

        def piece(tile: TileContext, number) -> None:
            tile.resolve()
            tile.wait()
            emit_piece(tile, number, planned.what, planned.layout)

        task.for_each_piece(piece)
