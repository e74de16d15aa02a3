"""The histogram engine: each thread counts a part of a row in counters of its own in shared memory, which are added up then.

A thread's counters, 16 bits each, lie apart by as many as there are threads: those of a warp are in different banks, whatever
they count, and nobody waits for anybody. (Atomics of shared memory do one after the other what threads of a warp add to the
same counter, and most numbers of a histogram are in a few of its bins.) What is counted may be computed by maps.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_
from kitsune_mlir.codegen.gpu.emit.memory import load, offset, store
from kitsune_mlir.codegen.gpu.emit.operation import clone_lanes
from kitsune_mlir.codegen.gpu.emit.reduce import over_lanes
from kitsune_mlir.codegen.gpu.emit.value import Value, cast, constant, i32, select
from kitsune_mlir.codegen.gpu.engines.histogram.match import read
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.codegen.gpu.interface.elements import Elements, stores_only
from kitsune_mlir.codegen.gpu.interface.engine import Engine
from kitsune_mlir.codegen.gpu.interface.offer import Candidate, Offer
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions, Plan
from kitsune_mlir.codegen.gpu.interface.thread_group import ThreadGroup
from kitsune_mlir.codegen.gpu.interface.tile_index import delinearize
from kitsune_mlir.codegen.gpu.interface.traits import Traits
from kitsune_mlir.dialects.access import affine_maps, iterator_kinds, loop_sizes, shape_of
from kitsune_mlir.dialects.counting import Counting
from kitsune_mlir.dialects.sizes import element_bytes
from kitsune_mlir.dialects.tile_records import TaskView
from kitsune_mlir.machine.rates import ENGINES
from kitsune_mlir.machine.target import Target

__all__ = ["MOST_BINS", "HistogramEngine"]

THREADS = 256
MOST_BINS = 128
MOST_COUNT = (1 << 16) - 1
"""Of one counter."""
IN_FLIGHT = 4
"""Vectors of a thread on their way."""
BARRIER = 1
LANES = (16, 8, 4, 2, 1)


class HistogramEngine(Engine):
    """See the module's docstring."""

    name: ClassVar[str] = "histogram"
    traits: ClassVar[Traits] = Traits(ENGINES["histogram"], keeps_order=True)

    def offer(self, candidate: Candidate, machine: Target, options: KernelOptions) -> Offer | Decline:
        space = candidate.space
        counting = read(list(space.ops))
        if isinstance(counting, str):
            return Decline(self.name, counting)
        if (reason := _too_large(counting)) is not None:
            return Decline(self.name, reason)
        along = space.result_dims(space.ops.index(counting.op), 0)
        shape = shape_of(counting.op.results[0])
        whole = {dim: shape[counting.bins] if d == counting.bins else 1 for d, dim in enumerate(along) if dim is not None}
        return Offer(self.name, tuple(whole.get(number, 1) for number in range(len(space.dims))))

    def plan(self, task: TaskView, options: KernelOptions) -> Plan | Decline:
        counting = read(task.work())
        if isinstance(counting, str):
            return Decline(self.name, counting)
        if (reason := _too_large(counting)) is not None:
            return Decline(self.name, reason)
        if not stores_only(task, counting.op):
            return Decline(self.name, "it stores what is not counted")
        if options.threads < THREADS:
            return Decline(self.name, f"its rows need {THREADS} threads; the kernel has {options.threads}")
        bins = shape_of(counting.op.results[0])[counting.bins]
        return Plan(
            self.name,
            task,
            shared_bytes=(bins + 1) * THREADS * 2,
            threads=THREADS,
            registers=64,
            parameters={"bins": bins},
            streaming=True,
            private=counting,
        )

    def emit_tile(self, plan: Plan, tile: TileContext) -> None:
        tile.resolve()
        tile.wait()
        _Tile(tile, plan.private).emit()
        tile.finish()


def _too_large(counting: Counting) -> str | None:
    bins = shape_of(counting.op.results[0])[counting.bins]
    if bins > MOST_BINS:
        return f"it counts {bins} numbers; a thread has counters for {MOST_BINS}"
    if _terms(counting) // THREADS >= MOST_COUNT:
        return "a thread would count further than 16 bits"
    return None


def _terms(counting: Counting) -> int:
    return loop_sizes(counting.op)[iterator_kinds(counting.op).index("reduction")]


@dataclasses.dataclass
class _Tile:
    """Emits a tile."""

    tile: TileContext
    counting: Counting

    def __post_init__(self) -> None:
        counting = self.counting
        self.thread = self.tile.task.thread
        self.group = ThreadGroup.leading(self.tile.task, THREADS, BARRIER)
        self.sources = Elements(self.tile, counting.axis)
        self.results = Elements(self.tile, counting.bins)
        shape = shape_of(counting.op.results[0])
        self.bins, self.terms = shape[counting.bins], _terms(counting)
        self.rows = [size for dim, size in enumerate(shape) if dim != counting.bins]
        self.maps = affine_maps(counting.op)
        self.along = iterator_kinds(counting.op).index("reduction")
        widest = max(element_bytes(counting.op.operands[number].type) for number in counting.used)
        self.width = max(1, min(8, 16 // widest))

    def emit(self) -> None:
        """All rows of the tile."""

        def row(number: Value) -> None:
            where = delinearize(number, self.rows) if self.rows else ()
            mine = offset(self.tile.task.shared, self.thread * 2)
            for_(0, self.bins, 1, lambda bin: store(constant(0, "i16"), offset(mine, bin * (THREADS * 2))))
            self._count(where, mine)
            self.group.sync()
            self._add_up(where)
            self.group.sync()

        self.group.only(lambda: for_(0, math.prod(self.rows), 1, row))

    def _count(self, where, mine: Value) -> None:
        """The thread's part of a row; what is no bin's number goes to one counter more."""

        def some(first: Value) -> None:
            starts = [first + number * (THREADS * self.width) for number in range(IN_FLIGHT)]
            for start, places in [(start, self._places(where, start)) for start in starts]:
                for e, place in enumerate(places):
                    inside = place.below(self.bins) & (start + e < self.terms)
                    counter = offset(mine, select(inside, place, self.bins) * (THREADS * 2))
                    store(load(counter, "i16") + 1, counter)

        for_(self.thread * self.width, self.terms, IN_FLIGHT * THREADS * self.width, some)

    def _places(self, where, start: Value) -> list[Value]:
        """The numbers that are counted, of neighbours from `start` on: i32."""
        counting, op = self.counting, self.counting.op
        loops: dict[int, Value] = {self.along: start}
        others = [e for d, e in enumerate(self.maps[-1].results) if d != counting.bins]
        loops |= {ir.AffineDimExpr(e).position: index for e, index in zip(others, where, strict=True)}
        arguments = list(op.regions[0].blocks[0].arguments)
        known: dict[ir.Value, list[Value]] = {}
        for number in counting.used:
            place = [loops[ir.AffineDimExpr(e).position] for e in self.maps[number].results]
            known[arguments[number]] = self.sources.at(op.operands[number], place, self.width)
        clone_lanes(counting.body, known, self.width)
        return [cast(value, "i32") for value in known[counting.value]]

    def _add_up(self, where) -> None:
        """A warp adds up all threads' counters of a bin."""
        lane, warp = self.thread % 32, self.thread // 32
        shared, result = self.tile.task.shared, self.counting.op.results[0]

        def bin(number: Value) -> None:
            words = [load(offset(shared, number * (THREADS * 2) + (lane + at) * 4), "i32") for at in range(0, THREADS // 2, 32)]
            total = i32(0)
            for word in words:
                total = total + (word & MOST_COUNT) + (word >> 16)
            total = over_lanes("add", total, LANES)
            place = [*where[: self.counting.bins], number, *where[self.counting.bins :]]

            def write() -> None:
                for window in self.tile.task.view.stores:
                    values = self.results.at(window.tensor, place, 1, {result: [total]})
                    self.results.store(window, place, values)

            if_(lane == 0, write)

        for_(warp, self.bins, THREADS // 32, bin)
