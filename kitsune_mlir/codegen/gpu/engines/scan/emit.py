"""The code of one tile of a scan, or of one piece of it."""

from __future__ import annotations

from collections.abc import Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_, shuffle
from kitsune_mlir.codegen.gpu.emit.memory import load, offset, store
from kitsune_mlir.codegen.gpu.emit.value import Value, i32, maximum, minimum, select
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

    def emit_piece(self, number: Value, pieces: int, last: Value, before: Value) -> list[Value]:
        """One of `pieces` chunks of all lines of the tile, and the posts.

        Args:
            last: the piece that the block did last, counted over all tiles (-1: none).
            before: what all pieces of that tile up to that one give.

        Returns:
            `last` and `before` for the block's next piece.
        """
        layout, tile = self.layout, self.tile
        exchange = SplitExchange(tile.task, lambda: self.thread == 0, self.group.sync)
        line = self.row * layout.fast + self.column
        inside = line < layout.lines
        where = delinearize(minimum(line, layout.lines - 1), self.sizes) if self.sizes else ()
        begin = tile.number * pieces
        part = begin + number

        def partial(piece: Value) -> Value:
            return exchange.partials(piece * layout.lines + minimum(line, layout.lines - 1), NUMBER_BYTES)

        def add(other: Value, sum: Value) -> Value:
            tile.task.kernel.counters.poll(other + exchange.slot.arrivals, 1, tile.task.number)
            return self.combine(sum, load(partial(other), self.combine.type))

        def work() -> list[Value]:
            exchange.claim(sync=False)
            vectors = self._scanned(where, number)
            (*earlier, own) = self._over_warp([vector[-1] for vector in vectors])
            ahead, total = self._over_warps(own, 0)
            if_((self.segment == 0) & inside, lambda: store(total, partial(part)))
            if layout.lines > 1:
                self.group.sync()
            exchange.announce(part)
            known = select(last < begin, self.neutral, before)
            first = maximum(begin, last + 1)
            others = for_(first + self.segment, part, layout.segments, add, [self.neutral])[0]
            known = self.combine(known, self._over_line(others, 1))
            self._finish(where, inside, number, self.combine(known, ahead), earlier, vectors)
            return [self.combine(known, total)]

        if self.group.barrier is None:
            (after,) = work()
        else:
            (after,) = if_(self.thread < layout.threads, work, lambda: [before], [self.combine.type])
        exchange.end(tile, pieces)
        return [part, after]

    # --- parts

    def _read(self, where: Sequence[Value], first: Value) -> list[Value]:
        """Neighbours that begin at `first`; neutral ones beyond the line's end."""
        layout = self.layout
        found = list(self.elements.at(self.op.operands[0], self._at(where, first), layout.width))
        if layout.length % layout.chunk == 0:
            return found
        return [select(first + e < layout.length, value, self.neutral) for e, value in enumerate(found)]

    def _at(self, where: Sequence[Value], along: Value) -> list[Value]:
        return [*where[: self.axis], along, *where[self.axis :]]

    def _start(self, chunk: Value, vector: int) -> Value:
        """Where the thread's neighbours number `vector` of a chunk begin."""
        layout = self.layout
        here = layout.lane_segments
        warp, lane = self.segment // here, self.segment % here
        return chunk * layout.chunk + warp * (here * layout.elements) + (lane + vector * here) * layout.width

    def _scanned(self, where: Sequence[Value], chunk: Value) -> list[list[Value]]:
        """The thread's runs of neighbours of a chunk, each scanned by itself."""
        vectors = [self._read(where, self._start(chunk, vector)) for vector in range(self.layout.vectors)]
        for values in vectors:
            for e in range(1, len(values)):
                values[e] = self.combine(values[e - 1], values[e])
        return vectors

    def _chunks(self, where: Sequence[Value], inside: Value, first: Value, last: Value, before: Value) -> None:
        """Scan some chunks of the thread's line; `before` is what all elements before them give."""

        def step(chunk: Value, carried: Value) -> Value:
            vectors = self._scanned(where, chunk)
            (*earlier, own) = self._over_warp([vector[-1] for vector in vectors])
            ahead, total = self._over_warps(own, chunk)
            self._finish(where, inside, chunk, self.combine(carried, ahead), earlier, vectors)
            return self.combine(carried, total)

        for_(first, last, 1, step, [before])

    def _finish(
        self,
        where: Sequence[Value],
        inside: Value,
        chunk: Value,
        before: Value,
        earlier: Sequence[Value],
        vectors: Sequence[Sequence[Value]],
    ) -> None:
        """Store a chunk: runs that begin after what `before` (the warp) and `earlier` (the run) give."""
        for number, (ahead, vector) in enumerate(zip(earlier, vectors, strict=True)):
            start = self.combine(before, ahead)
            self._store(where, inside, self._start(chunk, number), [self.combine(start, value) for value in vector])

    def _over_warp(self, runs: Sequence[Value]) -> list[Value]:
        """For each of the thread's runs what those of the warp before it give, and what all of the warp's give.

        Args:
            runs: what the thread's own give.
        """
        layout, lane = self.layout, self.lane
        here = layout.lane_segments
        mine = self.segment % here
        before, found = None, list[Value]()
        for own in runs:
            value, reach = own, 1
            while reach < here:
                other = shuffle(value, (lane - reach * layout.fast) & 31)
                value = select(mine >= reach, self.combine(other, value), value)
                reach *= 2
            earlier, total = self.neutral, value
            if here > 1:
                earlier = select(mine == 0, self.neutral, shuffle(value, (lane - layout.fast) & 31))
                total = shuffle(value, lane + (i32(here - 1) - mine) * layout.fast)
            found.append(earlier if before is None else self.combine(before, earlier))
            before = total if before is None else self.combine(before, total)
        assert before is not None
        return [*found, before]

    def _over_warps(self, own: Value, turn: Value | int) -> tuple[Value, Value]:
        """What the warps of a line before the thread's own give, and what all of them give.

        Args:
            own: what the thread's warp gives.
            turn: odd and even ones use different shared memory, so that one barrier is enough.
        """
        layout = self.layout
        if layout.warps == 1:
            return self.neutral, own
        part = turn % 2 if isinstance(turn, Value) else i32(turn % 2)
        line = self.row * layout.fast + self.column
        base = offset(self.tile.task.shared, ((part * layout.at_once + line) * layout.warps) * NUMBER_BYTES)
        warp = self.segment // layout.lane_segments
        if_(self.segment % layout.lane_segments == 0, lambda: store(own, offset(base, warp * NUMBER_BYTES)))
        self.group.sync()
        ahead = total = self.neutral
        for number in range(layout.warps):
            one = load(offset(base, number * NUMBER_BYTES), self.combine.type)
            ahead = select(warp > number, self.combine(ahead, one), ahead)
            total = self.combine(total, one)
        return ahead, total

    def _over_line(self, own: Value, turn: int) -> Value:
        """What all segments of the thread's line give."""
        return self._over_warps(self._over_warp([own])[-1], turn)[1]

    def _store(self, where: Sequence[Value], inside: Value, start: Value, scanned: list[Value]) -> None:
        """Store neighbours, of all results."""
        layout, scan = self.layout, {self.op.results[0]: scanned}
        for window in self.tile.task.view.stores:
            values = self.elements.at(window.tensor, self._at(where, start), layout.width, scan)
            width = self.elements.width(window, layout.width)
            for first in range(0, layout.width, width):
                at = start + first
                full = layout.length % layout.chunk == 0
                exists = inside if full else inside & (at < layout.length)
                piece = values[first : first + width]

                def write(window=window, at=at, piece=piece) -> None:
                    self.elements.store(window, self._at(where, at), piece)

                if_(exists, write)
