"""What follows the last product of a chain of wide layers, row by row: reductions, stores, additions to rows.

In tensor cores' order a lane has 16-byte pieces of two rows, and what follows is thousands of instructions without a loop that
reach memory by such pieces. So the results go through the warpgroup's shared memory, which nobody else needs any more, and each
warp takes its 16 rows, all lanes on one row: a short loop, rows in memory as whole lines, and the numbers along the columns in
registers for all rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.contraction.axes import COL, ROW
from kitsune_mlir.codegen.gpu.contraction.packed_pair import Lanes
from kitsune_mlir.codegen.gpu.emit.control_flow import for_, shuffle, sync_warp
from kitsune_mlir.codegen.gpu.emit.memory import load, offset
from kitsune_mlir.codegen.gpu.emit.value import Value, minimum, unpack
from kitsune_mlir.codegen.gpu.engines.chain.core.body import QUAD, Scatter
from kitsune_mlir.codegen.gpu.engines.chain.core.evaluate import Evaluator
from kitsune_mlir.codegen.gpu.engines.chain.core.fragment_index import FragmentIndex
from kitsune_mlir.codegen.gpu.engines.chain.core.operand_reads import Memory
from kitsune_mlir.codegen.gpu.engines.chain.core.panels import load_key, swizzled
from kitsune_mlir.codegen.gpu.engines.chain.core.records import GROUP_ROWS, RowsPlan
from kitsune_mlir.codegen.gpu.engines.chain.core.results import store_number, store_piece
from kitsune_mlir.codegen.gpu.engines.chain.core.scatter_rows import Scatterer, numbers_of
from kitsune_mlir.codegen.gpu.engines.chain.wide.plan import PANEL, ROW_COLS, WidePlan
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.dialects.tile_records import Store

__all__ = ["Finisher", "reads_of"]

LANES = 32
WARP_ROWS = 16
TOGETHER = 4
"""Rows of a warp that are finished at the same time, and as many that are on their way."""


class RowMemory(Memory):
    """Reads for whole rows of a warp: number `place.half` after `chosen` (a row of the tile), eight columns a lane."""

    across = LANES
    chosen: Value

    def row(self, place: FragmentIndex) -> Value:
        row = self.chosen + place.half
        return row if self.plan.covered else minimum(row, self.plan.chain.rows - 1)

    def row_exists(self, place: FragmentIndex) -> Value | None:
        return None if self.plan.covered else self.chosen + place.half < self.plan.chain.rows

    def piece_col(self, place: FragmentIndex) -> Value:
        return (self.lane << 3) + ROW_COLS * (place.block // QUAD)


def reads_of(
    plan: RowsPlan, settled: Sequence[ir.Value], values: Sequence[ir.Value], number: int
) -> list[tuple[ir.Operation, int]]:
    """Operands (op, number) that element-wise steps after product `number` read from memory on the way to `values`."""
    chain, order = plan.chain, plan.order
    found: dict[tuple[ir.Operation, int], None] = {}
    pending, seen = list(values), set(settled)
    while pending:
        value = pending.pop()
        step = chain.steps.get(value)
        if value in seen or step is None or step.kind != "map" or order.ready[value] not in (-1, number):
            continue
        seen.add(value)
        for operand in step.operands:
            read = step.op.operands[operand]
            load = chain.task.load_of(read)
            if load is not None and COL in chain.operand_sides(step.op, operand):
                if load_key(load) not in plan.vectors:
                    found[step.op, operand] = None
            pending.append(read)
    return list(found)


class Finisher:
    """Finishes the rows of one warpgroup and tile.

    Args:
        plan, tile, shared: where it runs.
        thread: index of the thread in its warpgroup.
        group: number of the warpgroup.
        settled: the 16-bit tensor that the last product's sums became.
        stores, scatters: what is done with it.
    """

    def __init__(
        self,
        plan: WidePlan,
        tile: TileContext,
        shared: Value,
        thread: Value,
        group: Value,
        settled: ir.Value,
        stores: Sequence[Store],
        scatters: Sequence[Scatter],
    ):
        self.plan, self.tile, self.shared, self.thread, self.group = plan, tile, shared, thread, group
        self.settled, self.stores, self.scatters = settled, stores, scatters
        self.number = len(plan.chain.layers) - 1
        self.cols = plan.chain.layers[self.number].cols
        self.first = (thread // LANES) * WARP_ROWS
        self.pieces = range(0, QUAD * (self.cols // ROW_COLS), QUAD)
        values = [*(record.tensor for record in stores), *(scatter.updates for scatter in scatters)]
        reads = reads_of(plan, [settled], values, self.number)
        self.rows = [read for read in reads if ROW in plan.chain.operand_sides(*read)]
        steps = plan.chain.steps.items()
        self.reductions = [v for v, step in steps if step.kind == "reduce" and plan.order.ready[v] == self.number]
        lane = self._memory(thread & (WARP_ROWS - 1))
        self.numbers = {scatter: numbers_of(scatter, tile, lane, [FragmentIndex(0, 0)]) for scatter in scatters}
        """A lane has the number of the row that its row, of the warp's 16, is added to."""

    def _memory(self, row: Value) -> RowMemory:
        """Reads for rows from number `row` of the warp's on."""
        memory = RowMemory(self.plan, self.tile, self.shared, self.thread, self.group, {})
        memory.chosen = self.group * self.plan.group_rows + self.first + row
        return memory

    def fetch(self, row: Value) -> dict[tuple, list[Lanes]]:
        """Start to load what the rows from `row` on need."""
        memory = self._memory(row)
        evaluator = Evaluator(self.plan.chain, memory, self.tile.index, {})
        for op, operand in self.rows:
            for half in range(TOGETHER):
                for block in self.pieces:
                    evaluator.operand(op, operand, FragmentIndex(half, block))
        return memory.runs

    def run(self, target: Value, fetched: dict[tuple, list[Lanes]], folded: dict[ir.Value, ir.Value]) -> None:
        """Finish all rows.

        Args:
            target: the warpgroup's shared memory, where the results lie.
            fetched: what the first rows need.
            folded: see `Evaluator`.
        """
        sync_warp()  # a warp reads what it wrote
        tile = swizzled(GROUP_ROWS, PANEL)
        common = self._memory(self.thread & 0)
        evaluator = Evaluator(self.plan.chain, common, self.tile.index, {})
        values = [*(record.tensor for record in self.stores), *(scatter.updates for scatter in self.scatters)]
        for op, operand in self._vectors(values):
            for block in self.pieces:
                evaluator.operand(op, operand, FragmentIndex(0, block))
        vectors = common.runs

        def step(turn: Value, *carried: Value) -> list[Value]:
            row = turn * TOGETHER
            more = self.fetch((row + TOGETHER) & (WARP_ROWS - 1))
            memory = self._memory(row)
            memory.runs = vectors | _put(fetched, carried)
            evaluator = Evaluator(self.plan.chain, memory, self.tile.index, folded)
            for half in range(TOGETHER):
                for block in self.pieces:
                    col = memory.piece_col(FragmentIndex(half, block))
                    at = offset(target, col // PANEL * tile.panel_bytes)
                    words = unpack(load(offset(at, tile.offset(self.first + row + half, col % PANEL)), "vector<4xi32>", 16))
                    for part, word in enumerate(words):
                        evaluator.set(self.settled, FragmentIndex(half, block + part), word)
            places = [FragmentIndex(half, 0) for half in range(TOGETHER)]
            for value in self.reductions:
                evaluator.reduce(value, places)
            scatterers = []
            for scatter in self.scatters:
                number = self.numbers[scatter][FragmentIndex(0, 0)]
                numbers = {place: shuffle(number, row + place.half) for place in places}
                scatterers.append(Scatterer(scatter, self.tile, evaluator, numbers))
            numbers = [record for record in self.stores if len(record.sizes) == 1]
            for record in numbers:
                for place in places:
                    store_number(record, evaluator, self.tile, place)
            pieces = [record for record in self.stores if record not in numbers]
            for half in range(TOGETHER):
                for block in self.pieces:
                    for record in pieces:
                        store_piece(record, evaluator, self.tile, FragmentIndex(half, block))
                    for scatterer in scatterers:
                        scatterer.add_piece(FragmentIndex(half, block))
            return _take(more)

        for_(0, WARP_ROWS // TOGETHER, 1, step, _take(fetched))

    def _vectors(self, values: Sequence[ir.Value]) -> list[tuple[ir.Operation, int]]:
        """Operands along the columns alone."""
        chain = self.plan.chain
        found, pending, seen = {}, list(values), {self.settled}
        while pending:
            value = pending.pop()
            step = chain.steps.get(value)
            if value in seen or step is None or self.plan.order.ready[value] not in (-1, self.number):
                continue
            seen.add(value)
            for operand in step.operands:
                read = step.op.operands[operand]
                loaded = step.kind == "map" and chain.task.load_of(read) is not None
                if loaded and chain.operand_sides(step.op, operand) == (COL,):
                    found[step.op, operand] = None
                pending.append(read)
        return list(found)


def _take(runs: dict[tuple, list[Lanes]]) -> list[Value]:
    """The registers of some runs."""
    return [register for run in runs.values() for lanes in run for register in lanes.registers]


def _put(runs: dict[tuple, list[Lanes]], values: Sequence[Value]) -> dict[tuple, list[Lanes]]:
    """Runs like `runs` in other registers."""
    rest = iter(values)
    return {key: [lanes.replaced([next(rest) for _ in lanes.registers]) for lanes in run] for key, run in runs.items()}
