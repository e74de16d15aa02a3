"""The sort engine: rows that a block can hold are put in order by a network, elements with their places.

Results are read again at the places found, so what is moved along may be computed (places in the row, converted keys). Equal
elements keep their order: a place is part of what is compared. Longer rows are sorted in parts, which are merged
(`frontend/orders.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.control_flow import for_
from kitsune_mlir.codegen.gpu.emit.value import Value, cast, minimum
from kitsune_mlir.codegen.gpu.engines.sort.keys import word_types, words
from kitsune_mlir.codegen.gpu.engines.sort.match import Sort, read
from kitsune_mlir.codegen.gpu.engines.sort.network import Item, Network
from kitsune_mlir.codegen.gpu.engines.sort.rows import Rows
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.codegen.gpu.interface.elements import stores_only
from kitsune_mlir.codegen.gpu.interface.engine import Engine
from kitsune_mlir.codegen.gpu.interface.offer import Candidate, Offer
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions, Plan
from kitsune_mlir.codegen.gpu.interface.thread_group import ThreadGroup
from kitsune_mlir.codegen.gpu.interface.tile_index import delinearize
from kitsune_mlir.codegen.gpu.interface.traits import Traits
from kitsune_mlir.codegen.tile_sizes import fit
from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.tile_records import TaskView
from kitsune_mlir.machine.rates import ENGINES
from kitsune_mlir.machine.target import Target

__all__ = ["LONGEST", "SortEngine"]

LONGEST = 8192
"""Elements of a row."""
THREADS = 256
BARRIER = 1
PLACES = (1 << 31) - 1
"""Bits of a place."""


def _network(sort: Sort, threads: int) -> Network:
    """What sorts as many rows as a block of so many threads holds, at least `THREADS`."""
    length = max(2, 1 << (sort.length - 1).bit_length())
    held = min(length, 4 if length <= 4 * THREADS else 8)
    lanes = max(THREADS, length // held)
    working = min(lanes, 1 << threads.bit_length() - 1)
    return Network(length, held, working, word_types(sort.type), lanes // working)


def _read(ops: list[ir.Operation]) -> Sort | str:
    """The one sort among some ops, as `match.read`, of rows that a block holds."""
    sort = read(ops)
    if not isinstance(sort, str) and sort.length > LONGEST:
        return f"its rows have {sort.length} elements, a block sorts {LONGEST} at most"
    return sort


class SortEngine(Engine):
    """See the module's docstring."""

    name: ClassVar[str] = "sort"
    traits: ClassVar[Traits] = Traits(ENGINES["sort"], keeps_order=True, along_rows=True)

    def offer(self, candidate: Candidate, machine: Target, options: KernelOptions) -> Offer | Decline:
        sort = _read(candidate.space.ops)
        if isinstance(sort, str):
            return Decline(self.name, sort)
        network = _network(sort, options.threads)
        rows = network.items // network.length
        return Offer(self.name, tuple(fit([dim.size for dim in candidate.space.dims], rows)))

    def plan(self, task: TaskView, options: KernelOptions) -> Plan | Decline:
        sort = _read(task.work())
        if isinstance(sort, str):
            return Decline(self.name, sort)
        if not stores_only(task, sort.op):
            return Decline(self.name, "it stores what the sort does not make")
        if options.threads < THREADS:
            return Decline(self.name, f"its rows need {THREADS} threads; the kernel has {options.threads}")
        network = _network(sort, options.threads)
        steps = (network.length.bit_length() - 1) * network.length.bit_length() // 2
        return Plan(
            self.name,
            task,
            shared_bytes=network.shared_bytes,
            threads=network.threads,
            registers=64,
            parameters={"length": network.length, "held": network.held, "steps": steps},
            streaming=True,
            private=(sort, network),
        )

    def emit_tile(self, plan: Plan, tile: TileContext) -> None:
        tile.resolve()
        tile.wait()
        _SortTile(tile, *plan.private).emit()
        tile.finish()


class _SortTile:
    """Emits a tile."""

    def __init__(self, tile: TileContext, sort: Sort, network: Network):
        self.tile, self.sort, self.network = tile, sort, network
        self.rows = Rows(tile, sort)
        self.sizes = [size for dim, size in enumerate(shape_of(sort.op.results[0])) if dim != sort.axis]
        self.thread = tile.task.thread
        self.group = ThreadGroup.leading(tile.task, self.network.threads, BARRIER)

    def emit(self) -> None:
        """All rows of the tile."""
        rows = math.prod(self.sizes)
        at_once = self.network.items // self.network.length

        def work() -> None:
            for_(0, rows, at_once, lambda first: self._some(first, rows))

        self.group.only(work)

    def _some(self, first: Value, rows: int) -> None:
        network, sort, length = self.network, self.sort, self.sort.length
        each = network.length // network.held  # lanes of a row

        def place_of(lane: Value) -> tuple[Sequence[Value], Value]:
            """Where a lane's row is, and whether (i1) there is one."""
            row = first + lane // each
            return (delinearize(minimum(row, rows - 1), self.sizes) if self.sizes else ()), row < rows

        def read(lane: Value) -> list[Item]:
            where, _ = place_of(lane)
            items = []
            for number in range(network.held):  # whatever the order, so neighbouring threads read neighbours
                place = lane % each + number * each
                value = self.rows.read(0, where, minimum(place, length - 1))
                items.append(words(value, place, place < length, sort.descending, sort.signed))
            return items

        def write(lane: Value, items: list[Item]) -> None:
            where, inside = place_of(lane)
            start = lane % each * network.held
            # The low bits of the last word; what stands for no element has the largest number.
            places = [minimum(cast(item[-1], "i32") & PLACES, length - 1) for item in items]
            self.rows.write(where, start, places, inside)

        network.emit(read, write, self.thread, self.tile.task.shared, self.group.sync)
