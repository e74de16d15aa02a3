"""Emitting layers for a few rows of a block (`chain.few_rows.plan`) with `mma.sync`.

Weights come through the ring, or from L2 into registers. There the order of a sum is free: a lane has 16 bytes of a column's
weights, and uses them in two products (as in `pairs`); all such loads, over all layers, are one sequence of which some are
always under way, also while warps meet between two layers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from kitsune_mlir.codegen.gpu.contraction.axes import COL, ROW
from kitsune_mlir.codegen.gpu.contraction.packed_pair import Lanes
from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_all, lane_id, warp_id
from kitsune_mlir.codegen.gpu.emit.memory import copy_async, copy_async_commit, copy_async_wait, load, offset, store
from kitsune_mlir.codegen.gpu.emit.value import Value, constant, i32, i64, minimum, pack, select, unpack
from kitsune_mlir.codegen.gpu.engines.chain.core.accumulator_init import Starts
from kitsune_mlir.codegen.gpu.engines.chain.core.body import SUM
from kitsune_mlir.codegen.gpu.engines.chain.core.evaluate import Evaluator
from kitsune_mlir.codegen.gpu.engines.chain.core.fragment_index import FragmentIndex
from kitsune_mlir.codegen.gpu.engines.chain.core.operand_reads import SliceMemory
from kitsune_mlir.codegen.gpu.engines.chain.few_rows.plan import ROWS, SHORT_STEP, STEP, FewRowsPlan, RowLayer
from kitsune_mlir.codegen.gpu.engines.chain.few_rows.weight_ring import WeightStream
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.codegen.gpu.interface.thread_group import ThreadGroup
from kitsune_mlir.codegen.gpu.interface.window import Window
from kitsune_mlir.codegen.gpu.sm90.ldmatrix import load_matrices
from kitsune_mlir.codegen.gpu.sm90.mma_sync import multiply_add

__all__ = ["FewRows"]

AHEAD = 8
"""Loads of weights of a lane that are under way: 32 KiB for 8 warps; more take registers that spill."""

Write = Callable[[Value, Value, Lanes], None]
"""Takes a row, a column and the results there and in the next column."""


@dataclasses.dataclass(frozen=True)
class _Unit:
    """What a warp does of a layer at a time.

    Attributes:
        number: of the layer.
        layer: the layer.
        column: first of its columns, i32.
        exists: whether (i1) the warp has this piece; None if all have.
        starts: the weights' address for each block of 8 columns, the lane's first element; none where they are streamed.
    """

    number: int
    layer: RowLayer
    column: Value
    exists: Value | None
    starts: list[Value]


class FewRows:
    """Emits the layers of one tile.

    Args:
        plan: what was decided, for as many warps as `group` has.
        tile: the tile.
        group: who does it.
        shared: pointer to `plan.bytes` of shared memory, aligned to 1024.
        first_barrier: number of the ring's first mbarrier among the task's.
        turn: number of the tile among the block's, i32.
    """

    def __init__(
        self, plan: FewRowsPlan, tile: TileContext, group: ThreadGroup, shared: Value, first_barrier: int, turn: Value
    ):
        self.plan, self.tile, self.group, self.shared = plan, tile, group, shared
        self.stream = WeightStream(plan.ring, tile.task, group, shared, first_barrier, turn) if plan.ring else None
        self.warp, self.lane = warp_id(group.thread), lane_id(group.thread)
        self.line, self.quad = self.lane >> 2, self.lane & 3
        self.starts = Starts(plan.chain)

    def run(self, write: Write) -> None:
        """All layers; `write` gets the last one's results. All threads of the group call it."""
        plan = self.plan
        if self.stream is not None:
            self.stream.start()
        units = [unit for number in range(len(plan.layers)) for unit in self._units(number)]
        weights = self._weights(units)
        evaluators = [self._evaluator(unit) for unit in units]
        start = self._start(units[0], evaluators[0])
        next(weights)
        if plan.layers[0].whole:
            self._copy_rows(plan.layers[0])
        before = 0
        for number, (unit, evaluator) in enumerate(zip(units, evaluators, strict=True)):
            if unit.number != before:
                self.group.sync()
                before = unit.number
            sums = self._multiply(unit, start, weights)
            if number + 1 < len(units):  # a bias is on its way while the warps meet
                start = self._start(units[number + 1], evaluators[number + 1])
            evaluator.sums[unit.layer.layer.result] = [value for block in sums for value in block]
            self._write(unit, evaluator, write)

    def _units(self, number: int) -> list[_Unit]:
        layer = self.plan.layers[number]
        units = []
        for turn in range(layer.rounds):
            index = self.warp + turn * self.group.warps
            full = (turn + 1) * self.group.warps <= layer.units
            column = (index if full else minimum(index, layer.units - 1)) * (8 * layer.blocks)
            exists = None if full else index < layer.units
            if layer.streamed:
                units.append(_Unit(number, layer, column, exists, []))
                continue
            start, window = layer.weight.start(self.tile), layer.weight
            along = self.quad * 8 if layer.whole else self.quad * 2
            place = i64(column + self.line) * window.stride(COL) + i64(along) * window.stride(SUM)
            first = offset(start, place * 2)
            starts = [offset(first, 16 * block * window.stride(COL)) for block in range(layer.blocks)]
            units.append(_Unit(number, layer, column, exists, starts))
        return units

    def _evaluator(self, unit: _Unit) -> Evaluator:
        memory = SliceMemory(self.plan, self.tile, self.shared, self.lane, i32(0), {})
        memory.first_col = unit.column
        return Evaluator(self.plan.chain, memory, self.tile.index, self.starts.folded)

    def _start(self, unit: _Unit, evaluator: Evaluator) -> list[list[Value]]:
        """What the sums of each block start from."""
        blocks = range(unit.layer.blocks)
        sums = self.starts.sums(evaluator, unit.layer.layer, blocks) or [constant(0.0, "f32")] * (4 * len(blocks))
        return [sums[4 * block : 4 * block + 4] for block in blocks]

    # --- what comes from memory -----------------------------------------------------------------------------------------

    def _weights(self, units: list[_Unit]) -> Iterator[list[Value]]:
        """Words of weights in the order in which they are used, `AHEAD` of them loaded before. The first `next` only starts."""
        direct = [unit for unit in units if not unit.layer.streamed]
        places = [
            (unit, chunk, block) for unit in direct for chunk in range(unit.layer.chunks) for block in range(unit.layer.blocks)
        ]
        loaded = [self._weight(*place) for place in places[:AHEAD]]
        yield []
        for number in range(len(places)):
            yield loaded[number]
            if number + AHEAD < len(places):
                loaded.append(self._weight(*places[number + AHEAD]))

    def _weight(self, unit: _Unit, chunk: int, block: int) -> list[Value]:
        layer, start = unit.layer, unit.starts[block]
        if layer.whole:  # no constant loads: LLVM would move them to their uses
            return unpack(load(offset(start, 64 * chunk), "vector<4xi32>", 16))
        return self._short(layer, start, layer.weight, chunk)

    def _short(self, layer: RowLayer, start: Value, window: Window, chunk: int) -> list[Value]:
        """The lane's two words of 16 terms, read element by element from `start` on; zeros beyond the last term."""
        step, depth = window.stride(SUM), layer.layer.depth
        words = []
        for half in (0, 8):
            pair = []
            for lane in range(2):
                ahead = SHORT_STEP * chunk + half + lane  # of the lane's first term, 2 * quad
                if ahead + 6 < depth:
                    pair.append(load(offset(start, 2 * ahead * step), "i16", 2))
                    continue
                more = minimum(self.quad * 2 + ahead, depth - 1) - self.quad * 2
                element = load(offset(start, i64(more) * (2 * step)), "i16", 2)
                pair.append(select(self.quad * 2 + ahead < depth, element, 0))
            words.append(pack(*pair))
        return words

    def _copy_rows(self, layer: RowLayer) -> None:
        """The first layer's rows into shared memory."""
        source, pieces, rows = self.plan.source, layer.layer.depth // 8, self.plan.chain.rows
        start = source.start(self.tile)

        def copy(item: Value) -> None:
            row, piece = item // pieces, item % pieces
            place = offset(start, i64(row) * (2 * source.stride(ROW)) + i64(piece) * 16)
            copy_async(offset(self._rows(layer), row * layer.pitch + piece * 16), place)

        for_(self.group.thread, rows * pieces, self.group.threads, copy)
        copy_async_commit()
        copy_async_wait(0)
        self.group.sync()

    def _rows(self, layer: RowLayer) -> Value:
        return offset(self.shared, layer.input_at)

    def _factor(self, unit: _Unit, chunk: int) -> list[list[Value]]:
        """The lane's words of its two rows: of `STEP` terms where weights come so, else of 16."""
        layer, found = unit.layer, []
        for half in range(2):
            row = self.line + 8 * half
            if layer.whole:
                place = row * layer.pitch + self.quad * 16 + 64 * chunk
                found.append(unpack(load(offset(self._rows(layer), place), "vector<4xi32>", 16)))
                continue
            source = self.plan.source
            if self.plan.chain.rows < ROWS:
                row = minimum(row, self.plan.chain.rows - 1)
            place = i64(row) * source.stride(ROW) + i64(self.quad * 2) * source.stride(SUM)
            found.append(self._short(layer, offset(source.start(self.tile), place * 2), source, chunk))
        return found

    # --- products -------------------------------------------------------------------------------------------------------

    def _multiply(self, unit: _Unit, sums: list[list[Value]], weights: Iterator[list[Value]]) -> list[list[Value]]:
        sums, dtype = list(sums), unit.layer.layer.dtype
        if unit.layer.streamed:
            return self._multiply_streamed(unit, sums)
        for chunk in range(unit.layer.chunks):
            low, high = self._factor(unit, chunk)
            for block in range(unit.layer.blocks):
                words = next(weights)
                for half in range(0, len(words), 2):
                    fragment = [low[half], high[half], low[half + 1], high[half + 1]]
                    sums[block] = multiply_add(sums[block], fragment, words[half : half + 2], dtype)
        return sums

    def _multiply_streamed(self, unit: _Unit, sums: list[list[Value]]) -> list[list[Value]]:
        """The same with weights from the ring."""
        assert self.stream is not None
        layer, stream, line = unit.layer, self.stream, self.lane & 7
        tile = stream.ring.tile(unit.number)
        rows = offset(self._rows(layer), (self.lane & 15) * layer.pitch + (self.lane >> 4) * 16)
        for first in range(0, layer.layer.depth, tile.cols):
            piece = stream.piece()
            for term in range(0, min(tile.cols, layer.layer.depth - first), STEP):
                factors = [load_matrices(offset(rows, 2 * (first + term + half))) for half in (0, STEP // 2)]
                for block in range(layer.blocks):
                    place = tile.offset(unit.column + line + 8 * block, (self.lane >> 3) * 8 + term)
                    words = load_matrices(offset(piece, place))
                    for half, factor in enumerate(factors):
                        sums[block] = multiply_add(sums[block], factor, words[2 * half : 2 * half + 2], layer.layer.dtype)
            stream.release()
        return sums

    def _write(self, unit: _Unit, evaluator: Evaluator, write: Write) -> None:
        """Hand a unit's results to the next layer, or to `write`."""
        last = unit.number == len(self.plan.layers) - 1

        def keep(row: Value, col: Value, lanes: Lanes) -> None:
            layer = self.plan.layers[unit.number + 1]
            store(lanes.word, offset(self._rows(layer), row * layer.pitch + col * 2), 4)

        for half in range(2):
            row = self.line + 8 * half
            places = [FragmentIndex(half, block) for block in range(unit.layer.blocks)]
            found = [evaluator.tensor(unit.layer.output, place).settled() for place in places]

            def put(row: Value = row, found: list[Lanes] = found) -> None:
                for block, lanes in enumerate(found):
                    (write if last else keep)(row, unit.column + (self.quad * 2 + 8 * block), lanes)

            inside = row < self.plan.chain.rows if last and self.plan.chain.rows < ROWS else None
            if_all([unit.exists, inside], put)
