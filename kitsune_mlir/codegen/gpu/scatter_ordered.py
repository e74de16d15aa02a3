"""The `ordered` engine: rows added at indices in the order of the rows, so that results are the same bits on every run.

A tile is some rows of the result. Its block looks through all indices for rows that are added to the tile, in rounds:

    scan    each warp reads a part of the indices and keeps a list of the rows that belong here, in their order
    link    one thread for each row of the tile walks the lists and links those that are added to its row
    sum     a few lanes for each row of the tile follow its links, several rows in flight, and add them up one by one

A round ends where a list is full. Lists behind one whose warp has not finished its part are kept for the next round, so no
row is added before an earlier one. 16-bit floats are added in f32 and rounded once a round. Every block reads all indices,
which come from L2: that needs no pass over them before.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import ClassVar

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.builder import ballot, count_bits, for_, if_, lane_id, sync_block, warp_id, while_
from kitsune_mlir.codegen.gpu.context import TileContext
from kitsune_mlir.codegen.gpu.elements import element_bytes, load_elements, store_elements
from kitsune_mlir.codegen.gpu.engine import Decline, Engine, Limits, Plan
from kitsune_mlir.codegen.gpu.memory import load, offset, store
from kitsune_mlir.codegen.gpu.mma_window import BASE_ALIGN
from kitsune_mlir.codegen.gpu.tasks import Buffer, Load, TaskView
from kitsune_mlir.codegen.gpu.value import Value, cast, constant, i1, i32, i64, minimum, select, unpack

__all__ = ["OrderedEngine"]

THREADS = 256
WARPS = THREADS // 32
SLOTS = 512  # of a warp's list
LOADS = 8  # loads of indices in flight, a thread
SOURCES = 4  # rows in flight that are added to one row
SUMS = {"bf16": "f32", "f16": "f32", "f32": "f32", "f64": "f64", "i32": "i32", "i64": "i64"}
"""Types of rows that are added, and what they are added in."""


@dataclasses.dataclass(frozen=True)
class _Sum:
    """A `kitsune.ordered_add`.

    Attributes:
        updates, indices: all rows that are added, and where to.
        start: what they are added to: rows in memory, or a number.
        result: where sums are stored; rows [tile * rows, tile * rows + rows) are a tile's.
        rows: of a tile.
        columns: elements of a row.
        width: elements of one access to a row.
        together: indices of one access.
    """

    updates: Load
    indices: Load
    start: Load | float
    result: Buffer
    rows: int
    columns: int
    width: int
    together: int

    @property
    def state(self) -> int:
        """Bytes before the lists' lengths, each followed by whether its warp has finished. Lists are sources, rows, links."""
        return 3 * 4 * WARPS * SLOTS

    @property
    def heads(self) -> int:
        """Bytes before the heads of the links of the tile's rows."""
        return self.state + 8 * WARPS

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return self.heads + 4 * self.rows


class OrderedEngine(Engine):
    """See the module's docstring."""

    name: ClassVar[str] = "ordered"

    def plan(self, task: TaskView, limits: Limits) -> Plan | Decline:
        found = _read(task)
        if isinstance(found, str):
            return Decline(self.name, found)
        shared = found.shared_bytes
        if shared > limits.shared_bytes:
            return Decline(self.name, f"{found.rows} rows of a tile need {shared} bytes of shared memory")
        parameters = {"rows": found.rows, "width": found.width, "indices": found.together}
        return Plan(self.name, task, shared_bytes=shared, threads=THREADS, registers=96, parameters=parameters, private=found)

    def emit_tile(self, plan: Plan, tile: TileContext) -> None:
        tile.resolve()
        tile.wait()
        _Emitter(plan.private, tile).emit()
        tile.finish()


def _read(task: TaskView) -> _Sum | str:
    """The ordered sum that a task consists of; a reason where it is none that this engine does."""
    work = [op for op in task.work() if op.name not in ("tensor.empty", "linalg.fill")]
    if len(work) != 1 or work[0].name != "kitsune.ordered_add" or len(task.stores) != 1 or len(task.grid) != 1:
        return "the task is no ordered sum alone"
    op, store_ = work[0], task.stores[0]
    updates, indices = (task.load_of(value) for value in list(op.operands)[1:3])
    if updates is None or indices is None or store_.tensor != op.results[0]:
        return "the rows that are added are computed in the task"
    start = _start(task, op.operands[0])
    if start is None:
        return "what is added to is computed in the task"
    dtype, index = str(store_.buffer.element), element_bytes(str(indices.buffer.element))
    columns = math.prod(store_.sizes[1:])
    whole = (updates, indices, *([start] if isinstance(start, Load) else []), store_)
    if dtype not in SUMS or any(part.sizes[1:] != part.buffer.shape[1:] for part in whole):
        return f"parts of rows, or rows of {dtype}, are added"
    buffers = [part.buffer.offset for part in whole if part is not indices]
    align = math.gcd(16, BASE_ALIGN, columns * element_bytes(dtype), *buffers)
    count = math.prod(indices.sizes)
    together = math.gcd(16, BASE_ALIGN, count * index, indices.buffer.offset) // index
    width = max(1, align // element_bytes(dtype))
    return _Sum(updates, indices, start, store_.buffer, store_.sizes[0], columns, width, max(1, together))


def _start(task: TaskView, value: ir.Value) -> Load | float | None:
    """What a sum starts from: rows in memory, or a number; None for anything else."""
    if (found := task.load_of(value)) is not None:
        return found
    op = value.owner
    if isinstance(op, ir.Block) or op.name != "linalg.fill":
        return None
    maker = op.operands[0].owner
    if isinstance(maker, ir.Block) or maker.name != "arith.constant":
        return None
    attribute = maker.attributes["value"]
    return ir.FloatAttr(attribute).value if isinstance(attribute, ir.FloatAttr) else ir.IntegerAttr(attribute).value


class _Emitter:
    """Emits one tile."""

    def __init__(self, sum_: _Sum, tile: TileContext):
        self.sum, self.tile = sum_, tile
        self.thread = tile.task.thread
        self.lane, self.warp = lane_id(self.thread), warp_id(self.thread)
        self.shared = tile.task.shared
        self.dtype = str(sum_.result.element)
        self.row_bytes = sum_.columns * element_bytes(self.dtype)
        self.first = tile.coordinates[0] * sum_.rows
        self.rows = minimum(i32(sum_.result.shape[0]) - self.first, sum_.rows)
        self.count = math.prod(sum_.indices.sizes)
        group = 32 * sum_.together
        # Parts end where the 32 lanes' accesses do, so that only the last one's last is not whole.
        self.part = -(-self.count // (WARPS * group)) * group

    def emit(self) -> None:
        """All rounds."""
        start = minimum(self.warp * self.part, self.count)
        self.end = minimum(start + self.part, self.count)

        def round_(cursor: Value, kept: Value, first: Value, _: Value) -> list[Value]:
            cursor, kept = if_(
                self.thread < THREADS, lambda: self._scan(cursor, kept), lambda: [cursor, kept], types=["i32", "i32"]
            )
            sync_block()
            lengths = [unpack(load(self._state(warp), "vector<2xi32>")) for warp in range(WARPS)]
            complete, usable, mine = i1(True), [], i1(False)
            for warp, (_, finished) in enumerate(lengths):
                usable.append(complete)
                mine = mine | (complete & (self.warp == warp))
                complete = complete & (finished != 0)
            counts = [select(use, length, 0) for use, (length, _) in zip(usable, lengths, strict=True)]
            for_(self.thread, self.rows, self.tile.task.threads, functools.partial(self._link, counts))
            sync_block()
            if_(self.thread < THREADS, lambda: self._add(first))
            sync_block()
            return [cursor, select(mine, 0, kept), i1(False), complete ^ True]

        while_([start, i32(0), i1(True), i1(True)], lambda *carried: carried[-1], round_)

    def _place(self, part: int, slot: Value | int) -> Value:
        """Where a list's source (part 0), row (1) or link (2) of a slot is; slots of all lists are numbered together."""
        return offset(self.shared, i32(slot) * 4 + 4 * part * WARPS * SLOTS)

    def _state(self, warp: Value | int) -> Value:
        return offset(self.shared, i32(warp) * 8 + self.sum.state)

    def _scan(self, cursor: Value, kept: Value) -> list[Value]:
        """Fill the warp's list from the index at `cursor` on; where it stopped, and the list's length."""
        together = self.sum.together
        dtype = str(self.sum.indices.buffer.element)
        size, group = element_bytes(dtype), 32 * together
        memory = self.tile.pointer(self.sum.indices.buffer)

        def step(cursor: Value, length: Value, room: Value) -> list[Value]:
            numbers, starts = [], []
            for number in range(LOADS):
                at = cursor + number * group + self.lane * together
                safe = minimum(at, self.count - together)
                numbers.append(load_elements(offset(memory, i64(safe) * size), dtype, together, align=together * size))
                starts.append(at)
            for at, found in zip(starts, numbers, strict=True):
                length, room, cursor = self._keep(at, found, length, room, cursor, group)
            return [cursor, length, room]

        cursor, length, _ = while_([cursor, kept, i1(True)], lambda cursor, _, room: room & (cursor < self.end), step)

        def note() -> None:
            store(length, self._state(self.warp))
            store(cast(cursor >= self.end, "i32", signed=False), offset(self._state(self.warp), 4))

        if_(self.lane == 0, note)
        # What reads lists takes four rows at once: no row behind the end.
        behind = length + self.lane
        if_((self.lane < 4) & (behind < SLOTS), lambda: store(i32(-1), self._place(1, self.warp * SLOTS + behind)))
        return [cursor, length]

    def _keep(self, at: Value, numbers: list[Value], length: Value, room: Value, cursor: Value, group: int):
        """Append the indices of one access of the warp that name rows of the tile, if there is room for all of them."""
        room = room & (length <= SLOTS - group)
        inside = (at < self.end) & room
        rows = [cast(number, "i64") - i64(self.first) for number in numbers]
        here = [row.below(i64(self.rows)) & inside for row in rows]
        votes = [ballot(each) for each in here]
        any_, before = votes[0], i32(0)
        for vote in votes[1:]:
            any_ = any_ | vote

        def append() -> list[Value]:
            lower = (i32(1) << self.lane) - 1
            slot, total = before + length, length
            for vote in votes:
                slot = slot + count_bits(vote & lower)
                total = total + count_bits(vote)
            for number, (row, each) in enumerate(zip(rows, here, strict=True)):
                place = slot + self.warp * SLOTS

                def put(place: Value = place, row: Value = row, source: Value = at + number) -> None:
                    store(source, self._place(0, place))
                    store(cast(row, "i32"), self._place(1, place))

                if_(each, put)
                slot = slot + cast(each, "i32", signed=False)
            return [total]

        (length,) = if_(any_ != 0, append, lambda: [length], types=["i32"])
        return length, room, select(room, cursor + group, cursor)

    def _link(self, counts: list[Value], row: Value) -> None:
        """Link the slots of all usable lists that are added to `row`, in their order."""
        head = previous = i32(-1)
        for warp, count in enumerate(counts):

            def four(at: Value, head: Value, previous: Value, first: int = warp * SLOTS) -> list[Value]:
                found = unpack(load(self._place(1, at + first), "vector<4xi32>"))
                for number, other in enumerate(found):
                    slot = at + (first + number)

                    def link(slot: Value = slot, head: Value = head, previous: Value = previous) -> list[Value]:
                        if_(previous >= 0, lambda: store(slot, self._place(2, previous)))
                        return [select(previous < 0, slot, head), slot]

                    head, previous = if_(
                        other == row, link, lambda head=head, previous=previous: [head, previous], types=["i32", "i32"]
                    )
                return [head, previous]

            head, previous = for_(0, count, 4, four, [head, previous])
        if_(previous >= 0, lambda: store(i32(-1), self._place(2, previous)))
        store(head, offset(self.shared, row * 4 + self.sum.heads))

    def _add(self, first: Value) -> None:
        """Add what is linked to each row of the tile to its start (in the `first` round) or to its sum so far."""
        vectors = self.sum.columns // self.sum.width
        lanes = min(32, 1 << (vectors - 1).bit_length())
        place = offset(self.tile.pointer(self.sum.result), i64(self.first) * self.row_bytes)

        def row(number: Value) -> None:
            head = load(offset(self.shared, number * 4 + self.sum.heads), "i32")

            def wanted(vector: Value) -> None:
                # A row without additions is only written at first.
                if_(first | (head >= 0), lambda: self._vector(first, place, number, head, vector))

            for_(self.thread % lanes, vectors, lanes, wanted)

        for_(self.thread // lanes, self.rows, THREADS // lanes, row)

    def _vector(self, first: Value, place: Value, row: Value, head: Value, vector: Value) -> None:
        width, dtype = self.sum.width, self.dtype
        bytes_ = width * element_bytes(dtype)
        register = SUMS[dtype]
        inside = i64(row) * self.row_bytes + i64(vector) * bytes_

        def read(pointer: Value) -> list[Value]:
            return load_elements(pointer, dtype, width, register, align=bytes_)

        if isinstance(self.sum.start, Load):
            old = offset(self.tile.pointer(self.sum.start.buffer), i64(self.first) * self.row_bytes)
            sums = if_(first, lambda: read(offset(old, inside)), lambda: read(offset(place, inside)), types=[register] * width)
        else:
            number = constant(self.sum.start, register)
            sums = if_(first, lambda: [number] * width, lambda: read(offset(place, inside)), types=[register] * width)
        memory = offset(self.tile.pointer(self.sum.updates.buffer), i64(vector) * bytes_)

        def step(slot: Value, *sums: Value) -> list[Value]:
            slots = [slot]
            for _ in range(SOURCES):
                last = slots[-1]
                slots.append(select(last < 0, last, load(self._place(2, select(last < 0, slot, last)), "i32")))
            *slots, following = slots
            rows = []
            for one in slots:
                source = load(self._place(0, select(one < 0, slot, one)), "i32")
                rows.append(read(offset(memory, i64(source) * self.row_bytes)))
            totals = list(sums)
            for one, values in zip(slots, rows, strict=True):
                totals = [select(one < 0, total, total + value) for total, value in zip(totals, values, strict=True)]
            return [following, *totals]

        _, *sums = while_([head, *sums], lambda slot, *_: slot >= 0, step)
        store_elements(sums, offset(place, inside), dtype, align=bytes_)
