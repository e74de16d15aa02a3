"""The code of one tile of a scan, or of one piece of it."""

from __future__ import annotations

from collections.abc import Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_, shuffle
from kitsune_mlir.codegen.gpu.emit.memory import load, offset, store
from kitsune_mlir.codegen.gpu.emit.value import Value, i32, minimum, select
from kitsune_mlir.codegen.gpu.engines.scan.combining import Combining
from kitsune_mlir.codegen.gpu.engines.scan.layout import Layout
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.codegen.gpu.interface.elements import Elements
from kitsune_mlir.codegen.gpu.interface.split_exchange import SplitExchange
from kitsune_mlir.codegen.gpu.interface.thread_group import ThreadGroup
from kitsune_mlir.codegen.gpu.interface.tile_index import delinearize
from kitsune_mlir.dialects.access import shape_of

__all__ = ["ScanTile"]

BARRIER = 1
NUMBER_BYTES = 8
"""That a number has in shared memory and among partial results."""


class ScanTile:
    """Emits a tile.

    Args:
        tile: where. op: the scan, along dimension `axis`. combine: of its elements.
    """

    def __init__(self, tile: TileContext, op: ir.Operation, axis: int, combine: Combining, layout: Layout):
        self.tile, self.op, self.axis, self.combine, self.layout = tile, op, axis, combine, layout
        self.elements = Elements(tile, axis)
        self.sizes = [size for dim, size in enumerate(shape_of(op.results[0])) if dim != axis]
        self.neutral = combine.neutral
        thread = tile.task.thread
        self.thread = thread
        self.group = ThreadGroup.leading(tile.task, layout.threads, BARRIER)  # those that have a segment
        self.column = thread % layout.fast
        self.segment = thread // layout.fast % layout.segments
        self.row = thread // (layout.fast * layout.segments)
        self.lane = thread % 32

    @staticmethod
    def shared_bytes(layout: Layout) -> int:
        """Shared memory: what warps combined, of two chunks in turn."""
        return 2 * layout.at_once * layout.warps * NUMBER_BYTES if layout.warps > 1 else 0

    def emit(self) -> None:
        """All lines of the tile."""

        def some(first: Value) -> None:
            line = first + self.row * self.layout.fast + self.column
            inside = line < self.layout.lines
            where = delinearize(minimum(line, self.layout.lines - 1), self.sizes) if self.sizes else ()
            self._chunks(where, inside, i32(0), i32(self.layout.chunks), self.neutral)
            if self.layout.warps > 1 and self.layout.lines > self.layout.at_once:
                self.group.sync()  # the next lines use the same shared memory

        self.group.only(lambda: for_(0, self.layout.lines, self.layout.at_once, some))

    def emit_piece(self, number: Value, pieces: int) -> None:
        """One of `pieces` parts of all lines of the tile, and the posts."""
        layout, tile = self.layout, self.tile
        exchange = SplitExchange(tile.task, lambda: self.thread == 0, self.group.sync)
        first, last = number * layout.chunks // pieces, (number + 1) * layout.chunks // pieces
        line = self.row * layout.fast + self.column
        inside = line < layout.lines
        where = delinearize(minimum(line, layout.lines - 1), self.sizes) if self.sizes else ()
        part = tile.number * pieces + number

        def work() -> None:
            exchange.claim(sync=False)
            total = self._total(where, first, last)
            mine = (self.segment == 0) & inside
            self.group.sync()
            if_(mine, lambda: store(total, exchange.partials(part * layout.lines + line, NUMBER_BYTES)))
            self.group.sync()
            exchange.announce(part)
            begin = tile.number * pieces

            def wait(other: Value) -> None:
                tile.task.kernel.counters.poll(begin + other + exchange.slot.arrivals, 1, tile.task.number)

            for_(self.thread, number, layout.threads, wait)
            self.group.sync()

            def add(other: Value, sum: Value) -> Value:
                place = exchange.partials((begin + other) * layout.lines + minimum(line, layout.lines - 1), NUMBER_BYTES)
                return self.combine(sum, load(place, self.combine.type))

            before = for_(self.segment, number, layout.segments, add, [self.neutral])[0]
            before = self._over_line(before, 0)[1]
            self.group.sync()
            self._chunks(where, inside, first, last, before)

        self.group.only(work)
        exchange.end(tile, pieces)

    # --- parts

    def _read(self, where: Sequence[Value], first: Value) -> list[Value]:
        """The thread's elements of a chunk that begins at `first`; neutral ones beyond the line's end."""
        layout = self.layout
        found = self.elements.at(self.op.operands[0], self._at(where, first), layout.elements)
        if layout.length % layout.chunk == 0:
            return found
        return [select(first + e < layout.length, value, self.neutral) for e, value in enumerate(found)]

    def _at(self, where: Sequence[Value], along: Value) -> list[Value]:
        return [*where[: self.axis], along, *where[self.axis :]]

    def _start(self, chunk: Value) -> Value:
        return chunk * self.layout.chunk + self.segment * self.layout.elements

    def _total(self, where: Sequence[Value], first: Value, last: Value) -> Value:
        """All elements of some chunks, combined."""

        def step(chunk: Value, sum: Value) -> Value:
            return self.combine(sum, self.combine.all(self._read(where, self._start(chunk))))

        own = for_(first, last, 1, step, [self.neutral])[0]
        return self._over_line(own, 0)[1]

    def _chunks(self, where: Sequence[Value], inside: Value, first: Value, last: Value, before: Value) -> None:
        """Scan some chunks of the thread's line; `before` is what all elements before them give."""

        def step(chunk: Value, carried: Value) -> Value:
            start = self._start(chunk)
            values = self._read(where, start)
            for e in range(1, len(values)):
                values[e] = self.combine(values[e - 1], values[e])
            earlier, total = self._over_line(values[-1], chunk)
            earlier = self.combine(carried, earlier)
            self._store(where, inside, start, [self.combine(earlier, value) for value in values])
            return self.combine(carried, total)

        for_(first, last, 1, step, [before])

    def _over_line(self, own: Value, turn: Value | int) -> tuple[Value, Value]:
        """What the segments before the thread's own give, and what all of the line give.

        Args:
            turn: odd and even ones use different shared memory, so that one barrier is enough.
        """
        layout, lane = self.layout, self.lane
        here = layout.lane_segments
        mine = self.segment % here
        value, reach = own, 1
        while reach < here:
            other = shuffle(value, (lane - reach * layout.fast) & 31)
            value = select(mine >= reach, self.combine(other, value), value)
            reach *= 2
        earlier = self.neutral
        if here > 1:
            earlier = select(mine == 0, self.neutral, shuffle(value, (lane - layout.fast) & 31))
        if layout.warps == 1:
            return earlier, shuffle(value, lane + (i32(here - 1) - mine) * layout.fast) if here > 1 else value
        part = turn % 2 if isinstance(turn, Value) else i32(turn % 2)
        line = self.row * layout.fast + self.column
        base = offset(self.tile.task.shared, ((part * layout.at_once + line) * layout.warps) * NUMBER_BYTES)
        warp = self.segment // here
        if_(mine == here - 1, lambda: store(value, offset(base, warp * NUMBER_BYTES)))
        self.group.sync()
        ahead = total = self.neutral
        for number in range(layout.warps):
            one = load(offset(base, number * NUMBER_BYTES), self.combine.type)
            ahead = select(warp > number, self.combine(ahead, one), ahead)
            total = self.combine(total, one)
        return self.combine(ahead, earlier), total

    def _store(self, where: Sequence[Value], inside: Value, start: Value, scanned: list[Value]) -> None:
        """Store the thread's elements of all results."""
        layout, scan = self.layout, {self.op.results[0]: scanned}
        for window in self.tile.task.view.stores:
            values = self.elements.at(window.tensor, self._at(where, start), layout.elements, scan)
            width = self.elements.width(window, layout.elements)
            for first in range(0, layout.elements, width):
                at = start + first
                full = layout.length % layout.chunk == 0
                exists = inside if full else inside & (at < layout.length)
                piece = values[first : first + width]

                def write(window=window, at=at, piece=piece) -> None:
                    self.elements.store(window, self._at(where, at), piece)

                if_(exists, write)
