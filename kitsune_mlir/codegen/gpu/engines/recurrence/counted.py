"""Hidden states that blocks hand over with a counter: after each step a block posts, and waits for the posts of all others."""

from __future__ import annotations

from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_
from kitsune_mlir.codegen.gpu.emit.memory import copy_async_wait, load, offset, store
from kitsune_mlir.codegen.gpu.emit.value import Value, constant, i32, i64, unpack
from kitsune_mlir.codegen.gpu.engines.recurrence.direction import Direction
from kitsune_mlir.codegen.gpu.engines.recurrence.layout import COLUMNS, K_BYTES

__all__ = ["Counted"]


class Counted(Direction):
    """Rows of hidden states lie as those of the weights do, two arrays of them take turns."""

    def emit(self) -> None:
        layout, counters, group = self.layout, self.counters, self.group
        self.begin()
        self._pad()
        group.sync()
        if_(self.thread == 0, lambda: counters.post(self.counter))
        self.bring(i32(0), 0)

        def step(t: Value) -> None:
            posted = (t + 1) * layout.unit_blocks
            if_(self.thread == 0, lambda: counters.poll(self.counter, posted, self.share.tile.task.number))
            group.sync()
            for number in range(layout.passes):
                self._sums(t, number)
                copy_async_wait(0)
                group.sync()
                self.cells(t, number, self.shared["sums"])
                group.sync()
                last = number == layout.passes - 1
                if last:
                    if_(self.thread == 0, lambda: counters.post(self.counter))
                self.bring(t + 1 if last else t, 0 if last else number + 1)

        for_(0, self.what.steps, 1, step)
        copy_async_wait(0)
        self.finals()

    def hand_over(self, value: Value, t: Value, row: Value, unit: Value) -> None:
        start = offset(self.handed, (t & 1) * self.layout.state_bytes)
        store(value, offset(start, row * self.layout.row_bytes + (self.first + unit) * self.layout.bytes))

    def _pad(self) -> None:
        """Zeros where rows are longer than hidden states."""
        layout = self.layout
        padding = layout.row_bytes // layout.bytes - layout.hidden
        if not padding:
            return

        def pad(place: Value) -> None:
            row, column = place // padding, place % padding + layout.hidden
            zero = constant(0, self.what.dtype)
            store(zero, offset(self.handed, row * layout.row_bytes + column * layout.bytes))

        rows = 2 * layout.passes * layout.columns
        if_(self.share.leads, lambda: for_(self.thread, rows * padding, layout.threads, pad))

    def _sums(self, t: Value, number: int) -> None:
        """Partial sums of a pass, for the warp's part of the hidden state, to shared memory."""
        layout = self.layout
        handed = offset(self.handed, (t & 1) * layout.state_bytes)

        def some(group: Value) -> None:
            column = group * (COLUMNS * layout.together)
            sums = self.no_sums(layout.together)
            for block in range(layout.own_k_blocks):
                states = []
                for other in range(layout.together):
                    row = self.g + (column + (number * layout.columns + other * COLUMNS))
                    place = i64(row) * layout.row_bytes + i64(self.k_block(block) * K_BYTES + self.q * 16)
                    states.append(unpack(load(offset(handed, place), "vector<4xi32>")))
                self.multiply(sums, block, states)
            self.put(sums, column, self.shared["sums"])

        groups = layout.columns // (COLUMNS * layout.together)
        if groups == 1:
            some(i32(0))
        else:
            for_(0, groups, 1, some)
