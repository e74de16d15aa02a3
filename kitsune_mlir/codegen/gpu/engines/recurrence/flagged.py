"""Hidden states that blocks hand over with flags: whoever reads one sees whether it is of the step that it wants.

A hidden state and the number of its step are one word of twice its size, written and read as a whole, so that it takes one way
through L2 where data and a counter take two. (NCCL's protocol LL.) A step needs one barrier of the block.
"""

from __future__ import annotations

from kitsune_mlir.codegen.gpu.emit.control_flow import ballot, for_, if_, while_
from kitsune_mlir.codegen.gpu.emit.memory import copy_async_wait, load_relaxed, offset, store_relaxed
from kitsune_mlir.codegen.gpu.emit.value import Value, bitcast, cast, i32, i64, minimum, select
from kitsune_mlir.codegen.gpu.engines.recurrence.direction import Direction
from kitsune_mlir.codegen.gpu.engines.recurrence.layout import K_BYTES

__all__ = ["Flagged"]


class Flagged(Direction):
    """Two arrays of words take turns; a block that has seen all words of a step may overwrite those of the step before."""

    def emit(self) -> None:
        layout, counters, group = self.layout, self.counters, self.group
        self.begin()
        group.sync()

        def meet() -> None:  # no block reads before all have cleared what was there
            counters.post(self.counter)
            counters.poll(self.counter, layout.unit_blocks, self.share.tile.task.number)

        if_(self.thread == 0, meet)
        self.bring(i32(0), 0)
        group.sync()

        def step(t: Value) -> None:
            sums, states = self.no_sums(1), self._states(t)
            for block, words in enumerate(states):
                self.multiply(sums, block, [words])
            place = offset(self.shared["sums"], (t & 1) * layout.sums_bytes)
            self.put(sums, i32(0), place)
            copy_async_wait(0)
            group.sync()
            self.cells(t, 0, place)
            self.bring(t + 1, 0)

        for_(0, self.what.steps, 1, step)
        copy_async_wait(0)
        self.finals()

    def hand_over(self, value: Value, t: Value, row: Value, unit: Value) -> None:
        where = row * self.layout.row_bytes + (self.first + unit) * (2 * self.layout.bytes)
        store_relaxed(self._word(value, t + 1), offset(self.handed, (t & 1) * self.layout.state_bytes + where))

    def begin(self) -> None:
        layout = self.layout

        def clear(place: Value) -> None:  # flags of step 1, which may be there by chance
            where = place // layout.units * layout.row_bytes + (self.first + place % layout.units) * (2 * layout.bytes)
            store_relaxed(self._word(None, i32(0)), offset(self.handed, where + layout.state_bytes))

        for_(self.thread, layout.units * layout.rows, layout.threads, clear)
        super().begin()

    def _word(self, value: Value | None, flag: Value) -> Value:
        """A hidden state with a flag in its upper half: i32 of 16 bits, i64 of f32."""
        if self.wide:
            low = i64(0) if value is None else cast(bitcast(value, "i32"), "i64", signed=False)
            return low | (cast(flag, "i64", signed=False) << 32)
        low = i32(0) if value is None else cast(bitcast(value, "i16"), "i32", signed=False)
        return low | (flag << 16)

    def _states(self, t: Value) -> list[list[Value]]:
        """Four words of hidden states for each k-block of the warp, when all of them are there."""
        layout = self.layout
        start = offset(self.handed, (t & 1) * layout.state_bytes + minimum(self.g, layout.rows - 1) * layout.row_bytes)
        places = [offset(start, self.k_block(block) * (2 * K_BYTES) + self.q * 32) for block in range(layout.own_k_blocks)]
        flag = (t + 1) & 0xFFFF if not self.wide else t + 1

        def read() -> list[Value]:
            """Eight i32 for each k-block: 16 bits and a flag each, or f32 and flag in turn."""
            bits = 64 if self.wide else 32
            return [word for place in places for half in (0, 16) for word in load_relaxed(offset(place, half), bits)]

        def missing(*words: Value) -> Value:
            """Whether (i1) some lane of the warp lacks a word."""
            wrong = i32(0)
            for number, word in enumerate(words):
                if self.wide and number % 2 == 0:
                    continue
                differs = word ^ flag if self.wide else (word >> 16) ^ flag
                wrong = wrong | self._if_there(differs, number, 0)
            return ballot(wrong != 0) != 0

        words = while_(read(), missing, lambda *_: read())
        found = []
        for first in range(0, len(words), 8):
            eight = words[first : first + 8]
            if self.wide:
                found.append([self._if_there(eight[e], first + e, 0) for e in range(0, 8, 2)])
            else:
                low = [self._if_there(word, first + e, 0) for e, word in enumerate(eight)]
                found.append([(low[e] & 0xFFFF) | (low[e + 1] << 16) for e in range(0, 8, 2)])
        return found

    def _if_there(self, value: Value, number: int, otherwise: int) -> Value:
        """A value made of word `number`; another one where this is beyond the hidden state's end."""
        layout = self.layout
        if layout.hidden * layout.bytes % K_BYTES == 0:
            return value
        block, e = divmod(number, 8)
        k = self.k_block(block) * (K_BYTES // layout.bytes) + (self.q * self.k_elements + (e // 2 if self.wide else e))
        return select(k < layout.hidden, value, otherwise)
