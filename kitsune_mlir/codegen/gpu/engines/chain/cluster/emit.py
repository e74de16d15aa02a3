"""Chains of layers by clusters: the roles of a block, and how a layer's slices get to the other blocks.

Every block multiplies the layer's whole input, which it has in shared memory, with its slice of the weight, which comes from L2
through a ring, panel by panel and its own slice first. Then, in this order:

1. Each computing warpgroup tells all blocks of the cluster that it has read the input (`free`), and waits until all have.
2. It writes its part of the slice over the input, where the slice is in the next layer's.
3. One thread copies the slice into the other blocks' input; each arrives on a barrier of its own there (`full`).

What a copy reads is overwritten after the next layer at the earliest, when everybody has said that he has read the input, and
so that the copy has arrived. After the last layer the slice is staged in the same place, and stored.
"""

from __future__ import annotations

import functools
import operator
from typing import ClassVar

from kitsune_mlir.codegen.gpu.contraction.match import ROW
from kitsune_mlir.codegen.gpu.emit.control_flow import cluster_rank, for_, if_, warp_id
from kitsune_mlir.codegen.gpu.emit.inline_ptx import fresh
from kitsune_mlir.codegen.gpu.emit.memory import Cache, offset
from kitsune_mlir.codegen.gpu.emit.value import Value, i32
from kitsune_mlir.codegen.gpu.engines.chain.cluster.plan import PANEL, ClusterLayer, ClusterPlan, make_cluster_plan
from kitsune_mlir.codegen.gpu.engines.chain.core.accumulator_init import terms_of
from kitsune_mlir.codegen.gpu.engines.chain.core.evaluate import Evaluator
from kitsune_mlir.codegen.gpu.engines.chain.core.fragment_index import FragmentIndex
from kitsune_mlir.codegen.gpu.engines.chain.core.operand_reads import SliceMemory
from kitsune_mlir.codegen.gpu.engines.chain.core.panels import sides_of, swizzled
from kitsune_mlir.codegen.gpu.interface.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.interface.engine import Engine
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions, Plan
from kitsune_mlir.codegen.gpu.interface.tile_view import Load, Store, TaskView
from kitsune_mlir.codegen.gpu.interface.window import Window
from kitsune_mlir.codegen.gpu.sm90 import tma, wgmma
from kitsune_mlir.codegen.gpu.sm90 import warp_specialize as roles
from kitsune_mlir.codegen.gpu.sm90.dsmem import push_span
from kitsune_mlir.codegen.gpu.sm90.ldmatrix import store_matrices
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Barrier, NamedBarrier, Ring, fence_async_shared, sync_cluster
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Slot as RingSlot
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.machine.shared_tile import SharedTile

__all__ = ["ClusterEngine"]

GROUP = 128
PAIR = 6
"""Named barrier of both computing warpgroups."""
PRODUCER_REGISTERS = 24


class ClusterEngine(Engine):
    """See the module's docstring."""

    name: ClassVar[str] = "cluster"

    def plan(self, task: TaskView, limits: KernelOptions) -> Plan | Decline:
        try:
            return make_cluster_plan(self.name, task, limits)
        except MatchFailure as reason:
            return Decline(self.name, str(reason))

    def emit(self, plan: Plan, task: TaskContext) -> None:
        chain: ClusterPlan = plan.private
        sync_cluster()  # the other blocks' barriers are initialised
        consume = functools.partial(_compute, chain, task)
        roles.specialize(task, _Producer(chain, task).run, consume, PRODUCER_REGISTERS)
        sync_cluster()  # nobody reaches for this block's memory any more


class _Places:
    """Shared memory and mbarriers of a block."""

    def __init__(self, plan: ClusterPlan, task: TaskContext):
        self.plan, self.task = plan, task
        self.rank = cluster_rank()

    @property
    def ring(self) -> Ring:
        """The stages of weights."""
        return Ring(self.task.barrier_base, self.plan.stages)

    @property
    def free(self) -> Barrier:
        """All warpgroups of the cluster have read the layer's input."""
        return self.task.barriers[2 * self.plan.stages + self.plan.cluster]

    @property
    def stored(self) -> Barrier:
        """The tile's result has left shared memory."""
        return self.task.barriers[2 * self.plan.stages + self.plan.cluster + 1]

    def full(self, slice_: Value | int) -> Barrier:
        """A slice of the layer's input has come."""
        base = offset(self.task.barrier_base, Barrier.BYTES * 2 * self.plan.stages)
        return Barrier(offset(base, slice_ * Barrier.BYTES))

    def panel(self, number: Value | int) -> Value:
        """A panel of the layer's input."""
        return offset(self.task.shared, number * self.plan.panel_bytes)

    def stage(self, stage: Value) -> Value:
        """A stage of weights."""
        return offset(offset(self.task.shared, self.plan.weights_offset), stage * self.plan.stage_bytes)

    def panel_at(self, number: int, turn: Value) -> Value:
        """The panel that a layer's `turn`-th product reads: a block begins with its own slice."""
        panels = self.plan.layers[number].panels
        if not number:
            return turn
        return (turn + self.rank * (panels // self.plan.cluster)) % panels

    def slice_of(self, number: int, panel: Value) -> Value:
        """The slice that a panel belongs to, and with whose barrier it comes."""
        panels = self.plan.layers[number].panels
        return panel // (panels // self.plan.cluster) if number else panel * self.plan.cluster // panels

    def phase(self, count: Value, number: int) -> Value:
        """Parity of the barriers that complete once a layer, for layer `number` of the block's tile number `count`."""
        return (count * len(self.plan.layers) + number) & 1


class _Producer:
    """The moving warpgroup: one thread streams weights, another one brings the rows of tiles."""

    def __init__(self, plan: ClusterPlan, task: TaskContext):
        self.plan, self.task, self.places = plan, task, _Places(plan, task)

    def run(self) -> None:
        warp, lane = warp_id(self.task.thread), self.task.thread & 31
        if_((warp == 0) & (lane == 0), self._weights)
        if_((warp == 1) & (lane == 0), self._rows)

    def _weights(self) -> None:
        def tile(_: TileContext, *state: Value) -> list[Value]:
            slot = list(state)
            for number, layer in enumerate(self.plan.layers):
                slot = for_(0, layer.panels, 1, functools.partial(self._weight, number, layer), slot)
            return slot

        self.task.for_each_tile(tile, self.places.ring.producer_start().values)

    def _weight(self, number: int, layer: ClusterLayer, turn: Value, stage: Value, parity: Value) -> list[Value]:
        places, ring, slot = self.places, self.places.ring, RingSlot(stage, parity)
        column = places.panel_at(number, turn) * PANEL
        for first in range(0, PANEL, self.plan.chunk):
            ring.empty(slot.stage).wait(slot.parity)
            full = ring.full(slot.stage)
            full.arrive_and_expect(layer.cols * self.plan.chunk * 2)
            place = [places.rank * layer.cols, column + first]
            tma.load_tile(places.stage(slot.stage), self.task.tensor_map(layer.map), full, place, cache=Cache.KEEP)
            slot = ring.next(slot)
        return slot.values

    def _rows(self) -> None:
        """The first layer's input, when the tile before has been stored."""
        plan, places = self.plan, self.places
        load = self.task.view.load_of(plan.chain.layers[0].ranges[0].value)
        assert load is not None

        def tile(tile: TileContext, count: Value) -> Value:
            start = _first_row(load, tile)
            places.stored.wait((count & 1) ^ 1)
            panels = plan.layers[0].panels
            for slice_ in range(plan.cluster):
                mine = [p for p in range(panels) if p * plan.cluster // panels == slice_]
                full = places.full(slice_)
                full.arrive_and_expect(len(mine) * plan.panel_bytes) if mine else full.arrive()
                for panel in mine:
                    map_ = self.task.tensor_map(plan.rows_map)
                    tma.load_tile(places.panel(panel), map_, full, [start, panel * PANEL], cache=Cache.STREAM)
            return count + 1

        self.task.for_each_tile(tile, [i32(0)])


def _compute(plan: ClusterPlan, task: TaskContext, group: Value) -> None:
    computer = _Consumer(plan, task, group)
    task.for_each_tile(computer.tile, [i32(0), *computer.places.ring.consumer_start().values])


class _Consumer:
    """A computing warpgroup, number `group`: half of the rows, or half of the slice's columns."""

    def __init__(self, plan: ClusterPlan, task: TaskContext, group: Value):
        self.plan, self.task, self.group, self.places = plan, task, group, _Places(plan, task)
        self.thread = task.thread & (GROUP - 1)
        self.elected = self.thread == 0
        self.pair = NamedBarrier(PAIR, roles.CONSUMERS * GROUP)
        self.starts = {layer.result: terms_of(plan.chain, layer.result) for layer in plan.layers}
        self.folded = {term.total: result for result, terms in self.starts.items() for term in terms}
        # Rows that the warpgroup has, and where its part of a slice begins in parts.
        self.row = group * 64 if plan.halves == 1 else i32(0)
        self.part = group if plan.halves == 2 else i32(0)

    def tile(self, tile: TileContext, count: Value, stage: Value, parity: Value) -> list[Value]:
        """One tile: all layers."""
        plan, slot = self.plan, RingSlot(stage, parity)
        tile.resolve()
        for number, layer in enumerate(plan.layers):
            cols = layer.cols // plan.halves
            memory = SliceMemory(plan, tile, self.task.shared, fresh(self.thread), self.row // 64, {})
            memory.first_col = self.places.rank * layer.cols + self.part * cols
            evaluator = Evaluator(plan.chain, memory, tile.index, self.folded)
            sums = self._start(evaluator, layer, cols)
            sums, slot = self._multiply(number, layer, cols, sums, count, slot)
            evaluator.sums[layer.result] = [sums]
            self._hand_over(number, layer, cols, evaluator, tile, count)
        return [count + 1, *slot.values]

    def _start(self, evaluator: Evaluator, layer: ClusterLayer, cols: int) -> list[Value] | None:
        """What the sums start from, in wgmma's order; None for zeros."""
        terms = self.starts[layer.result]
        if not terms:
            return None
        sums: list[Value] = []
        for block in range(cols // 8):
            for half in range(2):
                lanes = [evaluator.inner(term.op, term.value, FragmentIndex(0, half, block)) for term in terms]
                sums += [functools.reduce(operator.add, [item.at(lane) for item in lanes]) for lane in range(2)]
        return sums

    def _multiply(
        self, number: int, layer: ClusterLayer, cols: int, sums: list[Value] | None, count: Value, slot: RingSlot
    ) -> tuple[list[Value], RingSlot]:
        """The sums of the warpgroup's part of a layer."""
        plan, places, ring = self.plan, self.places, self.places.ring
        phase = places.phase(count, number)
        weights, rows = swizzled(layer.cols, plan.chunk), swizzled(plan.rows, PANEL)

        def start(sums: list[Value] | None, turn: Value, first: int, slot: RingSlot) -> list[Value]:
            panel = places.panel_at(number, turn)
            if not first:
                places.full(places.slice_of(number, panel)).wait(phase)
            ring.full(slot.stage).wait(slot.parity)
            a = wgmma.SharedOperand(rows, places.panel(panel), row=self.row, col=first)
            b = wgmma.SharedOperand(weights, places.stage(slot.stage), row=self.part * cols)
            return wgmma.multiply(sums, a, b, cols, layer.dtype, plan.chunk // 16)

        def more(sums: list[Value], turn: Value, firsts: range, before: RingSlot) -> tuple[list[Value], RingSlot]:
            """Parts of a panel, each with the release of the stage before."""
            for first in firsts:
                now = ring.next(before)
                sums = start(sums, turn, first, now)
                wgmma.wait(1, ())
                if_(self.elected, ring.empty(before.stage).arrive)
                before = now
            return sums, before

        def step(turn: Value, stage: Value, parity: Value, *sums: Value) -> list[Value]:
            started, now = more(list(sums), turn, range(0, PANEL, plan.chunk), RingSlot(stage, parity))
            return [*now.values, *started]

        started = start(sums, i32(0), 0, slot)
        started, slot = more(started, i32(0), range(plan.chunk, PANEL, plan.chunk), slot)
        if layer.panels > 1:
            stage, parity, *started = for_(1, layer.panels, 1, step, [*slot.values, *started])
            slot = RingSlot(stage, parity)
        done = wgmma.wait(0, started)
        if_(self.elected, ring.empty(slot.stage).arrive)
        return done, ring.next(slot)

    def _hand_over(
        self, number: int, layer: ClusterLayer, cols: int, evaluator: Evaluator, tile: TileContext, count: Value
    ) -> None:
        """Give the layer's slice to everybody, or store it."""
        plan, places = self.plan, self.places
        last = number == len(plan.layers) - 1
        slice_bytes = layer.cols // PANEL * plan.panel_bytes
        phase = places.phase(count, number)

        def read() -> None:
            """The input has been read; what comes next is expected before anybody may send it."""
            if not last:
                if_(self.group == 0, expect)
            for other in range(plan.cluster):
                places.free.arrive_remote(i32(other))

        def expect() -> None:
            for other in range(1, plan.cluster):
                places.full((places.rank + other) % plan.cluster).arrive_and_expect(slice_bytes)

        if_(self.elected, read)
        words = self._words(layer, cols, evaluator)
        places.free.wait(phase)
        target, tile_ = (places.panel(0), plan.result_tile) if last else (self._own(layer), swizzled(plan.rows, PANEL))
        self._write(words, target, tile_, cols)
        fence_async_shared()
        self.pair.sync()

        def send() -> None:
            for other in reversed(range(1, plan.cluster)):  # first to the block that reads this slice first after its own
                there = (places.rank + other) % plan.cluster
                push_span(target, target, slice_bytes, places.full(places.rank), there)
            places.full(places.rank).arrive()

        def keep() -> None:
            row = _first_row(plan.result, tile)
            for first in range(0, layer.cols, tile_.cols):
                place = [row, places.rank * layer.cols + first]
                source = offset(target, first // tile_.cols * tile_.bytes)
                tma.store_tile(self.task.tensor_map(plan.result_map), source, place)
            tma.commit()
            tma.wait(0, read=True)
            places.stored.arrive()

        if_(self.elected & (self.group == 0), keep if last else send)

    def _own(self, layer: ClusterLayer) -> Value:
        """Where the block's slice of a layer lies in the next one's input."""
        return self.places.panel(self.places.rank * (layer.cols // PANEL))

    def _words(self, layer: ClusterLayer, cols: int, evaluator: Evaluator) -> list[Value]:
        """The warpgroup's part as pairs of 16 bits, two halves of each block of 8 columns."""
        places = [FragmentIndex(0, half, block) for block in range(cols // 8) for half in range(2)]
        return [evaluator.tensor(layer.output, place).word for place in places]

    def _write(self, words: list[Value], target: Value, tile: SharedTile, cols: int) -> None:
        """Put the warpgroup's part into panels of `tile`'s layout from `target` on."""
        lane = self.thread & 31
        row = (self.thread // 32 << 4) + (lane & 15) + self.row
        first = self.part * cols
        for col in range(0, cols, 16):
            at = tile.offset(row, (lane >> 4 << 3) + (col % tile.cols) + (first % tile.cols))
            panel = (first + col) // tile.cols * tile.bytes
            store_matrices(offset(offset(target, panel), at), words[col // 4 : col // 4 + 4])


def _first_row(record: Load | Store, tile: TileContext) -> Value:
    """The tile's first row in a buffer."""
    window = Window.of(record, sides_of(record.tensor))
    return next((tile.index(dim.start) for dim in window.dims if dim.side == ROW), i32(0))
