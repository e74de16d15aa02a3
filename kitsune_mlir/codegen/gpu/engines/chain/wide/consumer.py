"""The computing warpgroups of a chain of wide layers: passes over columns, and the rows that they leave in shared memory."""

from __future__ import annotations

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_, if_all
from kitsune_mlir.codegen.gpu.emit.inline_ptx import fresh
from kitsune_mlir.codegen.gpu.emit.memory import offset, store
from kitsune_mlir.codegen.gpu.emit.value import Value, i32, select, vector
from kitsune_mlir.codegen.gpu.engines.chain.core.accumulator_init import Starts
from kitsune_mlir.codegen.gpu.engines.chain.core.body import QUAD, Scatter
from kitsune_mlir.codegen.gpu.engines.chain.core.column_vectors import copy_vectors
from kitsune_mlir.codegen.gpu.engines.chain.core.evaluate import Evaluator
from kitsune_mlir.codegen.gpu.engines.chain.core.fragment_index import FragmentIndex
from kitsune_mlir.codegen.gpu.engines.chain.core.operand_reads import Memory
from kitsune_mlir.codegen.gpu.engines.chain.core.panels import swizzled
from kitsune_mlir.codegen.gpu.engines.chain.core.results import store_number, store_piece
from kitsune_mlir.codegen.gpu.engines.chain.core.scatter_rows import ROWS, Scatterer, numbers_of
from kitsune_mlir.codegen.gpu.engines.chain.core.warpgroups import BOTH, GROUP, PAIR
from kitsune_mlir.codegen.gpu.engines.chain.core.warpgroups import Consumer as ChainConsumer
from kitsune_mlir.codegen.gpu.engines.chain.wide.epilogue import Finisher, reads_of
from kitsune_mlir.codegen.gpu.engines.chain.wide.plan import (
    PANEL,
    PANEL_BYTES,
    WARP_COLS,
    Pass,
    WideLayer,
    WidePlan,
    weight_tile,
)
from kitsune_mlir.codegen.gpu.engines.chain.wide.prefetch_init import fetch_ahead
from kitsune_mlir.codegen.gpu.interface.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.sm90 import wgmma
from kitsune_mlir.codegen.gpu.sm90.mbarrier import NamedBarrier, fence_async_shared
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Slot as RingSlot
from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.products import body_of

__all__ = ["Consumer"]

AHEAD = 8
"""Pieces of 16 bytes of a row that are on their way before they are used."""


class Consumer(ChainConsumer):
    """Emits the computing warpgroups of a task."""

    def __init__(self, plan: WidePlan, task: TaskContext, group: Value):
        super().__init__(plan, task, group, Starts(plan.chain))
        self.plan = plan

    def prepare(self) -> None:
        """Vectors along the columns into shared memory; then both warpgroups meet."""
        if self.plan.vectors:
            copy_vectors(self.plan.vectors.values(), self.task, self.group * GROUP + self.thread, BOTH)
            NamedBarrier(PAIR, BOTH).sync()

    def tiles(self) -> None:
        self.task.for_each_tile(self._tile, [i32(0), *self.ring.consumer_start().values])

    def _tile(self, tile: TileContext, count: Value, stage: Value, parity: Value) -> list[Value]:
        plan, chain = self.plan, self.plan.chain
        tile.resolve()
        for scatter in chain.scatters:
            tile.index(scatter.op.operands[2])
        memory = Memory(plan, tile, self.task.shared, fresh(self.thread), self.group, {})
        evaluator = Evaluator(chain, memory, tile.index, self.starts.folded)
        ring = RingSlot(stage, parity)
        numbers: dict[Scatter, dict[FragmentIndex, Value]] = {}
        finisher: Finisher | None = None
        if self.starts.read_made(chain.layers[0]):
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
                finisher.run(plan.rows.all_of(self.task, self.group), fetched, self.starts.folded)
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
            self.plan.rows.full(self.task, self.group, self.plan.place(first)).wait(self.plan.parity(first, count))

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
        places = [FragmentIndex(half, block) for block in range(0, chain.layers[number].cols // 8, QUAD) for half in range(2)]
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
        for record in stores:
            if len(record.sizes) == 1:
                for half in range(2):
                    store_number(record, evaluator, tile, FragmentIndex(half, 0))
        pieces = [record for record in stores if len(record.sizes) > 1]
        for index, place in enumerate(places):
            for ahead in places[index + AHEAD : index + AHEAD + 1]:
                fetch(ahead)
            for record in pieces:
                store_piece(record, evaluator, tile, place)
            for scatter in scatters:
                scatterers[scatter].add_piece(place)

    def _post(self, tile: TileContext) -> None:
        """The task's posts."""
        if self.task.view.posts:
            if_all([tile.closing], lambda: self.post(tile.post))

    # --- a product ---------------------------------------------------------------------------------------------------

    def _pass(self, evaluator: Evaluator, number: int, index: int, count: Value, slot: RingSlot) -> RingSlot:
        """Sum the columns of pass `index` of a layer; the next place in the ring."""
        plan, layer = self.plan, self.plan.layers[number]
        part = layer.passes[index]
        loaded = not number and not (plan.stays and index)
        base = index * layer.panels if not number and not plan.stays else 0

        def multiply(sums: list[Value] | None, panel: Value, slot: RingSlot, width: int) -> list[Value]:
            self.ring.full(slot.stage).wait(slot.parity)
            place = panel if number else plan.place(panel + base)
            if loaded:
                plan.rows.full(self.task, self.group, place).wait(plan.parity(panel + base, count))
            rows = offset(plan.rows.all_of(self.task, self.group), place * PANEL_BYTES)
            a = wgmma.SharedOperand(swizzled(plan.group_rows, PANEL), rows)
            b = wgmma.SharedOperand(weight_tile(part), offset(self.task.shared, slot.stage * plan.stage_bytes))
            return wgmma.multiply(sums, a, b, part.cols, layer.layer.dtype, width // 16)

        def release(panel: Value, slot: RingSlot) -> None:
            """The product with a panel is complete."""

            def arrive() -> None:
                self.ring.empty(slot.stage).arrive()
                if not number and not plan.stays:
                    load = panel + base
                    if_(load + plan.slots < plan.loads, plan.rows.empty(self.task, self.group, plan.place(load)).arrive)

            if_(self.elected, arrive)

        def step(panel: Value, stage: Value, parity: Value, *sums: Value) -> list[Value]:
            before = RingSlot(stage, parity)
            now = self.ring.next(before)
            started = multiply(list(sums), panel, now, PANEL)
            wgmma.wait(1, ())
            release(panel - 1, before)
            return [*now.values, *started]

        sums = multiply(self._start(evaluator, layer, part), i32(0), slot, PANEL if layer.panels else layer.tail)
        fetch_ahead(evaluator, self.starts.terms[layer.layer.result], layer, index + 1)
        last = max(layer.panels, 1) - 1
        if last:
            stage, parity, *sums = for_(1, layer.panels, 1, step, [*slot.values, *sums])
            slot = RingSlot(stage, parity)
        if layer.tail and layer.panels:
            now = self.ring.next(slot)
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
        return self.ring.next(slot)

    def _start(self, evaluator: Evaluator, layer: WideLayer, part: Pass) -> list[Value] | None:
        """What a pass's sums start from, in wgmma's order; None for zeros."""
        sums = self.starts.sums(evaluator, layer.layer, part.blocks)
        return None if sums is None else [sums[place] for place in part.registers()]

    # --- rows in shared memory ---------------------------------------------------------------------------------------

    def _write_rows(self, evaluator: Evaluator, value: ir.Value) -> None:
        """Put a layer's results where what it read was. All products that read there are complete."""
        groups = shape_of(value)[1] // WARP_COLS
        memory, tile = evaluator.memory, swizzled(self.plan.group_rows, PANEL)
        target = self.plan.rows.all_of(self.task, self.group)
        odd = (memory.local_row & 1) == 1
        for half in range(2):
            row = memory.local_row + 8 * half
            for first in range(0, groups, 2):
                pieces = [
                    evaluator.piece(value, FragmentIndex(half, QUAD * group)) for group in range(first, min(groups, first + 2))
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
                self.plan.rows.empty(self.task, self.group, slot).arrive()

        if_(self.elected, release)
