"""The scan engine: `tm_tensor.scan` with the maps around it, every line by the threads of a block together.

A thread has a few neighbours of a line, which it combines one after the other. Threads of a warp add up what comes before by
shuffles, warps through shared memory, and what a block did before is carried from chunk to chunk (Harris, Sengupta and Owens,
"Parallel prefix sum (scan) with CUDA", GPU Gems 3). Where there are few lines, blocks take a line's chunks in turns: every one
scans its chunk in registers, says what all of it gives, and waits for those between the chunk that it had last and this one;
what came before them it knows (Merrill and Garland, "Single-pass parallel prefix scan with decoupled look-back": here a block
looks back at its own last chunk). So memory is read once and written once.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.reduce import COMBINING
from kitsune_mlir.codegen.gpu.emit.value import i32
from kitsune_mlir.codegen.gpu.engines.scan.combining import combining, neutral
from kitsune_mlir.codegen.gpu.engines.scan.emit import NUMBER_BYTES, ScanTile
from kitsune_mlir.codegen.gpu.engines.scan.layout import Layout, layout_of, shares_lines
from kitsune_mlir.codegen.gpu.interface.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.interface.elements import follows, needed_for, stores_only, unreadable
from kitsune_mlir.codegen.gpu.interface.engine import Engine
from kitsune_mlir.codegen.gpu.interface.offer import Candidate, Offer
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions, Plan
from kitsune_mlir.codegen.gpu.interface.split import Split
from kitsune_mlir.codegen.gpu.interface.traits import Traits
from kitsune_mlir.codegen.tile_sizes import even, fit, spread
from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.attribute_table import NEUTRAL
from kitsune_mlir.dialects.sizes import element_bytes
from kitsune_mlir.dialects.tile_records import TaskView
from kitsune_mlir.machine.rates import ENGINES
from kitsune_mlir.machine.target import Target

__all__ = ["ScanEngine"]

TILE_ELEMENTS = 4096
"""Of a tile with short lines: a block's chunk."""
COLUMNS = 32
"""Lines of a tile that are neighbours in memory: a warp's."""


@dataclasses.dataclass(frozen=True)
class Scan:
    """A scan that the engine does.

    Attributes:
        op: the operation. axis: its dimension.
        kind: how elements are combined (`emit.reduce`); None: as the operation's body says.
        type: of what is combined.
    """

    op: ir.Operation
    axis: int
    kind: str | None
    type: ir.Type


def read(ops: list[ir.Operation]) -> Scan | str:
    """The one scan among some ops, with maps before and after it; a reason where it is more, or other, than that."""
    scans = [op for op in ops if op.name == "tm_tensor.scan"]
    if len(scans) != 1:
        return "it holds no scan" if not scans else "it holds several scans"
    (op,) = scans
    inner = [o.operation for o in op.regions[0].blocks[0].operations]
    simple = len(inner) == 2 and inner[0].name in COMBINING
    if not (simple or NEUTRAL in op.attributes) or "true" not in str(op.attributes["inclusive"]):
        return "its scan combines by more than one operation, and nothing says what changes nothing"
    if list(op.results[1].uses):
        return "the scan's last elements are read apart"
    place = ops.index(op)
    starts = {o for init in list(op.operands)[1:] for o in needed_for(init, ops[:place])}
    before = [o for o in ops[:place] if o not in starts or o in needed_for(op.operands[0], ops[:place])]
    after = ops[place + 1 :]
    if (reason := unreadable([*before, *after]) or follows(after, [op.results[0]])) is not None:
        return reason
    kind = COMBINING[inner[0].name] if simple else None
    axis = ir.IntegerAttr(op.attributes["dimension"]).value
    return Scan(op, axis, kind, ir.RankedTensorType(op.operands[0].type).element_type)


@dataclasses.dataclass(frozen=True)
class _Planned:
    scan: Scan
    layout: Layout
    pieces: int


class ScanEngine(Engine):
    """See the module's docstring."""

    name: ClassVar[str] = "scan"
    traits: ClassVar[Traits] = Traits(ENGINES["scan"], keeps_order=True, along_rows=True)

    def offer(self, candidate: Candidate, machine: Target, options: KernelOptions) -> Offer | Decline:
        scan = read(candidate.space.ops)
        if isinstance(scan, str):
            return Decline(self.name, scan)
        shape = shape_of(scan.op.results[0])
        place = candidate.space.ops.index(scan.op)
        along = candidate.space.result_dims(place, 0)
        dims = [d for d, dim in enumerate(along) if dim is not None]
        if [along[d] for d in dims] != list(range(len(candidate.space.dims))):
            return Decline(self.name, "its lines are dealt out in another order than they lie in memory")
        outer = [shape[d] for d in dims if d < scan.axis]
        inner = [shape[d] for d in dims if d > scan.axis]
        columns = fit(inner, COLUMNS)
        rows = fit(outer, max(1, TILE_ELEMENTS // (shape[scan.axis] * math.prod(columns))))
        sizes = [*outer, *inner]
        if not sizes:
            return Offer(self.name, ())
        least = [*[1] * len(outer), *columns]
        return Offer(self.name, tuple(even(sizes, spread(sizes, [*rows, *columns], 2 * machine.workers, least), 1)))

    def plan(self, task: TaskView, options: KernelOptions) -> Plan | Decline:
        scan = read(task.work())
        if isinstance(scan, str):
            return Decline(self.name, scan)
        if not stores_only(task, scan.op):
            return Decline(self.name, "it stores what the scan does not make")
        shape = shape_of(scan.op.results[0])
        others = [size for dim, size in enumerate(shape) if dim != scan.axis]
        bytes_ = max(element_bytes(window.buffer.element) for window in (*task.loads, *task.stores))
        layout = layout_of(others, scan.axis, shape[scan.axis], bytes_)
        pieces, split = 1, None
        if shares_lines(layout, task.tiles, options.workers):
            layout = layout_of(others, scan.axis, shape[scan.axis], bytes_, shared=True)
            pieces = layout.chunks
        if pieces > 1:
            parts = task.tiles * pieces
            split = Split(pieces, parts * layout.lines * NUMBER_BYTES, parts, parts, chained=True)
        return Plan(
            self.name,
            task,
            shared_bytes=ScanTile.shared_bytes(layout),
            threads=layout.threads,
            registers=80,
            parameters={"segments": layout.segments, "elements": layout.elements, "lines": layout.at_once, "pieces": pieces},
            split=split,
            streaming=pieces == 1,
            private=_Planned(scan, layout, pieces),
        )

    def emit(self, plan: Plan, task: TaskContext) -> None:
        planned: _Planned = plan.private
        scan = planned.scan

        def made(tile: TileContext) -> ScanTile:
            return ScanTile(tile, scan.op, scan.axis, combining(scan.op, scan.kind, scan.type, tile), planned.layout)

        def piece(tile: TileContext, number, last, before):
            tile.resolve()
            tile.wait()
            return made(tile).emit_piece(number, planned.pieces, last, before)

        def whole(tile: TileContext) -> None:
            tile.resolve()
            tile.wait()
            made(tile).emit()
            tile.finish()

        if plan.split is not None:
            task.for_each_piece(piece, [i32(-1), neutral(scan.op, scan.kind, scan.type)])
        else:
            task.for_each_tile(whole)
