"""The radix sort engine: long rows are put in order by all blocks together, a byte of the keys after the other.

A row is a tile's, and a tile is shared by blocks (`interface/split.py`), each of which has a part of the row:

    keys    elements become unsigned numbers in the same order (`sort.keys`), which lie in memory beside their places
    for each byte, the lowest first:
    sort    a block sorts its part by the byte, keeping the order of equal ones, and says how many of each it has
    meet    all parts are sorted
    move    entries go where those of smaller bytes, and of equal ones in earlier parts, leave room
    meet    all entries are there
    write   results are what the elements at the places give

Bytes that all keys of a row have in common are left out: blocks say which bits of their keys differ. (Satish, Harris and
Garland, "Designing efficient sorting algorithms for manycore GPUs", 2009.)
"""

from __future__ import annotations

from typing import ClassVar

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.value import Value
from kitsune_mlir.codegen.gpu.engines.sort.match import Sort, read
from kitsune_mlir.codegen.gpu.engines.sort.radix_layout import Layout, layout_of
from kitsune_mlir.codegen.gpu.engines.sort.radix_piece import Piece
from kitsune_mlir.codegen.gpu.interface.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.interface.elements import stores_only
from kitsune_mlir.codegen.gpu.interface.engine import Engine, Steps
from kitsune_mlir.codegen.gpu.interface.offer import Candidate, Offer
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions, Plan
from kitsune_mlir.codegen.gpu.interface.split import Split
from kitsune_mlir.codegen.gpu.interface.traits import Traits
from kitsune_mlir.dialects.tile_records import TaskView
from kitsune_mlir.machine.rates import CLOCK, ENGINES
from kitsune_mlir.machine.target import Target

__all__ = ["RadixSortEngine"]


def _read(ops: list[ir.Operation], workers: int, threads: int) -> tuple[Sort, Layout] | str:
    """The one sort among some ops, and how the rows of it are dealt out; a reason where the engine does not do it."""
    sort = read(ops)
    if isinstance(sort, str):
        return sort
    layout = layout_of(sort.length, sort.rows, sort.type, workers, threads)
    return layout if isinstance(layout, str) else (sort, layout)


class RadixSortEngine(Engine):
    """See the module's docstring."""

    name: ClassVar[str] = "radix_sort"
    traits: ClassVar[Traits] = Traits(ENGINES["radix_sort"], asked_next=("sort",), along_rows=True)

    def offer(self, candidate: Candidate, machine: Target, options: KernelOptions) -> Offer | Decline:
        found = _read(candidate.space.ops, machine.workers, options.threads)
        if isinstance(found, str):
            return Decline(self.name, found)
        tile = candidate.tile or (1,) * len(candidate.space.dims)
        if set(tile) - {1}:
            return Decline(self.name, f"tiles of {' x '.join(map(str, tile))} rows: each has one")
        return Offer(self.name, tile)

    def step(self, op: ir.Operation) -> Steps | None:
        if op.name != "tm_tensor.sort":
            return None
        options = KernelOptions()
        found = _read([op], options.workers, options.threads)
        return None if isinstance(found, str) else found[1].steps

    def plan(self, task: TaskView, options: KernelOptions) -> Plan | Decline:
        sort = read(task.work())
        if isinstance(sort, str):
            return Decline(self.name, sort)
        if not stores_only(task, sort.op):
            return Decline(self.name, "it stores what the sort does not make")
        if sort.rows != 1:
            return Decline(self.name, f"a tile has {sort.rows} rows")
        layout = layout_of(sort.length, task.tiles, sort.type, options.workers, options.threads)
        if isinstance(layout, str):
            return Decline(self.name, layout)
        tiles = task.tiles
        return Plan(
            self.name,
            task,
            shared_bytes=layout.shared_bytes,
            threads=layout.threads,
            registers=64,
            parameters={"part": layout.part, "pieces": layout.pieces, "chunk": layout.chunk, "passes": layout.passes},
            split=Split(layout.pieces, tiles * layout.bytes, tiles, tiles * layout.pieces, spread=True),
            cycles=round(layout.steps.count * layout.steps.seconds * CLOCK),
            private=(sort, layout),
        )

    def emit(self, plan: Plan, task: TaskContext) -> None:
        sort, layout = plan.private

        def piece(tile: TileContext, number: Value) -> None:
            tile.resolve()
            tile.wait()
            Piece(tile, sort, layout, number).emit()

        task.for_each_piece(piece)
