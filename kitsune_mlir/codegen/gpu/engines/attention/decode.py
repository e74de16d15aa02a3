"""Tiles of few rows: each consumer warp multiplies 16 keys of a block with all rows, and has a softmax and sums of its own.

A warpgroup's instructions take 64 rows at a time, and a decoding step has four of them: then one block's scores, softmax and
sums after each other take longer than its keys take to come from memory (1.8 us for 64 keys, measured on an H200, where
they could come in 1.0). Here eight warps work side by side with `mma.sync`, whose 16 rows are all that there are. They join
their results through shared memory, as blocks do that share a tile (`attention.split_kv`), and store them straight.
"""

from __future__ import annotations

import functools

from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_, sync_warp
from kitsune_mlir.codegen.gpu.emit.convert import pack_values
from kitsune_mlir.codegen.gpu.emit.memory import offset, store
from kitsune_mlir.codegen.gpu.emit.value import Value, f32, i32, vector
from kitsune_mlir.codegen.gpu.engines.attention.kv_schedule import block_count
from kitsune_mlir.codegen.gpu.engines.attention.online_softmax import Scores, Softmax
from kitsune_mlir.codegen.gpu.engines.attention.plan import WARPS
from kitsune_mlir.codegen.gpu.engines.attention.producer import PipelineState
from kitsune_mlir.codegen.gpu.engines.attention.split_kv import Pieces, joined_at, piece_blocks, write_partial
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.codegen.gpu.sm90.ldmatrix import load_matrices
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Barrier, NamedBarrier, Slot, fence_async
from kitsune_mlir.codegen.gpu.sm90.mma_sync import multiply_add
from kitsune_mlir.codegen.gpu.sm90.warp_specialize import CONSUMERS
from kitsune_mlir.machine.shared_tile import SharedTile

__all__ = ["consume_few"]

KEYS = 16
"""Of a block, that a warp has."""
THREADS = 32 * WARPS * CONSUMERS
LEFT, JOINED = NamedBarrier(3, THREADS), NamedBarrier(4, THREADS)
"""All warps have left what they found; all have read it."""
HELD_WIDTH = 128
"""Elements of q's heads that a thread keeps in registers, as pairs; longer ones are read from shared memory again and again."""


def consume_few(pipeline: PipelineState, group: Value) -> None:
    """All tiles of a task, by a warp of consumer warpgroup `group` (i32, 0 or 1), which has every other block of keys."""
    ring = pipeline.ring(group)

    def tile(tile: TileContext, piece: Value, stage: Value, parity: Value, turn: Value) -> list[Value]:
        warp = _Warp(pipeline, group, pipeline.walk.tile(tile), piece, turn)
        return [*warp.run(Slot(stage, parity)).values, turn ^ 1]

    pipeline.task.for_each_piece(tile, [*ring.consumer_start().values, i32(0)])


class _Warp:
    """One tile, or piece of a tile, by one warp; `turn` is the parity of q's barriers."""

    def __init__(self, pipeline: PipelineState, group: Value, tile: TileContext, piece: Value, turn: Value):
        self.pipeline, self.group, self.tile, self.piece, self.turn = pipeline, group, tile, piece, turn
        self.plan = plan = pipeline.plan
        thread = pipeline.task.thread
        self.local, self.lane = thread & (32 * WARPS - 1), thread & 31
        self.number = self.local // 32
        self.scores = Scores(plan, tile, self.lane // 4, self.lane, self.number * KEYS)
        self.ring = pipeline.ring(group)
        self.dtype = plan.pattern.attention.dtype
        self.steps = -(-plan.pattern.width // 16)

    def run(self, slot: Slot) -> Slot:
        """One tile; the ring's next slot."""
        plan, pipeline = self.plan, self.pipeline
        low, high = piece_blocks(plan, self.piece, block_count(plan, self.tile))
        first = high - 1 - self.group
        pieces = Pieces(plan, pipeline.task, self.tile, self.local)
        if plan.pieces > 1:
            if_(self.group == 0, pieces.claim)
        pipeline.query_full.wait(self.turn)
        held = [self._query(step) for step in range(self.steps)] if plan.pattern.width <= HELD_WIDTH else []
        if held:
            self._arrive(pipeline.query_empty)
        sums = [f32(0.0)] * (plan.pattern.head // 2)
        nothing = [*slot.values, *[f32(float("-inf"))] * 2, *[f32(0.0)] * 2, *sums]

        def walk() -> list[Value]:
            return self._walk(slot, first, low, held)

        found = if_(first >= low, walk, lambda: nothing, [value.type for value in nothing])
        if not held:
            self._arrive(pipeline.query_empty)
        self._join(pieces, Softmax.of(found[2:6]), list(found[6:]))
        return Slot(found[0], found[1])

    # --- the blocks --------------------------------------------------------------------------------------------------

    def _walk(self, slot: Slot, first: Value, low: Value, held: list[list[Value]]) -> list[Value]:
        """All blocks from `first` down to `low`, every other one: the slot after them, the softmax and the sums.

        The scores of a block are multiplied beside the weighted sums of the one before, in the order of the ring.
        """
        raw, slot = self._score(slot, held)
        weights, softmax, _ = self.scores.weigh(self.scores.masked(raw, first), None, True)
        words = pack_values(weights, self.dtype)
        sums = [f32(0.0)] * (self.plan.pattern.head // 2)

        def block(index: Value, *carried: Value) -> list[Value]:
            before, words, sums = Softmax.of(carried[2:6]), list(carried[6:10]), list(carried[10:])
            raw, slot = self._score(Slot(carried[0], carried[1]), held)
            sums, slot = self._weighted(sums, words, slot)
            scores = self.scores.masked(raw, first - (index + 1) * CONSUMERS)
            weights, softmax, factors = self.scores.weigh(scores, before, True)
            assert factors is not None
            sums = [value * factors[register // 2 % 2] for register, value in enumerate(sums)]
            return [*slot.values, *softmax.values, *pack_values(weights, self.dtype), *sums]

        carried = [*slot.values, *softmax.values, *words, *sums]
        carried = for_(0, (first - low) // CONSUMERS, 1, block, carried)
        sums, slot = self._weighted(list(carried[10:]), carried[6:10], Slot(carried[0], carried[1]))
        return [*slot.values, *carried[2:6], *sums]

    def _query(self, step: int) -> list[Value]:
        """q's fragment of 16 elements of the heads: A of `mma.sync`."""
        return load_matrices(self._at(self.plan.query_tile, self.pipeline.query, self.lane % 16, step, self.lane // 16))

    def _score(self, slot: Slot, held: list[list[Value]]) -> tuple[list[Value], Slot]:
        """The products of all rows and the warp's keys of the ring's next block."""
        self.ring.full(slot.stage).wait(slot.parity)
        keys = self.pipeline.slot(self.group, slot.stage)
        row = self.number * KEYS + self.lane % 8 + self.lane // 16 * 8
        # Even and odd steps have sums of their own: half as many products wait for each other.
        chains = [[[f32(0.0)] * 4 for _ in range(KEYS // 8)] for _ in range(min(2, self.steps))]
        for step in range(self.steps):
            a = held[step] if held else self._query(step)
            b = load_matrices(self._at(self.plan.key_tile, keys, row, step, self.lane // 8 % 2))
            chain = chains[step % 2]
            for block in range(KEYS // 8):
                chain[block] = multiply_add(chain[block], a, b[2 * block : 2 * block + 2], self.dtype)
        self._release(slot)
        total = chains[0]
        for chain in chains[1:]:
            total = [[x + y for x, y in zip(*pair, strict=True)] for pair in zip(total, chain, strict=True)]
        return [value for block in total for value in block], self.ring.next(slot)

    def _weighted(self, sums: list[Value], words: list[Value], slot: Slot) -> tuple[list[Value], Slot]:
        """Add weights times the warp's values of the ring's next block."""
        self.ring.full(slot.stage).wait(slot.parity)
        values = self.pipeline.slot(self.group, slot.stage)
        row = self.number * KEYS + self.lane % 16
        sums = list(sums)
        for step in range(-(-self.plan.pattern.head // 16)):
            b = load_matrices(self._at(self.plan.value_tile, values, row, step, self.lane // 16), transposed=True)
            for half in range(2):
                first = 8 * step + 4 * half
                if first < len(sums):
                    sums[first : first + 4] = multiply_add(
                        sums[first : first + 4], words, b[2 * half : 2 * half + 2], self.dtype
                    )
        self._release(slot)
        return sums, self.ring.next(slot)

    def _at(self, tile: SharedTile, start: Value, row: Value, step: int, half: Value) -> Value:
        """Pointer to 8 elements of a row: of the 16 columns number `step`, the first or the second half (i32, 0 or 1)."""
        col = 16 * step % tile.panel_cols + half * 8
        return offset(offset(start, tile.offset(row, col)), 16 * step // tile.panel_cols * tile.panel_bytes)

    def _release(self, slot: Slot) -> None:
        """The warp has read the slot."""
        self._arrive(self.ring.empty(slot.stage))

    def _arrive(self, barrier: Barrier) -> None:
        sync_warp()
        if_(self.lane == 0, barrier.arrive)

    # --- results -----------------------------------------------------------------------------------------------------

    def _join(self, pieces: Pieces, softmax: Softmax, sums: list[Value]) -> None:
        """Join what all warps have found, and store and post it, or leave it for the tile's last piece."""
        plan, task = self.plan, self.pipeline.task
        base = offset(task.shared, plan.merge_at)
        mine = offset(base, (self.group * WARPS + self.number) * plan.partial_bytes)
        write_partial(plan, mine, self.lane // 4, self.lane, softmax, sums)
        LEFT.sync()
        sources = [offset(base, number * plan.partial_bytes) for number in range(WARPS * CONSUMERS)]
        rows, head = plan.pattern.row_count, plan.pattern.head
        target = pieces.pointer(self.piece) if plan.pieces > 1 else base

        def vector_at(number: Value) -> None:
            joined = joined_at(plan, self.scores, sources, number)
            if plan.pieces == 1:
                joined.store(self.tile)
                return
            store(vector(joined.values), offset(target, number * 16), 16)
            statistics = offset(target, joined.row * 8 + rows * head * 4)
            if_(joined.col == 0, lambda: store(vector([joined.top, joined.total]), statistics, 8))

        for_(self.group * (32 * WARPS) + self.local, rows * head // 4, THREADS, vector_at)
        if plan.pieces == 1 and task.view.posts and task.kernel.fences:
            fence_async()
        JOINED.sync()
        if plan.pieces > 1:
            if_(self.group == 0, functools.partial(self._hand_over, pieces))
        elif task.view.posts:
            if_((self.group == 0) & (self.local == 0), self.tile.post)

    def _hand_over(self, pieces: Pieces) -> None:
        pieces.announce(self.piece)
        if_(self.piece == self.plan.pieces - 1, lambda: pieces.join(self.scores))
