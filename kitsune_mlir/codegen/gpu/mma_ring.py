"""The main loop of a product whose operands TMA loads: a ring of stages, filled by one thread, read by both warpgroups.

All chunks that a block multiplies in a task are numbered in one sequence: chunk n is in stage n mod S, and is that stage's
use number n div S, which gives the parities to wait for. Thread 0 starts the loads: of a tile's first chunks before the tile
begins, while the tile before is stored, then one chunk for each that both warpgroups are done with.

What other tiles have to finish first ("held" operands) is loaded only after the waits; weights are on their way by then.
"""

from __future__ import annotations

import dataclasses

from kitsune_mlir.codegen.gpu import tma, wgmma
from kitsune_mlir.codegen.gpu.barriers import Barrier
from kitsune_mlir.codegen.gpu.builder import for_, if_
from kitsune_mlir.codegen.gpu.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.inline import inline_ptx
from kitsune_mlir.codegen.gpu.memory import offset, shared_address
from kitsune_mlir.codegen.gpu.mma_operand import CHUNK, Box
from kitsune_mlir.codegen.gpu.mma_plan import MmaPlan
from kitsune_mlir.codegen.gpu.value import Value, i32
from kitsune_mlir.shared_tile import SharedTile

__all__ = ["Ring", "operands"]


def operands(plan: MmaPlan, stage: Value, group: Value) -> tuple[wgmma.SharedOperand, wgmma.SharedOperand]:
    """A and B of a warpgroup in the stage that starts at `stage`."""
    geometry = plan.geometry
    row = group * 64 if geometry.by_rows else 0
    col = group * geometry.part if geometry.part else 0
    return (
        _operand(plan.a_tile, stage, row, plan.a.transposed),
        _operand(plan.b_tile, offset(stage, plan.a_tile.bytes), col, plan.b.transposed),
    )


def _operand(tile: SharedTile, pointer: Value, start: Value | int, transposed: bool) -> wgmma.SharedOperand:
    if not transposed:
        return wgmma.SharedOperand(tile, pointer, row=start)
    # A warpgroup's rows or columns start with a panel of 64.
    if isinstance(start, Value):
        pointer = offset(pointer, start * (tile.panel_bytes // 64))
    return wgmma.SharedOperand(tile, pointer, transposed=True)


@dataclasses.dataclass(frozen=True)
class Ring:
    """The ring of a task, while its code is emitted.

    Attributes:
        plan: what was decided; it has boxes.
        task: the kernel as the task sees it.
        thread: index of the thread.
        group: index of its warpgroup.
    """

    plan: MmaPlan
    task: TaskContext
    thread: Value
    group: Value

    @property
    def held(self) -> tuple[int, ...]:
        """Which operands (0: A, 1: B) are loaded after the waits; one at least, if there are waits."""
        if not self.task.view.waits:
            return ()
        boxes = self._boxes()
        return tuple(index for index, box in enumerate(boxes) if not box.window.constant) or (0,)

    def prefill(self, tile: TileContext, first: Value) -> None:
        """Thread 0 starts what need not wait of the tile's first chunks; `first` is the number of the tile's chunk 0."""
        free = tuple(index for index in (0, 1) if index not in self.held)
        if free:
            self._fill(tile, first, free, begins=True, completes=not self.held)

    def fill_held(self, tile: TileContext, first: Value) -> None:
        """Thread 0 starts, after the waits, the rest of the tile's first chunks."""
        if self.held:
            self._fill(tile, first, self.held, begins=len(self.held) == 2, completes=True)

    def product(self, tile: TileContext, first: Value) -> list[Value]:
        """The warpgroup's accumulators, complete."""
        chunks = self.plan.sum.chunks
        accumulators = self._multiply(None, first)

        def step(chunk: Value, *carried: Value) -> list[Value]:
            started = self._multiply(list(carried), first + chunk)
            self._refill(tile, first, chunk)
            wgmma.wait(1, [])
            self._release(first + chunk - 1)
            return started

        if chunks > 1:
            accumulators = for_(1, chunks, 1, step, accumulators)
        accumulators = wgmma.wait(0, accumulators)
        self._release(first + (chunks - 1))
        return accumulators

    # --- reading -----------------------------------------------------------------------------------------------------

    def _multiply(self, accumulators: list[Value] | None, number: Value) -> list[Value]:
        plan = self.plan
        self._full(number).wait(self._use(number) & 1)
        a, b = operands(plan, self._stage(number), self.group)
        return wgmma.multiply(accumulators, a, b, plan.geometry.n, plan.pattern.product.dtype, plan.sum.steps)

    def _release(self, number: Value) -> None:
        """The warpgroup has read the chunk. One thread speaks for it: `wgmma.wait` is for the instruction as a whole."""
        if_(self.thread % 128 == 0, self._empty(number).arrive)

    # --- writing, by thread 0 ----------------------------------------------------------------------------------------

    def _refill(self, tile: TileContext, first: Value, chunk: Value) -> None:
        """Start the chunk that takes the place of chunk - 2, which both warpgroups have left some time ago."""
        plan = self.plan
        if plan.sum.chunks <= plan.stages:
            return
        ahead = chunk + (plan.stages - 2)
        due = (self.thread == 0) & (chunk >= 2) & (ahead < plan.sum.chunks)
        if_(due, lambda: self._load(tile, first + ahead, ahead, (0, 1), True, True))

    def _fill(self, tile: TileContext, first: Value, which: tuple[int, ...], begins: bool, completes: bool) -> None:
        def chunk(index: Value) -> None:
            self._load(tile, first + index, index, which, begins, completes)

        for_(0, self.plan.prefill, 1, chunk)

    def _load(
        self, tile: TileContext, number: Value, chunk: Value, which: tuple[int, ...], begins: bool, completes: bool
    ) -> None:
        """Start loads of one chunk.

        Args:
            number: of the chunk in the block's sequence.
            chunk: of the chunk in its tile.
            which: operands to load.
            begins: these are the first loads into the stage: it must be empty.
            completes: these are the last: the barrier gets its arrival.
        """
        if begins:
            self._empty(number).wait(self._use(number) & 1 ^ 1)
        full, stage = self._full(number), self._stage(number)
        boxes = self._boxes()
        bytes = sum(boxes[index].bytes for index in which)
        if completes:
            full.arrive_and_expect(bytes)
        else:
            _expect(full, bytes)
        for index in which:
            target = stage if index == 0 else offset(stage, self.plan.a_tile.bytes)
            self._load_box(tile, boxes[index], index, target, full, chunk)

    def _load_box(self, tile: TileContext, box: Box, index: int, target: Value, full: Barrier, chunk: Value) -> None:
        order = self.plan.sum
        positions: dict[str, Value] = {}
        rest = chunk
        inner = chunk
        if order.outer:
            inner, rest = chunk % order.inner_chunks, chunk // order.inner_chunks
        positions[order.inner[0]] = inner * CHUNK
        for side, length in reversed(order.outer):
            positions[side] = rest % length
            rest = rest // length
        coordinates = []
        for dim in box.dims:
            start = tile.index(dim.start)
            coordinates.append(start + positions[dim.side] if dim.side in positions else start)
        for panel in range(box.panels):
            place = [*coordinates[:-1], coordinates[-1] + 64 * panel]
            tma.load_tile(offset(target, panel * box.map.box_bytes), self.task.tensor_map(index), full, place)

    # --- where things are --------------------------------------------------------------------------------------------

    def _boxes(self) -> tuple[Box, Box]:
        assert self.plan.boxes is not None
        return self.plan.boxes

    def _stage(self, number: Value) -> Value:
        return offset(self.task.shared, number % self.plan.stages * self.plan.stage_bytes)

    def _use(self, number: Value) -> Value:
        return number // self.plan.stages

    def _full(self, number: Value) -> Barrier:
        return self._barrier(number, 0)

    def _empty(self, number: Value) -> Barrier:
        return self._barrier(number, self.plan.stages * Barrier.BYTES)

    def _barrier(self, number: Value, start: int) -> Barrier:
        return Barrier(offset(offset(self.task.barrier_base, start), number % self.plan.stages * Barrier.BYTES))


def _expect(barrier: Barrier, bytes: int) -> None:
    """Let the barrier's phase wait for `bytes` more, without arriving.

    Inline PTX: the typed operation becomes an intrinsic that LLVM 22 does not have.
    """
    code = "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [$0], $1;"
    inline_ptx(code, "r,r,~{memory}", [shared_address(barrier.pointer), i32(bytes)])
