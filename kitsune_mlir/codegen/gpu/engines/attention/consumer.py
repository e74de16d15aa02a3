"""What a consumer warpgroup does: scores of a block on the tensor cores, softmax in registers, weighted sums of the values.

The products of a block's scores and of the values before it are started together; while the second still runs, the softmax
of the first is computed. The two warpgroups take turns at starting products, so that one computes softmax while the other
multiplies (Shah et al., FlashAttention-3, arXiv 2407.08608, section 3).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from kitsune_mlir.codegen.gpu.emit.approx_math import exp2
from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_
from kitsune_mlir.codegen.gpu.emit.convert import pack_values
from kitsune_mlir.codegen.gpu.emit.memory import load, offset, store
from kitsune_mlir.codegen.gpu.emit.value import Value, f32, i32, i64, maximum, minimum, select
from kitsune_mlir.codegen.gpu.engines.attention.kv_schedule import block_count
from kitsune_mlir.codegen.gpu.engines.attention.online_softmax import Scores, Softmax
from kitsune_mlir.codegen.gpu.engines.attention.plan import GROUP_ROWS
from kitsune_mlir.codegen.gpu.engines.attention.producer import PipelineState
from kitsune_mlir.codegen.gpu.engines.attention.split_kv import Pieces, piece_blocks
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.codegen.gpu.sm90 import wgmma
from kitsune_mlir.codegen.gpu.sm90.ldmatrix import stage_accumulator
from kitsune_mlir.codegen.gpu.sm90.mbarrier import NamedBarrier, Slot, fence_async_shared
from kitsune_mlir.machine.shared_tile import SharedTile

__all__ = ["consume_tiles", "stage_rows"]

TURN = 1  # named barriers 1 and 2: whose turn it is to start products
JOIN = 3  # named barrier of both consumers
MERGED = 4


@dataclasses.dataclass(frozen=True)
class State:
    """What a consumer carries from block to block: its place in the ring, softmax, weights of the last block, and sums.

    The weights are A of the next product as they are: an accumulator's layout and A's are the same (`sm90.wgmma`).
    """

    slot: Slot
    softmax: Softmax
    weights: list[Value]
    sums: list[Value]

    @property
    def values(self) -> list[Value]:
        return [*self.slot.values, *self.softmax.values, *self.weights, *self.sums]


def stage_rows(values: Sequence[Value], thread: Value, tile: SharedTile, place: Value, dtype: str) -> None:
    """Write a warpgroup's accumulator, 64 rows of `2 * len(values)` columns, into shared memory as a 16-bit `dtype`.

    Args:
        thread: index in the warpgroup.
        tile, place: the tile, and where its rows are.
    """
    columns = 2 * len(values)
    for col in range(0, columns // 16 * 16, 16):
        stage_accumulator(values[col // 2 : col // 2 + 8], thread, tile, place, col, dtype)
    if columns % 16:  # eight columns more: the padding beside them is not stored
        rest = values[-4:]
        stage_accumulator([*rest, *rest], thread, tile, place, columns // 16 * 16, dtype)


def consume_tiles(pipeline: PipelineState, group: Value) -> None:
    """All tiles of a task, by consumer warpgroup `group` (i32, 0 or 1)."""
    plan, task = pipeline.plan, pipeline.task
    ring = pipeline.ring(group if plan.split else 0)
    if not plan.split:
        if_(group == 1, NamedBarrier(TURN, 256).arrive)

    def tile(tile: TileContext, piece: Value, stage: Value, parity: Value, turn: Value, stored: Value) -> list[Value]:
        consumer = _Consumer(pipeline, group, pipeline.walk.tile(tile), piece, turn, stored)
        slot = consumer.run(Slot(stage, parity))
        stored = stored ^ 1 if plan.pieces == 1 else select(piece == plan.pieces - 1, stored ^ 1, stored)
        return [*slot.values, turn ^ 1, stored]

    task.for_each_piece(tile, [*ring.consumer_start().values, i32(0), i32(0)])
    if not plan.split:
        if_(group == 0, NamedBarrier(TURN, 256).sync)


class _Consumer:
    """One tile, or piece of a tile, by one consumer. `turn` and `stored` are the parities of q's and the result's barriers."""

    def __init__(self, pipeline: PipelineState, group: Value, tile: TileContext, piece: Value, turn: Value, stored: Value):
        self.pipeline, self.group, self.tile, self.piece = pipeline, group, tile, piece
        self.turn, self.stored = turn, stored
        self.plan = plan = pipeline.plan
        thread = pipeline.task.thread
        self.local = thread & 127
        self.lane = thread & 31
        self.first = i32(0) if plan.split else group * GROUP_ROWS
        self.row = self.first + (self.local // 32 * 16 + self.lane // 4)
        self.scores = Scores(plan, tile, self.row, self.lane)
        self.ring = pipeline.ring(group if plan.split else 0)
        self.dtype = plan.pattern.attention.dtype

    def run(self, slot: Slot) -> Slot:
        """One tile; the ring's next slot."""
        plan = self.plan
        low, high = piece_blocks(plan, self.piece, block_count(plan, self.tile))
        if not plan.split:
            state = self._walk(slot, high - 1, low)
            self._store(state)
            return state.slot
        first = high - 1 - self.group
        if plan.pieces > 1:
            if_(self.group == 0, Pieces(plan, self.pipeline.task, self.tile, self.local).claim)
        width = len(self._nothing().values)
        types = ["i32", "i32", *["f32"] * 4, *["i32"] * (plan.block // 4), *["f32"] * (plan.pattern.head // 2)]
        assert len(types) == width

        def some() -> list[Value]:
            return self._walk(slot, first, low).values

        def none() -> list[Value]:
            self.pipeline.query_full.wait(self.turn)
            self._arrive(self.pipeline.query_empty)
            return [*slot.values, *self._nothing().values[2:]]

        state = self._state(if_(first >= low, some, none, types))
        self._merge(state)
        return state.slot

    def _nothing(self) -> State:
        """The state of a consumer without any block."""
        zero, low = f32(0.0), f32(float("-inf"))
        plan = self.plan
        softmax = Softmax((low, low), (zero, zero))
        return State(Slot(i32(0), i32(0)), softmax, [i32(0)] * (plan.block // 4), [zero] * (plan.pattern.head // 2))

    def _state(self, values: list[Value]) -> State:
        count = self.plan.block // 4
        return State(
            Slot(values[0], values[1]), Softmax.of(values[2:6]), list(values[6 : 6 + count]), list(values[6 + count :])
        )

    # --- the blocks --------------------------------------------------------------------------------------------------

    def _walk(self, slot: Slot, first: Value, low: Value) -> State:
        """All blocks of this consumer from `first` down to `low`; sums are complete afterwards."""
        scores, plan = self.scores, self.plan
        self.pipeline.query_full.wait(self.turn)
        raw, slot = self._score(slot)
        raw = wgmma.wait(0, raw)
        self._release_before(slot)
        bare = not scores.everywhere and not scores.steps and plan.pattern.keys % plan.block == 0
        weights, softmax, _ = scores.weigh(raw if bare else scores.masked(raw, first), None, not bare)
        sums = [f32(0.0)] * (plan.pattern.head // 2)
        state = State(slot, softmax, pack_values(scores.kept(weights, first), self.dtype), sums)
        step = plan.rings
        count = (first - low) // step if step > 1 else first - low  # blocks after the first one

        def block(masked: bool):
            def body(index: Value, *values: Value) -> list[Value]:
                key = first - (index + 1) * step if step > 1 else first - 1 - index
                return self._block(self._state(list(values)), key, masked).values

            return body

        if scores.everywhere:
            state = self._state(for_(0, count, 1, block(True), state.values))
        else:
            whole = scores.unmasked_blocks(self.first)
            # Blocks first - step, first - 2 step, ... at or above `whole` are masked.
            ends = maximum(first - whole, 0)
            ends = minimum(ends // step if step > 1 else ends, count)
            state = self._state(for_(0, ends, 1, block(True), state.values))
            state = self._state(for_(ends, count, 1, block(False), state.values))
        self._arrive(self.pipeline.query_empty)
        slot = state.slot
        sums, slot = self._weighted(state.sums, state.weights, slot)
        sums = wgmma.wait(0, sums)
        self._release_before(slot)
        return State(slot, state.softmax, state.weights, sums)

    def _block(self, state: State, key: Value, masked: bool) -> State:
        self._turn()
        raw, slot = self._score(state.slot)
        sums, after = self._weighted(state.sums, state.weights, slot)
        self._pass_turn()
        raw = wgmma.wait(1, raw)
        self._release_before(slot)
        raw = self.scores.masked(raw, key) if masked else raw
        weights, softmax, factors = self.scores.weigh(raw, state.softmax, masked)
        assert factors is not None
        sums = wgmma.wait(0, sums)
        self._release_before(after)
        sums = [value * factors[register // 2 % 2] for register, value in enumerate(sums)]
        return State(after, softmax, pack_values(self.scores.kept(weights, key), self.dtype), sums)

    def _score(self, slot: Slot) -> tuple[list[Value], Slot]:
        """Start the product of q and the next block of keys."""
        plan = self.plan
        self.ring.full(slot.stage).wait(slot.parity)
        query = wgmma.SharedOperand(plan.query_tile, self.pipeline.query, row=self.first)
        keys = wgmma.SharedOperand(plan.key_tile, self._at(slot))
        steps = -(-plan.pattern.width // 16)
        return wgmma.multiply(None, query, keys, plan.block, self.dtype, steps), self.ring.next(slot)

    def _weighted(self, sums: list[Value], weights: list[Value], slot: Slot) -> tuple[list[Value], Slot]:
        """Start adding weights times the next block of values."""
        plan = self.plan
        self.ring.full(slot.stage).wait(slot.parity)
        values = wgmma.SharedOperand(plan.value_tile, self._at(slot), transposed=True)
        return wgmma.multiply(sums, weights, values, plan.pattern.head, self.dtype), self.ring.next(slot)

    def _at(self, slot: Slot) -> Value:
        return self.pipeline.slot(self.group if self.plan.split else 0, slot.stage)

    def _release_before(self, slot: Slot) -> None:
        """The slot before `slot` has been read."""
        slots = self.plan.slots
        before = select(slot.stage == 0, i32(slots - 1), slot.stage - 1)
        self._arrive(self.ring.empty(before))

    def _arrive(self, barrier) -> None:
        if_(self.local == 0, barrier.arrive)

    def _turn(self) -> None:
        if not self.plan.split:
            NamedBarrier(self.group + TURN, 256).sync()

    def _pass_turn(self) -> None:
        if not self.plan.split:
            NamedBarrier(TURN + 1 - self.group, 256).arrive()

    # --- results -----------------------------------------------------------------------------------------------------

    def _store(self, state: State, group: Value | int | None = None) -> None:
        """Leave the result in shared memory for the storing thread."""
        plan, pipeline = self.plan, self.pipeline
        totals, factors = [], []
        for part in state.softmax.total:
            totals.append(self.scores.total(part))
            factors.append(self.scores.inverse(totals[-1]))
        values = [value * factors[register // 2 % 2] for register, value in enumerate(state.sums)]

        def write(group: int) -> None:
            pipeline.result_empty[group].wait(self.stored ^ 1)
            stage_rows(values, self.local, plan.result_tile, offset(pipeline.result, group * GROUP_ROWS * 128), self.dtype)
            fence_async_shared()
            self._store_logarithms(state.softmax, totals)
            pipeline.result_full[group].arrive()

        if plan.split:
            write(0)
        elif len(plan.results) == 2:
            if_(self.group == 0, lambda: write(0), lambda: write(1))

    def _store_logarithms(self, softmax: Softmax, totals: Sequence[Value]) -> None:
        """Store the logarithms of the rows' sums of exponentials, where they are a result: a lane of each row's four."""
        window, pattern = self.plan.pattern.logarithm, self.plan.pattern
        if window is None:
            return
        start = window.start(self.tile)
        for half, total in enumerate(totals):
            place = start
            for number, index in enumerate(self.scores.rows[half]):
                place = offset(place, i64(index) * (window.stride(f"row{number}") * window.bytes))
            mine = ((self.lane & 3) == 0) & (self.row + 8 * half < pattern.row_count)
            value = self.scores.logarithm(softmax.top[half], total)
            if_(mine, functools.partial(store, value, place))

    def _merge(self, state: State) -> None:
        """Join the two consumers' parts of the same rows: the second leaves its own in shared memory, the first adds it."""
        pipeline, plan = self.pipeline, self.plan
        base = offset(offset(pipeline.task.shared, plan.merge_at), self.local * 4)
        values = [*state.softmax.values, *state.sums]

        def leave() -> None:
            for number, value in enumerate(values):
                store(value, offset(base, number * 512))
            NamedBarrier(JOIN, 256).arrive()
            NamedBarrier(MERGED, 256).sync()

        def join() -> None:
            NamedBarrier(JOIN, 256).sync()
            other = [load(offset(base, number * 512), "f32") for number in range(len(values))]
            mine = values
            if plan.uneven:  # who has the even blocks depends on how many there are
                even = (block_count(plan, self.tile) & 1) == 1
                pairs = list(zip(mine, other, strict=True))
                mine, other = [select(even, a, b) for a, b in pairs], [select(even, b, a) for a, b in pairs]
            softmax, sums = self._joined(mine, other)
            NamedBarrier(MERGED, 256).arrive()
            if plan.pieces == 1:
                self._store(State(state.slot, softmax, [], sums))
            else:
                self._hand_over(softmax, sums)

        if_(self.group == 0, join, leave)

    def _hand_over(self, softmax: Softmax, sums: list[Value]) -> None:
        """Leave a piece of a tile for the last one; that one joins them."""
        pipeline, plan = self.pipeline, self.plan
        pieces = Pieces(plan, pipeline.task, self.tile, self.local)
        pieces.leave(self.piece, softmax, sums)
        if_(self.piece == plan.pieces - 1, lambda: pieces.join(self.scores))

    def _joined(self, one: Sequence[Value], other: Sequence[Value]) -> tuple[Softmax, list[Value]]:
        """Two parts of the keys of the same rows as one; of each part what the softmax knows, then the weighted sums."""
        factor = self.scores.factor if self.scores.pure else 1.0
        tops, totals, mine, theirs = [], [], [], []
        a, b = Softmax.of(one), Softmax.of(other)
        for half in range(2):
            top = maximum(a.top[half], b.top[half])
            safe = select(top == float("-inf"), f32(0.0), top)
            mine.append(exp2((a.top[half] - safe) * factor))
            theirs.append(exp2((b.top[half] - safe) * factor))
            tops.append(top)
            totals.append(a.total[half] * mine[half] + b.total[half] * theirs[half])
        halves = [register // 2 % 2 for register in range(len(one) - 4)]
        joined = [a * mine[h] + b * theirs[h] for a, b, h in zip(one[4:], other[4:], halves, strict=True)]
        return Softmax((tops[0], tops[1]), (totals[0], totals[1])), joined
