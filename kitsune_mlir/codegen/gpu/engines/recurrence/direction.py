"""A block's work in one direction of a recurrent layer: what is the same however blocks hand hidden states to each other.

Lane 4 g + q of a warp has bytes [16 q, 16 q + 16) of rows g and g + 8 of a tile of weights, and of row g of a tile of hidden
states, 64 bytes of a row being a k-block: a `mma.sync` takes words 0 and 1 of these, the next one words 2 and 3, in whatever
order the sum is then.
"""

from __future__ import annotations

import abc
import dataclasses

from kitsune_mlir.codegen.gpu.emit.control_flow import for_
from kitsune_mlir.codegen.gpu.emit.inline_ptx import fresh
from kitsune_mlir.codegen.gpu.emit.memory import copy_async, copy_async_commit, load, offset, store
from kitsune_mlir.codegen.gpu.emit.value import Value, bitcast, cast, f32, i32, minimum, pack, select, unpack, vector
from kitsune_mlir.codegen.gpu.engines.recurrence.cells import cell_step
from kitsune_mlir.codegen.gpu.engines.recurrence.layout import COLUMNS, K_BYTES, ROWS, Layout
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.codegen.gpu.interface.elements import Elements
from kitsune_mlir.codegen.gpu.interface.split_exchange import SplitExchange
from kitsune_mlir.codegen.gpu.interface.thread_group import ThreadGroup
from kitsune_mlir.codegen.gpu.sm90.mma_sync import multiply_add, multiply_add_f32
from kitsune_mlir.dialects.recurrence import Recurrence

__all__ = ["Direction", "Share"]

WORDS = 4
"""Of a k-block that a lane has of a row: two for each of its two `mma.sync`."""

Sums = list[list[list[Value]]]
"""Four sums of a lane for each tile of rows and each of columns."""


@dataclasses.dataclass(frozen=True)
class Share:
    """Which part of a layer a block has.

    Attributes:
        tile: the task's tile. what: the layer. layout: how blocks share it.
        group: the threads that work. exchange: memory and counters of all blocks.
        direction: 0 or 1. first: its first unit. row: its first row of the batch.
        block: number of those that it hands hidden states to, among all. leads: whether (i1) it is the first of these.
    """

    tile: TileContext
    what: Recurrence
    layout: Layout
    group: ThreadGroup
    exchange: SplitExchange
    direction: int
    first: Value
    row: Value
    block: Value
    leads: Value


class Direction(abc.ABC):
    """Emits it; subclasses have the loop over the steps."""

    def __init__(self, share: Share):
        self.share, self.layout, self.what, self.group = share, share.layout, share.what, share.group
        self.direction, self.first, self.row = share.direction, share.first, share.row
        self.elements = Elements(share.tile, 1)  # of weights, along the sum
        self.scalars = Elements(share.tile, 0)
        self.thread = share.tile.task.thread
        self.warp, lane = self.thread // 32, self.thread % 32
        self.lane, self.g, self.q = lane, lane // 4, lane % 4
        self.wide = self.what.dtype == "f32"
        self.k_elements = K_BYTES // WORDS // self.layout.bytes  # of a lane
        self.counters, self.counter = share.tile.task.kernel.counters, share.block + share.exchange.slot.arrivals
        self.handed = share.exchange.partials(share.block, 2 * self.layout.state_bytes)
        self.shared, place = {}, 0
        for name, size in self.layout.shared.items():
            self.shared[name] = offset(share.tile.task.shared, place)
            place += -(-size // 16) * 16

    @abc.abstractmethod
    def emit(self) -> None:
        """All steps, and what is before and after them."""

    @abc.abstractmethod
    def hand_over(self, value: Value, t: Value, row: Value, unit: Value) -> None:
        """Put a hidden state, of the weights' type, where all blocks read it in step t; row and unit are the block's."""

    # --- before the first step

    def begin(self) -> None:
        """Biases and states to shared memory, hidden states to all blocks, weights to where they stay."""
        layout, what = self.layout, self.what

        def bias(place: Value) -> None:
            (found,) = self.scalars.at(what.biases[self.direction], [self.column(place)], 1)
            store(cast(found, "f32"), offset(self.shared["bias"], place * 4))

        for_(self.thread, layout.gates * layout.units, layout.threads, bias)

        def state(place: Value) -> None:
            unit, row = place % layout.units, place // layout.units
            where = [i32(self.direction), self.row + row, self.first + unit]
            found = [self.scalars.at(value, where, 1)[0] for value in what.states]
            for value, name in zip(found, ("hidden", "cell"), strict=False):
                store(cast(value, "f32"), offset(self.shared[name], place * 4))
            self.hand_over(found[0], i32(0), row, unit)

        for_(self.thread, layout.units * layout.rows, layout.threads, state)
        self.held = [[self._read(tile, block) for tile in range(layout.tiles)] for block in range(layout.held)]
        for block in range(layout.held, layout.held + layout.stored):
            for tile in range(layout.tiles):
                words = self._read(tile, block)
                for half in range(2):
                    store(vector(words[half * WORDS :][:WORDS]), self._kept(tile, block, half))

    def column(self, place: Value) -> Value:
        """Row of the weights of number `place` among the block's: gate by gate, units inside."""
        gate = minimum(place // self.layout.units, self.layout.gates - 1)
        return gate * self.layout.hidden + self.first + place % self.layout.units

    def _kept(self, tile: int, block: int, half: int) -> Value:
        """Where a lane has words of a k-block in shared memory."""
        layout = self.layout
        number = (self.warp * layout.stored + (block - layout.held)) * layout.tiles + tile
        return offset(self.shared["weights"], ((number * 2 + half) * 32 + self.lane) * (4 * WORDS))

    def _weights(self, tile: int, block: int) -> list[Value]:
        """Of a k-block of the warp: words of row g, and of row g + 8, of a tile."""
        layout = self.layout
        if block < layout.held:
            return self.held[block][tile]
        if block < layout.held + layout.stored:
            return [word for half in range(2) for word in unpack(load(self._kept(tile, block, half), "vector<4xi32>"))]
        return self._read(tile, block)

    def _read(self, tile: int, block: int) -> list[Value]:
        """The same from memory."""
        layout = self.layout
        at = minimum(self.warp * layout.own_k_blocks + block, layout.k_blocks)  # beyond the last: zeros
        k = at * (K_BYTES // layout.bytes) + self.q * self.k_elements
        rows = [self.column(self.g + (tile * ROWS + half * 8)) for half in range(2)]
        return [word for row in rows for word in self._words(row, k)]

    def _words(self, row: Value, k: Value) -> list[Value]:
        """Four words of a row of weights; zeros beyond its end."""
        layout, elements = self.layout, self.elements
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

    def multiply(self, sums: Sums, block: int, states: list[list[Value]]) -> None:
        """Add the products of all tiles of weights with tiles of states, four words of a k-block of the warp each."""
        for tile in range(self.layout.tiles):
            weights = self._weights(tile, block)
            if self.wide:  # their parts are not kept from step to step
                weights = [fresh(word) for word in weights]
            for half in (0, 2):
                a = [weights[half], weights[WORDS + half], weights[half + 1], weights[WORDS + half + 1]]
                for number, state in enumerate(states):
                    b, old = state[half : half + 2], sums[tile][number]
                    if self.wide:
                        sums[tile][number] = multiply_add_f32(old, a, b, self.layout.products > 1)
                    else:
                        sums[tile][number] = multiply_add(old, a, b, self.what.dtype)

    def no_sums(self, together: int) -> Sums:
        """Zeros."""
        return [[[f32(0.0)] * 4 for _ in range(together)] for _ in range(self.layout.tiles)]

    def k_block(self, block: int) -> Value:
        """Number of a k-block of the warp; of one beyond the last, of the last, whose weights are zeros then."""
        return minimum(self.warp * self.layout.own_k_blocks + block, self.layout.k_blocks - 1)

    def put(self, sums: Sums, column: Value, place: Value) -> None:
        """The warp's partial sums for columns from one on, to shared memory."""
        layout = self.layout
        for tile, columns in enumerate(sums):
            for number, found in enumerate(columns):
                for half in range(2):
                    row = self.warp * (layout.tiles * ROWS) + self.g + (tile * ROWS + half * 8)
                    at = (row * layout.sums_stride + column + (self.q * 2 + number * COLUMNS)) * 4
                    store(vector(found[2 * half : 2 * half + 2]), offset(place, at))

    def cells(self, t: Value, number: int, sums: Value) -> None:
        """Add up all warps' sums, and do the step of each unit and row of a pass; a thread has the same in each step."""
        layout, what = self.layout, self.what
        place = i32(self.what.steps - 1) - t if self.direction else t

        def one(index: Value) -> None:
            unit, column = index % layout.units, index // layout.units
            row = column + number * layout.columns
            given, hidden = [], []
            for gate in range(layout.gates):
                at = unit + gate * layout.units
                total = load(offset(self.shared["bias"], at * 4), "f32")
                for warp in range(layout.warps):
                    there = ((at + warp * layout.tiles * ROWS) * layout.sums_stride + column) * 4
                    total = total + load(offset(sums, there), "f32")
                hidden.append(total)
                given.append(load(self._given(gate, index), "f32"))
            cell = (row * layout.units + unit) * 4
            places = [offset(self.shared[name], cell) for name in ("hidden", "cell")[: len(what.states)]]
            states = cell_step(what.cell, given, hidden, [load(one, "f32") for one in places], not self.wide)
            narrow = cast(states[0], what.dtype)
            self.hand_over(narrow, t + 1, row, unit)
            states[0] = cast(narrow, "f32")
            for state, one in zip(states, places, strict=True):
                store(state, one)
            self._store(0, [place, self.row + row, self.first + unit + self.direction * layout.hidden], narrow)

        for_(self.thread, layout.units * self._rows(number), layout.threads, one)

    def bring(self, t: Value, number: int) -> None:
        """Start the copies of what is given for a pass of a step, by the threads that use it."""
        layout = self.layout
        window = self.scalars.loads[self.what.given[self.direction]]
        t = minimum(t, self.what.steps - 1)
        place = i32(self.what.steps - 1) - t if self.direction else t

        def one(index: Value) -> None:
            unit, row = index % layout.units, index // layout.units + number * layout.columns
            for gate in range(layout.gates):
                where = self._in_order([place, self.row + row, self.first + unit + gate * layout.hidden])
                copy_async(self._given(gate, index), self.scalars.place(window, where), 4)

        for_(self.thread, layout.units * self._rows(number), layout.threads, one)
        copy_async_commit()

    def _rows(self, number: int) -> int:
        """Of the batch in a pass."""
        return min(self.layout.columns, self.layout.rows - number * self.layout.columns)

    def _given(self, gate: int, index: Value) -> Value:
        """Where a thread has what is given for a gate."""
        return offset(self.shared["given"], (index + gate * (self.layout.units * self.layout.columns)) * 4)

    def finals(self) -> None:
        """Store the states after the last step."""
        layout = self.layout

        def one(index: Value) -> None:
            unit, row = index % layout.units, index // layout.units
            for number, name in enumerate(("hidden", "cell")[: len(self.what.states)]):
                value = load(offset(self.shared[name], index * 4), "f32")
                self._store(number + 1, [i32(self.direction), self.row + row, self.first + unit], cast(value, self.what.dtype))

        for_(self.thread, layout.units * layout.rows, layout.threads, one)

    def _in_order(self, where: list[Value]) -> list[Value]:
        """A step, a row and a column as coordinates of what is given, and of the result."""
        return [where[1], where[0], where[2]] if self.what.batch_first else where

    def _store(self, result: int, where: list[Value], value: Value) -> None:
        """Store an element of a result where somebody reads it."""
        for window in self.share.tile.task.view.stores:
            if window.tensor == self.what.op.results[result]:
                self.scalars.store(window, where if result else self._in_order(where), [value])
