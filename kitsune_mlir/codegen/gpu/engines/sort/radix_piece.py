"""What a block does of a row that several sort together: code for `sort.radix_sort`, whose docstring has the steps."""

from __future__ import annotations

from collections.abc import Sequence

from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_, lane_id, sync_block, warp_id
from kitsune_mlir.codegen.gpu.emit.memory import load, offset, store
from kitsune_mlir.codegen.gpu.emit.reduce import over_lanes, over_registers
from kitsune_mlir.codegen.gpu.emit.value import Value, cast, constant, i32, i64, minimum, select
from kitsune_mlir.codegen.gpu.emit.vectors import load_elements
from kitsune_mlir.codegen.gpu.engines.sort.keys import radix_key
from kitsune_mlir.codegen.gpu.engines.sort.match import Sort
from kitsune_mlir.codegen.gpu.engines.sort.radix_layout import DIGITS, FLIGHT, Layout
from kitsune_mlir.codegen.gpu.engines.sort.rows import Rows
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.codegen.gpu.interface.split_exchange import SplitExchange
from kitsune_mlir.codegen.gpu.interface.stable_sort import prefix_sums
from kitsune_mlir.dialects.access import shape_of

__all__ = ["Piece"]

HELD = 8
"""Results of a thread that are neighbours."""
LANES = (1, 2, 4, 8, 16)


class Piece:
    """Emits one."""

    def __init__(self, tile: TileContext, sort: Sort, layout: Layout, number: Value):
        self.tile, self.sort, self.layout, self.number = tile, sort, layout, number
        task = tile.task
        self.thread, self.threads, self.shared = task.thread, task.threads, task.shared
        self.exchange = SplitExchange(task, lambda: self.thread == 0, sync_block)
        self.memory = self.exchange.partials(tile.number, layout.bytes)
        self.rows = Rows(tile, sort)
        self.where = [i32(0)] * (len(shape_of(sort.op.results[0])) - 1)
        self.begin = number * layout.part
        self.end = minimum(self.begin + layout.part, layout.length)

    def emit(self) -> None:
        """All steps."""
        self.exchange.claim()
        self._make_keys()
        met = self._meet(i32(0))
        differing = self._differing()

        def pass_(number: Value, source: Value, met: Value) -> list[Value]:
            shift = cast(number, self.layout.key) * 8
            differs = ((differing >> shift) & (DIGITS - 1)) != 0
            return if_(differs, lambda: self._pass(shift, source, met), lambda: [source, met], ["i32", "i32"])

        source, _ = for_(0, self.layout.passes, 1, pass_, [i32(0), met])
        self._write(source)
        self.exchange.end(self.tile, self.layout.pieces)

    def _meet(self, met: Value) -> Value:
        """Wait for the row's other blocks, for the time after `met` others."""
        sync_block()
        self.exchange.announce(self.tile.number)
        self.exchange.wait(self.tile.number, (met + 1) * self.layout.pieces)
        return met + 1

    def _key(self, source: Value, element: Value) -> Value:
        """Where the key of an element is, in one of the two arrays."""
        return offset(self.memory, (i64(source) * self.layout.room + i64(element)) * self.layout.word)

    def _place(self, source: Value, element: Value) -> Value:
        """Where its place is."""
        return offset(self.memory, (i64(source) * self.layout.room + i64(element)) * 4 + self.layout.places)

    def _in_table(self, piece: Value, digit: Value) -> Value:
        return offset(self.memory, (i64(piece) * DIGITS + i64(digit)) * 4 + self.layout.table)

    def _make_keys(self) -> None:
        """Keys and places of the part, and which bits of the keys differ from the row's first one."""
        sort, layout = self.sort, self.layout

        def key_of(element: Value) -> Value:
            return radix_key(self.rows.read(0, self.where, element), sort.descending, sort.signed)

        first = key_of(i32(0))

        def some(start: Value, differing: Value) -> Value:
            elements = [start + number * self.threads for number in range(FLIGHT)]
            keys = [key_of(minimum(element, self.end - 1)) for element in elements]
            for element, key in zip(elements, keys, strict=True):

                def put(element: Value = element, key: Value = key) -> None:
                    store(key, self._key(i32(0), element))
                    store(element, self._place(i32(0), element))

                if_(element < self.end, put)
            return differing | over_registers("or", [key ^ first for key in keys])

        none = constant(0, layout.key)
        (differing,) = for_(self.begin + self.thread, self.end, FLIGHT * self.threads, some, [none])
        found = self._over_block(differing)
        if_(self.thread == 0, lambda: store(found, self._bits(self.number)))

    def _bits(self, piece: Value) -> Value:
        return offset(self.memory, i64(piece) * 8 + self.layout.differing)

    def _differing(self) -> Value:
        """Bits that differ in the row's keys, when all blocks have met."""
        last = self.layout.pieces - 1
        mine = load(self._bits(minimum(self.thread, last)), self.layout.key)
        return self._over_block(mine)

    def _over_block(self, value: Value) -> Value:
        """Bits that any thread has."""
        sums = offset(self.shared, self.layout.sums)
        value = over_lanes("or", value, LANES)
        place = offset(sums, warp_id(self.thread) * 8)  # here: all lanes of a warp take part in it
        if_(lane_id(self.thread) == 0, lambda: store(value, place))
        sync_block()
        found = over_registers("or", [load(offset(sums, 8 * warp), self.layout.key) for warp in range(self.threads // 32)])
        sync_block()
        return found

    def _pass(self, shift: Value, source: Value, met: Value) -> list[Value]:
        """Sort the row by one byte of the keys, from one of the two arrays into the other."""
        layout = self.layout
        keys = offset(self.shared, layout.keys)
        places = offset(keys, layout.chunk * layout.word)
        to = 1 - source

        def digit(key: Value) -> Value:
            return cast((key >> shift) & (DIGITS - 1), "i32")

        def put(place: Value, values: Sequence[Value]) -> None:
            store(values[1], offset(keys, place * layout.word))
            store(values[2], offset(places, place * 4))

        def sort(begin: Value, count: Value, moves: bool) -> None:
            def entry(number: Value) -> list[Value]:
                key = load(self._key(source, begin + number), layout.key)
                return [digit(key), key, load(self._place(source, begin + number), "i32")]

            if moves:
                layout.sort.emit(self.shared, self.thread, count, entry, put)
            else:
                layout.sort.count(self.shared, self.thread, count, entry)

        once = layout.part == layout.chunk
        sort(self.begin, self.end - self.begin, once)

        def note() -> None:
            store(self._count(self.thread), self._in_table(self.number, self.thread))

        if_(self.thread < DIGITS, note)
        met = self._meet(met)
        self._bases()

        def move(count: Value) -> None:
            def entry(number: Value) -> None:
                key = load(offset(keys, number * layout.word), layout.key)
                value = digit(key) * 4
                base = load(offset(self.shared, value + layout.bases), "i32")
                start = load(offset(self.shared, value), "i32")
                target = base + (number - start)
                store(key, self._key(to, target))
                store(load(offset(places, number * 4), "i32"), self._place(to, target))

            for_(self.thread, count, self.threads, entry)

        if once:
            move(self.end - self.begin)
            return [to, self._meet(met)]

        def chunk(begin: Value) -> None:
            count = minimum(self.end - begin, layout.chunk)
            sort(begin, count, True)
            move(count)
            sync_block()

            def moved() -> None:
                base = offset(self.shared, self.thread * 4 + layout.bases)
                store(load(base, "i32") + self._count(self.thread), base)

            if_(self.thread < DIGITS, moved)
            sync_block()

        for_(self.begin, self.end, layout.chunk, chunk)
        return [to, self._meet(met)]

    def _count(self, digit: Value) -> Value:
        """Of a byte in what was sorted last."""
        start = offset(self.shared, digit * 4)
        return load(offset(start, 4), "i32") - load(start, "i32")

    def _bases(self) -> None:
        """Where the part's first entry of each byte goes, to shared memory."""
        layout = self.layout
        groups = layout.threads // DIGITS
        group, digit = self.thread // DIGITS, self.thread % DIGITS

        def some(first: Value, total: Value, before: Value) -> list[Value]:
            pieces = [first + number * groups for number in range(FLIGHT)]
            counts = [load(self._in_table(minimum(piece, layout.pieces - 1), digit), "i32") for piece in pieces]
            for piece, count in zip(pieces, counts, strict=True):
                total = total + select(piece < layout.pieces, count, 0)
                before = before + select(piece < self.number, count, 0)
            return [total, before]

        total, before = for_(group, layout.pieces, groups * FLIGHT, some, [i32(0), i32(0)])
        sums = offset(self.shared, layout.sums)

        def note() -> None:
            store(total, offset(sums, self.thread * 4))
            store(before, offset(sums, (self.thread + layout.threads) * 4))

        if_(self.thread < layout.threads, note)
        sync_block()

        def added(start: int) -> Value:
            parts = [load(offset(sums, (digit + (start + number * DIGITS)) * 4), "i32") for number in range(groups)]
            return over_registers("add", parts)

        total, before = added(0), added(layout.threads)
        sync_block()
        smaller, _ = prefix_sums(total, self.thread, sums, DIGITS)
        if_(self.thread < DIGITS, lambda: store(smaller + before, offset(self.shared, self.thread * 4 + layout.bases)))
        sync_block()

    def _write(self, source: Value) -> None:
        """What the part of the row is in order."""
        length = self.layout.length

        def some(start: Value) -> None:
            if length % HELD:
                at = [minimum(start + number, length - 1) for number in range(HELD)]
                places = [load(self._place(source, element), "i32") for element in at]
            else:
                places = load_elements(self._place(source, start), "i32", HELD, align=16)
            self.rows.write(self.where, start, places)

        for_(self.begin + self.thread * HELD, self.end, self.threads * HELD, some)
