"""The code of a block's piece of a recurrent layer."""

from __future__ import annotations

from kitsune_mlir.codegen.gpu.emit.control_flow import if_
from kitsune_mlir.codegen.gpu.emit.value import Value, minimum
from kitsune_mlir.codegen.gpu.engines.recurrence.counted import Counted
from kitsune_mlir.codegen.gpu.engines.recurrence.direction import Share
from kitsune_mlir.codegen.gpu.engines.recurrence.flagged import Flagged
from kitsune_mlir.codegen.gpu.engines.recurrence.layout import Layout
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.codegen.gpu.interface.split_exchange import SplitExchange
from kitsune_mlir.codegen.gpu.interface.thread_group import ThreadGroup
from kitsune_mlir.dialects.recurrence import Recurrence

__all__ = ["emit_piece"]

BARRIER = 1


def emit_piece(tile: TileContext, number: Value, what: Recurrence, layout: Layout) -> None:
    """Emit piece `number` of the one tile, and the posts."""
    thread = tile.task.thread
    group = ThreadGroup.leading(tile.task, layout.threads, BARRIER)
    exchange = SplitExchange(tile.task, lambda: thread == 0, group.sync)
    each = layout.unit_blocks * layout.batch_blocks
    first = minimum(number % layout.unit_blocks * layout.units, layout.hidden - layout.units)
    row = minimum(number // layout.unit_blocks % layout.batch_blocks * layout.rows, layout.batch - layout.rows)
    block, leads = number // layout.unit_blocks, number % layout.unit_blocks == 0

    def work() -> None:
        exchange.claim()
        for direction in range(layout.directions):
            share = Share(tile, what, layout, group, exchange, direction, first, row, block, leads)
            run = Flagged(share) if layout.flagged else Counted(share)
            if_(number // each == direction, run.emit)

    group.only(work)
    exchange.end(tile, layout.pieces)
