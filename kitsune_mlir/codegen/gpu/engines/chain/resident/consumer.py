"""The computing warpgroups of a chain: products whose factors are registers or shared memory, and the work between them."""

from __future__ import annotations

from collections.abc import Callable

from kitsune_mlir.codegen.gpu.contraction.axes import COL, ROW
from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_
from kitsune_mlir.codegen.gpu.emit.inline_ptx import fresh
from kitsune_mlir.codegen.gpu.emit.memory import offset, store
from kitsune_mlir.codegen.gpu.emit.value import Value, bitcast, i32, i64, minimum, select, vector
from kitsune_mlir.codegen.gpu.emit.vectors import load_elements
from kitsune_mlir.codegen.gpu.engines.chain.core.accumulator_init import Starts
from kitsune_mlir.codegen.gpu.engines.chain.core.body import SUM, Range, Scatter
from kitsune_mlir.codegen.gpu.engines.chain.core.column_vectors import copy_vectors
from kitsune_mlir.codegen.gpu.engines.chain.core.comparisons import Bits
from kitsune_mlir.codegen.gpu.engines.chain.core.evaluate import Evaluator
from kitsune_mlir.codegen.gpu.engines.chain.core.fragment_index import FragmentIndex
from kitsune_mlir.codegen.gpu.engines.chain.core.operand_reads import Memory
from kitsune_mlir.codegen.gpu.engines.chain.core.panels import WeightPanel, align, load_key, swizzled
from kitsune_mlir.codegen.gpu.engines.chain.core.records import ChainPlan, Slot
from kitsune_mlir.codegen.gpu.engines.chain.core.results import Storer
from kitsune_mlir.codegen.gpu.engines.chain.core.scatter_rows import ROWS, Scatterer, numbers_of
from kitsune_mlir.codegen.gpu.engines.chain.core.warpgroups import BOTH, GROUP, PAIR, TURN
from kitsune_mlir.codegen.gpu.engines.chain.core.warpgroups import Consumer as ChainConsumer
from kitsune_mlir.codegen.gpu.engines.chain.resident.tail_split import TailSplit
from kitsune_mlir.codegen.gpu.interface.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.sm90 import tma, wgmma
from kitsune_mlir.codegen.gpu.sm90.mbarrier import NamedBarrier, fence_async_shared
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Slot as RingSlot
from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.tile_records import Load

__all__ = ["Consumer"]


class Consumer(ChainConsumer):
    """Emits the computing warpgroups of a task."""

    def __init__(self, plan: ChainPlan, task: TaskContext, group: Value):
        super().__init__(plan, task, group, Starts(plan.chain, bias=True))
        self.plan = plan
        self.deal = TailSplit.of(task, group, plan.halves)
        self._last: Value | None = None

    def tiles(self) -> None:
        plan, task = self.plan, self.task
        turns = any(plan.turns)
        if turns:
            if_(self.group == 1, NamedBarrier(TURN, BOTH).arrive)
        if task.view.waits and not plan.slots:
            self._wait_once()
        first = self._fetch(TileContext(task, minimum(task.first, task.view.tiles - 1))) if plan.held else []
        self.deal.for_each_tile(self._tile, [i32(0), *self.ring.consumer_start().values, *first])
        if turns:
            self.deal.keep_turns(self._skip)
            if_(self.group == 0, NamedBarrier(TURN, BOTH).sync)
        if any(output.map is not None for output in plan.outputs):
            if_(self.elected, lambda: tma.wait(0))
        if self.deal.halves:
            self._post(self.deal.post)

    def _wait_once(self) -> None:
        """Wait for other tasks where no warp brings rows, and does so: all tiles wait for the same (`resident/plan.py`)."""
        first = self.task.first
        wanted = self.elected if self.deal.halves else self.elected & (first < self.task.tiles)
        if_(wanted, TileContext(self.task, first, first).poll_by_thread)
        self.own.sync()

    def _skip(self) -> None:
        """Take and pass on each turn of a tile that the warpgroup does not have."""
        for turn in self.plan.turns:
            if turn:
                NamedBarrier(self.group + TURN, BOTH).sync()
                NamedBarrier(TURN + 1 - self.group, BOTH).arrive()

    # --- once a task -------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Vectors along the columns, and weights that TMA cannot load, into shared memory; then both warpgroups meet."""
        plan = self.plan
        thread = self.group * GROUP + self.thread
        copy_vectors(plan.vectors.values(), self.task, thread, BOTH)
        for n, place in enumerate(plan.resident):
            if place is not None and plan.weights[n].why:
                for panel in plan.weights[n].panels:
                    self._copy_panel(n, panel, offset(self.task.shared, place), thread)
                    place += panel.bytes
        fence_async_shared()
        NamedBarrier(PAIR, BOTH).sync()

    def _copy_panel(self, layer: int, panel: WeightPanel, target: Value, thread: Value) -> None:
        """Write one panel of a weight element by element, eight at a time, with zeros outside of the weight."""
        weight = self.plan.weights[layer]
        window, tile, cols = weight.window, panel.tile, weight.layer.cols
        ends = weight.layer.ranges[panel.range]
        start = self.task.pointer(window.buffer)
        first = sum(dim.start * dim.stride for dim in window.dims if isinstance(dim.start, int))
        start = offset(start, first * window.bytes)
        across = tile.cols // 8

        def piece(index: Value) -> None:
            row, col = index // across, index % across * 8
            words = []
            for part in range(8):
                n, k = (col + part, row) if weight.transposed else (row, col + part)
                inside = (n < cols) & (k + panel.first < ends.start + ends.length)
                at = i64(n) * window.stride(COL) + i64(k + panel.first) * window.stride(SUM)
                pointer = select(inside, offset(start, at * window.bytes), start)
                words.append(select(inside, load_elements(pointer, "i16", 1, constant=window.constant)[0], 0))
            store(bitcast(vector(words), "vector<4xi32>"), offset(target, tile.offset(row, col)))

        for_(thread, tile.rows * across, BOTH, piece)

    # --- a tile ------------------------------------------------------------------------------------------------------

    def _fetch(self, tile: TileContext) -> list[Value]:
        """The words of the rows that are held, of one tile."""
        memory = Memory(self.plan, tile, self.task.shared, fresh(self.thread), self.group, {})
        return [memory.load(load, (ROW, COL), place, load.sizes[-1]).word for load, place in self._held()]

    def _held(self) -> list[tuple[Load, FragmentIndex]]:
        return [
            (load, FragmentIndex(half, block))
            for load in self.plan.held
            for block in range(-(-load.sizes[-1] // 8))
            for half in range(2)
        ]

    def _fetch_next(self, tile: TileContext) -> list[Value]:
        """The held rows of the block's next tile. In a branch of its own: ptxas would move plain loads to their use."""
        assert tile.turn is not None
        following = tile.turn + self.task.blocks
        count = len(self._held())
        return if_(
            following < self.deal.end,
            lambda: self._fetch(self.deal.tile(following)),
            lambda: [i32(0)] * count,
            ["i32"] * count,
        )

    def _tile(self, tile: TileContext, count: Value, stage: Value, parity: Value, *held: Value) -> list[Value]:
        plan = self.plan
        following: list[Value] = []
        tile.resolve()
        for scatter in plan.chain.scatters:
            tile.index(scatter.op.operands[2])
        slots = {slot: slot.pointer(self.task, self.group, slot.place(count)) for slot in plan.slots}
        memory = Memory(plan, tile, self.task.shared, fresh(self.thread), self.group, slots)
        for (load, place), word in zip(self._held(), held, strict=True):
            memory.held[load_key(load), place.half, place.block] = word
        evaluator = Evaluator(plan.chain, memory, tile.index, self.starts.folded)
        bits = None
        if plan.order.compared:
            start, thread = offset(self.task.shared, plan.bits), fresh(self.thread) + self.group * GROUP
            evaluator.bits = bits = Bits(plan.order.compared, start, thread, GROUP * plan.groups)
        ring, filled, pieces = RingSlot(stage, parity), set(), 0
        scatterers: dict[Scatter, Scatterer] = {}
        for number in range(len(plan.chain.layers)):
            ring = self._layer(number, evaluator, slots, count, ring, filled)
            if not number:
                for scatter in plan.chain.scatters:
                    numbers = numbers_of(scatter, tile, memory, ROWS)
                    scatterers[scatter] = Scatterer(scatter, tile, evaluator, numbers)
                following = self._fetch_next(tile) if plan.held else []
            for store_ in plan.order.stores[number]:
                output = next(output for output in plan.outputs if output.store is store_)
                storer = Storer(plan, self.task, tile, fresh(self.thread), self.group, self.own)
                storer.pieces = pieces
                storer.store(output, evaluator)
                pieces = storer.pieces
            for scatter in plan.order.scatters[number]:
                scatterers[scatter].add()
            if bits is not None:
                bits.keep(number, evaluator)
            evaluator.keep(plan.order.kept[number])
            evaluator.sums = {}
            self._release_read(number, count)
        for slot in plan.slots:
            if slot.read:
                self.own.sync()
                self._release(slot, count)
        if not self.deal.halves:
            self._post(tile.post)
        return [count + 1, *ring.values, *following]

    def _release(self, slot: Slot, count: Value) -> None:
        if_(self.elected, slot.empty(self.task, self.group, slot.place(count)).arrive)

    def _release_read(self, number: int, count: Value) -> None:
        """Give back what product `number` was the last to read."""
        plan = self.plan
        done = [slot for slot in plan.slots if slot.last == number and not slot.read]

        def release() -> None:
            if plan.resident[number] is None:
                assert self._last is not None
                self.ring.empty(self._last).arrive()
            for slot in done:
                slot.empty(self.task, self.group, slot.place(count)).arrive()

        if done or plan.resident[number] is None:
            if_(self.elected, release)

    def _post(self, post: Callable[[], None]) -> None:
        """The task's posts, which one thread makes after both warpgroups have written everything."""
        if not self.task.view.posts:
            return
        if any(output.map is not None for output in self.plan.outputs):
            if_(self.elected, lambda: tma.wait(0))
        self.post(post)

    # --- a product ---------------------------------------------------------------------------------------------------

    def _layer(
        self, number: int, evaluator: Evaluator, slots: dict[Slot, Value], count: Value, ring: RingSlot, filled: set[Slot]
    ) -> RingSlot:
        plan, layer = self.plan, self.plan.chain.layers[number]
        apart = [part for part in layer.ranges if self._slot(part) is None]
        if not number and plan.slots and (self.task.view.waits or self.task.kernel.dependent):
            if apart:
                self._wait_slot(plan.slots[0], count, filled)  # the warp that brings rows waits for the other tasks
            elif self.starts.read_made(layer):
                self._wait_slot(plan.slots[0], count, set())
        words = {n: self._words(evaluator, part) for n, part in enumerate(layer.ranges) if self._slot(part) is None}
        self._wait_weights(number, ring)
        sums = self.starts.sums(evaluator, layer, range(align(layer.cols, 8) // 8))
        if plan.turns[number]:
            NamedBarrier(self.group + TURN, BOTH).sync()
        for slot in plan.slots:
            if slot not in filled and any(self._slot(part) is slot for part in layer.ranges):
                self._wait_slot(slot, count, filled)

        def multiply(panel: WeightPanel, start: Value, place: int) -> None:
            nonlocal sums
            transposed, slot = plan.weights[number].transposed, self._slot(layer.ranges[panel.range])
            b = wgmma.SharedOperand(panel.tile, start, transposed=transposed, distance=place)
            if slot is None:
                first = panel.panel.start // 16 * 4
                a = words[panel.range][first : first + panel.panel.width // 4]
            else:
                a = self._factor(slot, slots[slot], panel)
            fence = plan.resident[number] is None or panel.first == 0
            sums = wgmma.multiply(sums, a, b, align(layer.cols, 8), layer.dtype, panel.panel.width // 16, fence)

        ring = self._panels(number, multiply, ring)
        assert sums is not None
        evaluator.sums[layer.result] = wgmma.wait(0, sums)
        return ring

    def _wait_slot(self, slot: Slot, count: Value, filled: set[Slot]) -> None:
        slot.full(self.task, self.group, slot.place(count)).wait(slot.parity(count))
        filled.add(slot)

    def _wait_weights(self, number: int, ring: RingSlot) -> None:
        """Wait for a layer's first panels, before the sums' start is read.

        Between two products there is a branch then: within one basic block, ptxas would fetch the next start before it has
        packed the sums, and run out of registers.
        """
        if self.plan.resident[number] is None:
            self.ring.full(ring.stage).wait(ring.parity)
        elif not self.plan.weights[number].why:
            self.task.barriers[self.plan.resident_barrier].wait(0)

    def _panels(self, number: int, multiply, ring: RingSlot) -> RingSlot:
        """Issue the products with a layer's panels, where they are, and pass the turn on; the next place in the ring."""
        plan = self.plan

        def pass_turn() -> None:
            if plan.turns[number]:
                NamedBarrier(TURN + 1 - self.group, BOTH).arrive()

        resident = plan.resident[number]
        if resident is not None:
            for panel in plan.weights[number].panels:
                multiply(panel, self.task.shared, resident)
                resident += panel.bytes
            pass_turn()
            return ring
        stages = [part for part in plan.sequence if part.layer == number]
        before = None
        for index, part in enumerate(stages):
            if index:
                self.ring.full(ring.stage).wait(ring.parity)
            start = offset(self.task.shared, ring.stage * plan.stage_bytes)
            for panel, place in part.panels:
                multiply(panel, start, place)
            if index == len(stages) - 1:
                pass_turn()
            if before is not None:
                wgmma.wait(min(7, len(part.panels)), ())
                if_(self.elected, self.ring.empty(before).arrive)
            before, ring = ring.stage, self.ring.next(ring)
        self._last = before
        return ring

    def _slot(self, part: Range) -> Slot | None:
        return next((slot for slot in self.plan.slots if part.value in slot.source.values), None)

    def _factor(self, slot: Slot, pointer: Value, panel: WeightPanel) -> wgmma.SharedOperand:
        rows = self.plan.group_rows
        number = slot.source.panels.index(panel.panel)
        tile = swizzled(rows, panel.panel.box)
        return wgmma.SharedOperand(tile, pointer, distance=slot.source.panel_offset(number, rows))

    def _words(self, evaluator: Evaluator, part: Range) -> list[Value]:
        """A computed factor as wgmma's A, packed pairs, with zeros beyond its columns."""
        cols = shape_of(part.value)[1]
        words = []
        for block in range(align(cols, 16) // 8):
            for half in range(2):
                words.append(self._factor_word(evaluator, part, FragmentIndex(half, block), cols))
        return words

    @staticmethod
    def _factor_word(evaluator: Evaluator, part: Range, place: FragmentIndex, cols: int) -> Value:
        if 8 * place.block >= cols:
            return i32(0)
        word = evaluator.any(part.value, place).word
        if 8 * place.block + 8 <= cols:
            return word
        col = evaluator.memory.col(place)
        if cols % 2:
            word = select(col + 1 < cols, word, word & 0xFFFF)
        return select(col < cols, word, 0)
