"""The code of a block's share of a recurrent layer: all steps, weights in registers, hidden states through L2."""

from __future__ import annotations

from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_, if_all, sync_block
from kitsune_mlir.codegen.gpu.emit.inline_ptx import fresh
from kitsune_mlir.codegen.gpu.emit.memory import copy_async, copy_async_commit, copy_async_wait, load, offset, store
from kitsune_mlir.codegen.gpu.emit.value import (
    Value,
    bitcast,
    cast,
    constant,
    f32,
    i32,
    i64,
    minimum,
    pack,
    select,
    unpack,
    vector,
)
from kitsune_mlir.codegen.gpu.engines.recurrence.cells import cell_step
from kitsune_mlir.codegen.gpu.engines.recurrence.layout import COLUMNS, K_BYTES, ROWS, Layout
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.codegen.gpu.interface.elements import Elements
from kitsune_mlir.codegen.gpu.interface.split_exchange import SplitExchange
from kitsune_mlir.codegen.gpu.interface.thread_group import ThreadGroup
from kitsune_mlir.codegen.gpu.sm90.mma_sync import multiply_add, multiply_add_f32
from kitsune_mlir.dialects.recurrence import Recurrence

__all__ = ["RecurrencePiece"]

BARRIER = 1
WORDS = 4
"""Of a k-block that a lane has: two for each of its two `mma.sync`."""


class RecurrencePiece:
    """Emits a block's piece of the one tile.

    Lane 4 g + q of a warp has bytes [16 q, 16 q + 16) of rows g and g + 8 of a tile of weights, and of row g of a tile of
    hidden states: a `mma.sync` takes words 0 and 1 of these, the next one words 2 and 3, in whatever order the sum is then.
    """

    def __init__(self, tile: TileContext, what: Recurrence, layout: Layout):
        self.tile, self.what, self.layout = tile, what, layout
        self.elements = Elements(tile, 1)  # of weights, along the sum
        self.scalars = Elements(tile, 0)
        self.thread = tile.task.thread
        self.group = ThreadGroup.leading(tile.task, layout.threads, BARRIER)
        self.exchange = SplitExchange(tile.task, lambda: self.thread == 0, self.group.sync)
        self.warp, lane = self.thread // 32, self.thread % 32
        self.g, self.q = lane // 4, lane % 4
        self.shared, place = {}, 0
        for name, size in layout.shared.items():
            self.shared[name] = offset(tile.task.shared, place)
            place += -(-size // 16) * 16

    def emit(self, number: Value) -> None:
        """Piece `number`, and the posts."""
        layout, tile = self.layout, self.tile
        each = layout.unit_blocks * layout.batch_blocks
        first = minimum(number % layout.unit_blocks * layout.units, layout.hidden - layout.units)
        row = minimum(number // layout.unit_blocks % layout.batch_blocks * layout.rows, layout.batch - layout.rows)
        block = number // layout.unit_blocks  # those whose pieces hand hidden states to each other

        def work() -> None:
            self.exchange.claim()
            for direction in range(layout.directions):
                run = _Direction(self, direction, first, row, block, number % layout.unit_blocks == 0)
                if_all([number // each == direction if layout.directions > 1 else None], run.emit)

        self.group.only(work)
        sync_block()

        def finish() -> None:
            tile.task.kernel.counters.post(i32(self.exchange.slot.read))
            tile.post(layout.pieces)

        if_(self.thread == 0, finish)


class _Direction:
    """A piece's work in one direction.

    Args:
        first: of its units. row: the first of its rows of the batch. block: number of the blocks that it works with.
        leads: whether (i1) it is the first of these.
    """

    def __init__(self, piece: RecurrencePiece, direction: int, first: Value, row: Value, block: Value, leads: Value):
        self.piece, self.direction, self.first, self.row, self.leads = piece, direction, first, row, leads
        self.layout, self.what, self.tile = piece.layout, piece.what, piece.tile
        self.thread, self.shared = piece.thread, piece.shared
        self.counter = block + piece.exchange.slot.arrivals
        self.handed = piece.exchange.partials(block, 2 * self.layout.state_bytes)
        self.wide = self.what.dtype == "f32"
        self.k_elements = K_BYTES // WORDS // self.layout.bytes  # of a lane

    def emit(self) -> None:
        """All steps."""
        layout, counters, group = self.layout, self.tile.task.kernel.counters, self.piece.group
        self._begin()
        weights = [[self._weights(tile, block) for tile in range(layout.tiles)] for block in range(layout.held)]
        group.sync()
        if_(self.thread == 0, lambda: counters.post(self.counter))
        self._bring(i32(0), 0)

        def step(t: Value) -> None:
            posted = (t + 1) * layout.unit_blocks
            if_(self.thread == 0, lambda: counters.poll(self.counter, posted, self.tile.task.number))
            group.sync()
            for number in range(layout.passes):
                self._multiply(t, number, weights)
                copy_async_wait(0)
                group.sync()
                self._cells(t, number)
                group.sync()
                last = number == layout.passes - 1
                if last:
                    if_(self.thread == 0, lambda: counters.post(self.counter))
                self._bring(minimum(t + 1, layout.steps - 1) if last else t, 0 if last else number + 1)

        for_(0, layout.steps, 1, step)
        copy_async_wait(0)
        self._finals()

    # --- what is there before the first step

    def _begin(self) -> None:
        """Biases and states, the hidden states to all blocks; zeros where rows of these are longer than states."""
        layout, what = self.layout, self.what

        def bias(place: Value) -> None:
            (found,) = self.piece.scalars.at(what.biases[self.direction], [self._column(place)], 1)
            store(cast(found, "f32"), offset(self.shared["bias"], place * 4))

        for_(self.thread, layout.gates * layout.units, layout.threads, bias)

        def state(place: Value) -> None:
            unit, row = place % layout.units, place // layout.units
            where = [i32(self.direction), self.row + row, self.first + unit]
            found = [self.piece.scalars.at(value, where, 1)[0] for value in what.states]
            for value, name in zip(found, ("hidden", "cell"), strict=False):
                store(cast(value, "f32"), offset(self.shared[name], place * 4))
            self._hand_over(found[0], i32(0), row, unit)

        for_(self.thread, layout.units * layout.rows, layout.threads, state)
        padding = layout.row_bytes // layout.bytes - layout.hidden
        if padding:

            def pad(place: Value) -> None:
                row, column = place // padding, place % padding + layout.hidden
                store(constant(0, what.dtype), offset(self.handed, row * layout.row_bytes + column * layout.bytes))

            rows = 2 * layout.passes * layout.columns
            if_(self.leads, lambda: for_(self.thread, rows * padding, layout.threads, pad))

    def _column(self, place: Value) -> Value:
        """Row of the weights of number `place` among the block's: gate by gate, units inside."""
        gate = minimum(place // self.layout.units, self.layout.gates - 1)
        return gate * self.layout.hidden + self.first + place % self.layout.units

    def _weights(self, tile: int, block: int) -> list[Value]:
        """Of a k-block of the warp: words of row g, and of row g + 8, of a tile."""
        layout = self.layout
        at = minimum(self.piece.warp * layout.own_k_blocks + block, layout.k_blocks)  # beyond the last: zeros
        k = at * (K_BYTES // layout.bytes) + self.piece.q * self.k_elements
        found = []
        for half in range(2):
            row = self._column(self.piece.g + (tile * ROWS + half * 8))
            found += self._words(row, k)
        return found

    def _words(self, row: Value, k: Value) -> list[Value]:
        """Four words of a row of weights; zeros beyond its end."""
        layout, elements = self.layout, self.piece.elements
        weight, count = self.what.weights[self.direction], self.k_elements
        window = elements.loads.get(weight)
        if window is not None and elements.width(window, count) == count:
            inside = k < layout.hidden
            place = elements.place(window, [row, minimum(k, layout.hidden - count)])
            return [select(inside, word, 0) for word in unpack(load(place, "vector<4xi32>"))]
        values = elements.at(weight, [row, k], count)
        values = [select(k + e < layout.hidden, value, 0.0) for e, value in enumerate(values)]
        if self.wide:
            return [bitcast(value, "i32") for value in values]
        return [pack(values[e], values[e + 1]) for e in range(0, count, 2)]

    # --- a step

    def _multiply(self, t: Value, number: int, weights: list[list[list[Value]]]) -> None:
        """Partial sums of a pass, for the warp's part of the hidden state, to shared memory."""
        layout, piece = self.layout, self.piece
        handed = offset(self.handed, (t & 1) * layout.state_bytes)
        groups = layout.columns // (COLUMNS * layout.together)

        def some(group: Value | int) -> None:
            column = group * (COLUMNS * layout.together)
            sums = [[[f32(0.0)] * 4 for _ in range(layout.together)] for _ in range(layout.tiles)]
            for block in range(layout.own_k_blocks):
                at = minimum(piece.warp * layout.own_k_blocks + block, layout.k_blocks - 1)
                states = []
                for other in range(layout.together):
                    row = piece.g + (column + (number * layout.columns + other * COLUMNS))
                    place = offset(handed, i64(row) * layout.row_bytes + i64(at * K_BYTES + piece.q * 16))
                    states.append(unpack(load(place, "vector<4xi32>")))
                for tile in range(layout.tiles):
                    words = weights[block][tile] if block < layout.held else self._weights(tile, block)
                    self._products(sums[tile], words, states)
            for tile in range(layout.tiles):
                for other in range(layout.together):
                    self._put(sums[tile][other], tile, column + other * COLUMNS)

        if groups == 1:
            some(i32(0))
        else:
            for_(0, groups, 1, some)

    def _products(self, sums: list[list[Value]], weights: list[Value], states: list[list[Value]]) -> None:
        """Add the products of a tile of weights and tiles of states."""
        if self.wide:  # their parts are not kept from step to step
            weights = [fresh(word) for word in weights]
        for half in (0, 2):
            a = [weights[half], weights[WORDS + half], weights[half + 1], weights[WORDS + half + 1]]
            for number, state in enumerate(states):
                b = state[half : half + 2]
                if self.wide:
                    sums[number] = multiply_add_f32(sums[number], a, b, self.layout.products > 1)
                else:
                    sums[number] = multiply_add(sums[number], a, b, self.what.dtype)

    def _put(self, sums: list[Value], tile: int, column: Value) -> None:
        """A tile's partial sums of the warp."""
        layout, piece = self.layout, self.piece
        for half in range(2):
            row = piece.warp * (layout.tiles * ROWS) + piece.g + (tile * ROWS + half * 8)
            place = (row * layout.sums_stride + column + piece.q * 2) * 4
            store(vector(sums[2 * half : 2 * half + 2]), offset(self.shared["sums"], place))

    def _cells(self, t: Value, number: int) -> None:
        """Sum up all warps' parts, and do the step of each unit and row of a pass."""
        layout, what = self.layout, self.what
        first = number * layout.columns
        count = min(layout.columns, layout.rows - first)
        place = i32(layout.steps - 1) - t if self.direction else t

        def one(index: Value) -> None:
            unit, column = index % layout.units, index // layout.units
            row = column + first
            given, hidden = [], []
            for gate in range(layout.gates):
                at = unit + gate * layout.units
                total = load(offset(self.shared["bias"], at * 4), "f32")
                for warp in range(layout.warps):
                    there = ((at + warp * layout.tiles * ROWS) * layout.sums_stride + column) * 4
                    total = total + load(offset(self.shared["sums"], there), "f32")
                hidden.append(total)
                given.append(load(offset(self.shared["given"], (column * (layout.gates * layout.units) + at) * 4), "f32"))
            cell = (row * layout.units + unit) * 4
            places = [offset(self.shared[name], cell) for name in ("hidden", "cell")[: len(what.states)]]
            states = cell_step(what.cell, given, hidden, [load(one, "f32") for one in places], not self.wide)
            narrow = cast(states[0], what.dtype)
            states[0] = cast(narrow, "f32")
            for state, one in zip(states, places, strict=True):
                store(state, one)
            self._hand_over(narrow, t + 1, row, unit)
            self._store(0, [place, self.row + row, self.first + unit + self.direction * layout.hidden], narrow)

        for_(self.thread, layout.units * count, layout.threads, one)

    def _bring(self, t: Value, number: int) -> None:
        """Start the copies of what is given for a pass of a step."""
        layout, elements = self.layout, self.piece.scalars
        window = elements.loads[self.what.given[self.direction]]
        place = i32(layout.steps - 1) - t if self.direction else t
        each = layout.gates * layout.units
        count = min(layout.columns, layout.rows - number * layout.columns)

        def one(index: Value) -> None:
            row, at = index // each + (number * layout.columns), index % each
            where = self._in_order([place, self.row + row, self._column(at)])
            copy_async(offset(self.shared["given"], index * 4), elements.place(window, where), 4)

        for_(self.thread, each * count, layout.threads, one)
        copy_async_commit()

    def _finals(self) -> None:
        """Store the states after the last step."""
        layout = self.layout

        def one(index: Value) -> None:
            unit, row = index % layout.units, index // layout.units
            for number, name in enumerate(("hidden", "cell")[: len(self.what.states)]):
                value = load(offset(self.shared[name], index * 4), "f32")
                self._store(number + 1, [i32(self.direction), self.row + row, self.first + unit], cast(value, self.what.dtype))

        for_(self.thread, layout.units * layout.rows, layout.threads, one)

    # --- places

    def _hand_over(self, value: Value, t: Value, row: Value, unit: Value) -> None:
        """Put a hidden state where all blocks read it in step t."""
        layout = self.layout
        start = offset(self.handed, (t & 1) * layout.state_bytes)
        store(value, offset(start, row * layout.row_bytes + (self.first + unit) * layout.bytes))

    def _in_order(self, where: list[Value]) -> list[Value]:
        """A step, a row and a column as coordinates of what is given, and of the result."""
        return [where[1], where[0], where[2]] if self.what.batch_first else where

    def _store(self, result: int, where: list[Value], value: Value) -> None:
        """Store an element of a result where somebody reads it."""
        for window in self.tile.task.view.stores:
            if window.tensor == self.what.op.results[result]:
                self.piece.scalars.store(window, where if result else self._in_order(where), [value])
