"""Emitting a chain of wide layers (`chain.wide.plan`): who moves what, and what the two computing warpgroups do in a tile."""

from __future__ import annotations

import dataclasses
import functools
import operator

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.contraction.match import ROW
from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_, warp_id
from kitsune_mlir.codegen.gpu.emit.inline_ptx import fresh
from kitsune_mlir.codegen.gpu.emit.memory import Cache, offset, store
from kitsune_mlir.codegen.gpu.emit.value import Value, i32, select, vector
from kitsune_mlir.codegen.gpu.engines.chain.core.accumulator_init import reads_made, terms_of
from kitsune_mlir.codegen.gpu.engines.chain.core.body import QUAD, Scatter
from kitsune_mlir.codegen.gpu.engines.chain.core.column_vectors import copy_vectors
from kitsune_mlir.codegen.gpu.engines.chain.core.evaluate import Evaluator
from kitsune_mlir.codegen.gpu.engines.chain.core.fragment_index import FragmentIndex
from kitsune_mlir.codegen.gpu.engines.chain.core.operand_reads import Memory
from kitsune_mlir.codegen.gpu.engines.chain.core.panels import Source, swizzled
from kitsune_mlir.codegen.gpu.engines.chain.core.results import store_piece
from kitsune_mlir.codegen.gpu.engines.chain.core.scatter_rows import ROWS, Scatterer, numbers_of
from kitsune_mlir.codegen.gpu.engines.chain.wide.epilogue import Finisher, reads_of
from kitsune_mlir.codegen.gpu.engines.chain.wide.plan import PANEL, PANEL_BYTES, WARP_COLS, Pass, WidePlan, weight_tile
from kitsune_mlir.codegen.gpu.engines.chain.wide.prefetch_init import fetch_ahead
from kitsune_mlir.codegen.gpu.interface.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.sm90 import tma, wgmma
from kitsune_mlir.codegen.gpu.sm90 import warp_specialize as roles
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Barrier, NamedBarrier, Ring, fence_async, fence_async_shared
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Slot as RingSlot
from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.products import body_of

__all__ = ["emit_wide"]

GROUP = 128
OWN, PAIR = 4, 6
"""Named barriers: each warpgroup's own (two), both warpgroups."""
PRODUCER_REGISTERS = 24
AHEAD = 8
"""Pieces of 16 bytes of a row that are on their way before they are used."""


def emit_wide(plan: WidePlan, task: TaskContext) -> None:
    """Emit the task; all threads of the block call it."""
    roles.specialize(task, _Producer(plan, task).run, lambda group: _Consumer(plan, task, group).run(), PRODUCER_REGISTERS)


@dataclasses.dataclass(frozen=True)
class _Places:
    """Shared memory and mbarriers of a task."""

    plan: WidePlan
    task: TaskContext

    @property
    def ring(self) -> Ring:
        """The stages of weights."""
        return Ring(self.task.barrier_base, self.plan.stages)

    def rows(self, group: Value) -> Value:
        """A warpgroup's rows: the plan's slots, a panel each."""
        return offset(offset(self.task.shared, self.plan.rows_offset), group * (self.plan.slots * PANEL_BYTES))

    def full(self, slot: Value | int, group: Value) -> Barrier:
        """Tells that a panel has come."""
        return self._barrier(slot, group, 0)

    def empty(self, slot: Value | int, group: Value) -> Barrier:
        """Tells that a panel has been read."""
        return self._barrier(slot, group, self.plan.slots * self.plan.groups)

    def _barrier(self, slot: Value | int, group: Value, first: int) -> Barrier:
        base = offset(self.task.barrier_base, Barrier.BYTES * (2 * self.plan.stages + first))
        return Barrier(offset(base, (group * self.plan.slots + slot) * Barrier.BYTES))

    def slot(self, load: Value) -> Value:
        """Place of a tile's load of that number."""
        return load if self.plan.stays else load % self.plan.slots

    def parity(self, load: Value, count: Value) -> Value:
        """Parity of "full" for load number `load` of the block's tile number `count`."""
        if self.plan.stays:
            return count & 1
        turns, more = divmod(self.plan.loads, self.plan.slots)
        each = select(load % self.plan.slots < more, i32(turns + 1), i32(turns)) if more else i32(turns)
        return (count * each + load // self.plan.slots) & 1


class _Producer:
    """The moving warpgroup: one thread streams weights, one for each computing warpgroup brings its rows."""

    def __init__(self, plan: WidePlan, task: TaskContext):
        self.plan, self.task, self.places = plan, task, _Places(plan, task)

    def run(self) -> None:
        warp, lane = warp_id(self.task.thread), self.task.thread & 31
        if_((warp == 0) & (lane == 0), self._weights)
        if_((warp - 1).below(self.plan.groups), lambda: self._rows(warp - 1, lane))

    def _weights(self) -> None:
        def tile(_: TileContext, *state: Value) -> list[Value]:
            slot = list(state)
            for layer in self.plan.layers:
                for part, map_ in zip(layer.passes, layer.maps, strict=True):
                    step = functools.partial(self._weight_panel, part, map_)
                    slot = for_(0, layer.panels + (layer.tail > 0), 1, step, slot)
            return slot

        self.task.for_each_tile(tile, self.places.ring.producer_start().values)

    def _weight_panel(self, part: Pass, map_: int, panel: Value, stage: Value, parity: Value) -> list[Value]:
        """Bring a pass's columns of one panel of a weight's sum."""
        ring, tile = self.places.ring, weight_tile(part)
        ring.empty(stage).wait(parity)
        full = ring.full(stage)
        full.arrive_and_expect(tile.bytes)
        start = offset(self.task.shared, stage * self.plan.stage_bytes)
        for pair in range(4):
            place = [part.first // WARP_COLS, 0, pair, 0, panel * PANEL]
            target = offset(start, pair * (tile.bytes // 4))
            tma.load_tile(target, self.task.tensor_map(map_), full, place, cache=Cache.KEEP)
        return ring.next(RingSlot(stage, parity)).values

    def _rows(self, group: Value, lane: Value) -> None:
        """One warp: all waits for other tasks, then a warpgroup's rows."""
        plan, rows = self.plan, self.places.rows(group)

        def panel(tile: TileContext, count: Value, source: Source, map_: int, number: Value, load: Value) -> Value:
            slot = self.places.slot(load)
            self.places.empty(slot, group).wait(self.places.parity(load, count) ^ 1)
            full = self.places.full(slot, group)
            full.arrive_and_expect(PANEL_BYTES)
            start = next((tile.index(dim.start) for dim in source.window.dims if dim.side == ROW), i32(0))
            place = [start + group * plan.group_rows, number * PANEL]
            tma.load_tile(offset(rows, slot * PANEL_BYTES), self.task.tensor_map(map_), full, place)
            return load + 1

        def loads(tile: TileContext, count: Value) -> None:
            load = i32(0)
            for _ in range(plan.loads // plan.layers[0].panels):
                for source, map_ in plan.sources:
                    step = functools.partial(panel, tile, count, source, map_)
                    load = for_(0, source.length // PANEL, 1, step, [load])[0]

        def tile(tile: TileContext, count: Value) -> Value:
            tile.resolve()
            if self.task.view.waits:
                tile.poll_by_warp(lane)
            if_(lane == 0, lambda: loads(tile, count))
            return count + 1

        self.task.for_each_tile(tile, [i32(0)])


class _Consumer:
    """A computing warpgroup, number `group`."""

    def __init__(self, plan: WidePlan, task: TaskContext, group: Value):
        self.plan, self.task, self.group = plan, task, group
        self.places = _Places(plan, task)
        self.thread = task.thread & (GROUP - 1)
        self.elected = self.thread == 0
        self.own = NamedBarrier(group + OWN, GROUP)
        self.starts = {layer.result: terms_of(plan.chain, layer.result) for layer in plan.chain.layers}
        self.folded = {term.total: result for result, terms in self.starts.items() for term in terms}

    def run(self) -> None:
        """All threads of the warpgroup call it."""
        if self.plan.vectors:
            copy_vectors(self.plan.vectors.values(), self.task, self.group * GROUP + self.thread, 2 * GROUP)
            NamedBarrier(PAIR, 2 * GROUP).sync()

        def tiles() -> None:
            self.task.for_each_tile(self._tile, [i32(0), *self.places.ring.consumer_start().values])

        if self.plan.groups == 1:
            if_(self.group == 0, tiles)
        else:
            tiles()

    def _tile(self, tile: TileContext, count: Value, stage: Value, parity: Value) -> list[Value]:
        plan, chain = self.plan, self.plan.chain
        tile.resolve()
        for scatter in chain.scatters:
            tile.index(scatter.op.operands[2])
        memory = Memory(plan, tile, self.task.shared, fresh(self.thread), self.group, {})
        evaluator = Evaluator(chain, memory, tile.index, self.folded)
        ring = RingSlot(stage, parity)
        numbers: dict[Scatter, dict[FragmentIndex, Value]] = {}
        finisher: Finisher | None = None
        if any(reads_made(chain, term) for term in self.starts[plan.layers[0].layer.result]):
            self._wait_for_others(count)
        for number, layer in enumerate(plan.layers):
            for op, extract in self._gathers(number):
                for half in range(2):
                    evaluator.hold_index(op, extract.operands[1], FragmentIndex(half, 0))
            for index, part in enumerate(layer.passes):
                ring = self._pass(evaluator, number, index, count, ring)
                fetched = evaluator.memory.runs
                evaluator.keep(layer.settled, part.blocks)
                evaluator.memory.runs = fetched
                evaluator.sums = {}
                if not number and not index:
                    if plan.by_rows:
                        last = plan.order.stores[-1], plan.order.scatters[-1]
                        settled = plan.layers[-1].settled[0]
                        finisher = Finisher(plan, tile, self.task.shared, fresh(self.thread), self.group, settled, *last)
                    early = [scatter for scatter in chain.scatters if finisher is None or scatter not in finisher.scatters]
                    numbers = {scatter: numbers_of(scatter, tile, memory, ROWS) for scatter in early}
            if number + 1 < len(plan.layers):
                self._write_rows(evaluator, chain.layers[number + 1].ranges[0].value)
                fence_async_shared()
                self.own.sync()
            elif finisher is not None:
                fetched = finisher.fetch(i32(0))
                self._write_rows(evaluator, finisher.settled)
                finisher.run(self.places.rows(self.group), fetched, self.folded)
                fence_async_shared()
                self.own.sync()
                self._release_rows()
                break
            else:
                self._release_rows()
            scatterers = {s: Scatterer(s, tile, evaluator, numbers[s]) for s in plan.order.scatters[number]}
            self._finish(evaluator, tile, count, number, scatterers)
            evaluator.keep(())
        self._post(tile)
        return [count + 1, *ring.values]

    def _wait_for_others(self, count: Value) -> None:
        """Before the first sums start from what other tasks make: the rows come from a warp that has waited for these."""

        def wait() -> None:
            first = i32(0)
            self.places.full(self.places.slot(first), self.group).wait(self.places.parity(first, count))

        alike = all(wait.constant is not None for wait in self.task.view.waits)  # then the first tile has waited for all
        if_(count == 0, wait) if alike else wait()

    def _gathers(self, number: int) -> list[tuple[ir.Operation, ir.Operation]]:
        """The steps that read rows by index after product `number`: (generic, tensor.extract of its body)."""
        chain = self.plan.chain
        ops = dict.fromkeys(s.op for v, s in chain.steps.items() if s.kind == "map" and self.plan.order.ready[v] == number)
        found = [(op, inner) for op in ops for inner in body_of(op) if inner.name == "tensor.extract"]
        return [(op, inner) for op, inner in found if len(inner.operands) == 3]

    def _finish(
        self, evaluator: Evaluator, tile: TileContext, count: Value, number: int, scatterers: dict[Scatter, Scatterer]
    ) -> None:
        """Row reductions of a layer's results, then everything that is stored or added, piece by piece."""
        plan, order, chain = self.plan, self.plan.order, self.plan.chain
        stores, scatters = order.stores[number], order.scatters[number]
        if not stores and not scatters:
            return
        places = [
            FragmentIndex(half, block) for block in range(0, chain.layers[number].cols // 8, QUAD) for half in range(2)
        ]
        values = [*(record.tensor for record in stores), *(scatter.updates for scatter in scatters)]
        reads = reads_of(plan, plan.layers[number].settled, values, number)

        def fetch(place: FragmentIndex) -> None:
            """Start to load what a piece needs; loads of rows stay in this order among the stores."""
            for op, operand in reads:
                evaluator.operand(op, operand, place)

        for place in places[:AHEAD]:
            fetch(place)
        fetched = evaluator.memory.runs
        rows: tuple[ir.Value, ...] = ()
        for value, step in chain.steps.items():
            if step.kind == "reduce" and order.ready[value] == number:
                rows = (*rows, value)
                evaluator.keep((*plan.layers[number].settled, *rows))
                evaluator.hide(count >> (32 - len(rows)))  # a block has few tiles
        evaluator.memory.runs |= fetched
        for index, place in enumerate(places):
            for ahead in places[index + AHEAD : index + AHEAD + 1]:
                fetch(ahead)
            for record in stores:
                store_piece(record, evaluator, tile, place)
            for scatter in scatters:
                scatterers[scatter].add_piece(place)

    def _post(self, tile: TileContext) -> None:
        """The task's posts, after both warpgroups have written everything."""

        def post() -> None:
            if self.task.kernel.fences:
                fence_async()
            NamedBarrier(PAIR, GROUP * self.plan.groups).sync()
            if_(self.elected & (self.group == 0), tile.post)

        if self.task.view.posts:
            closing = tile.closing
            post() if closing is None else if_(closing, post)

    # --- a product ---------------------------------------------------------------------------------------------------

    def _pass(self, evaluator: Evaluator, number: int, index: int, count: Value, slot: RingSlot) -> RingSlot:
        """Sum the columns of pass `index` of a layer; the next place in the ring."""
        plan, layer = self.plan, self.plan.layers[number]
        part = layer.passes[index]
        loaded = not number and not (plan.stays and index)
        base = index * layer.panels if not number and not plan.stays else 0

        def multiply(sums: list[Value] | None, panel: Value, slot: RingSlot, width: int) -> list[Value]:
            self.places.ring.full(slot.stage).wait(slot.parity)
            place = panel if number else self.places.slot(panel + base)
            if loaded:
                self.places.full(place, self.group).wait(self.places.parity(panel + base, count))
            rows = offset(self.places.rows(self.group), place * PANEL_BYTES)
            a = wgmma.SharedOperand(swizzled(plan.group_rows, PANEL), rows)
            b = wgmma.SharedOperand(weight_tile(part), offset(self.task.shared, slot.stage * plan.stage_bytes))
            return wgmma.multiply(sums, a, b, part.cols, layer.layer.dtype, width // 16)

        def release(panel: Value, slot: RingSlot) -> None:
            """The product with a panel is complete."""

            def arrive() -> None:
                self.places.ring.empty(slot.stage).arrive()
                if not number and not plan.stays:
                    load = panel + base
                    if_(load + plan.slots < plan.loads, self.places.empty(self.places.slot(load), self.group).arrive)

            if_(self.elected, arrive)

        def step(panel: Value, stage: Value, parity: Value, *sums: Value) -> list[Value]:
            before = RingSlot(stage, parity)
            now = self.places.ring.next(before)
            started = multiply(list(sums), panel, now, PANEL)
            wgmma.wait(1, ())
            release(panel - 1, before)
            return [*now.values, *started]

        sums = multiply(self._start(evaluator, number, part), i32(0), slot, PANEL if layer.panels else layer.tail)
        fetch_ahead(evaluator, self.starts[layer.layer.result], layer, index + 1)
        last = max(layer.panels, 1) - 1
        if last:
            stage, parity, *sums = for_(1, layer.panels, 1, step, [*slot.values, *sums])
            slot = RingSlot(stage, parity)
        if layer.tail and layer.panels:
            now = self.places.ring.next(slot)
            sums = multiply(sums, i32(layer.panels), now, layer.tail)
            wgmma.wait(1, ())
            release(i32(last), slot)
            slot, last = now, layer.panels
        flat = wgmma.wait(0, sums)
        release(i32(last), slot)
        placed: list[Value] = [flat[0]] * (layer.layer.cols // 2)
        for register, place in enumerate(part.registers()):
            placed[part.first // 2 + place] = flat[register]
        evaluator.sums[layer.layer.result] = placed
        return self.places.ring.next(slot)

    def _start(self, evaluator: Evaluator, number: int, part: Pass) -> list[Value] | None:
        """What a pass's sums start from, in wgmma's order; None for zeros."""
        terms = self.starts[self.plan.chain.layers[number].result]
        if not terms:
            return None
        sums: list[Value] = []
        for block in part.blocks:
            for half in range(2):
                lanes = [evaluator.inner(term.op, term.value, FragmentIndex(half, block)) for term in terms]
                for lane in range(2):
                    values = [item.at(lane) for item in lanes]
                    sums.append(functools.reduce(operator.add, values))
        return [sums[place] for place in part.registers()]

    # --- rows in shared memory ---------------------------------------------------------------------------------------

    def _write_rows(self, evaluator: Evaluator, value: ir.Value) -> None:
        """Put a layer's results where what it read was. All products that read there are complete."""
        groups = shape_of(value)[1] // WARP_COLS
        memory, tile = evaluator.memory, swizzled(self.plan.group_rows, PANEL)
        target = self.places.rows(self.group)
        odd = (memory.local_row & 1) == 1
        for half in range(2):
            row = memory.local_row + 8 * half
            for first in range(0, groups, 2):
                pieces = [
                    evaluator.piece(value, FragmentIndex(half, QUAD * group))
                    for group in range(first, min(groups, first + 2))
                ]
                # Neighbouring rows' pieces lie in the same banks: odd rows write their two in the other order.
                for number in range(len(pieces)):
                    words, col = pieces[number], i32(WARP_COLS * number)
                    if len(pieces) == 2:
                        words = [select(odd, b, a) for a, b in zip(pieces[number], pieces[1 - number], strict=True)]
                        col = select(odd, i32(WARP_COLS * (1 - number)), i32(WARP_COLS * number))
                    at = tile.offset(row, col + (memory.quad << 3))
                    store(vector(words), offset(offset(target, at), first // 2 * PANEL_BYTES))

    def _release_rows(self) -> None:
        """The tile's last product has read the rows: the next tile's may come."""

        def release() -> None:
            for slot in range(min(self.plan.slots, self.plan.loads)):
                self.places.empty(slot, self.group).arrive()

        if_(self.elected, release)
