"""Warps of the producer of exact f32 products (`tf32x3`) that compute the rests of a stage when it is full.

An operand whose rows run across the sum is turned by the same threads, while it is in their registers anyway.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from kitsune_mlir.codegen.gpu.contraction.split_k import Pieces
from kitsune_mlir.codegen.gpu.contraction.tf32x3 import BLOCK_BYTES, turn_parts, write_parts
from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_, sync_warp, warp_id
from kitsune_mlir.codegen.gpu.emit.memory import offset
from kitsune_mlir.codegen.gpu.emit.value import Value
from kitsune_mlir.codegen.gpu.engines.mma.mainloop import Stages
from kitsune_mlir.codegen.gpu.engines.mma.plan import MmaPlan
from kitsune_mlir.codegen.gpu.interface.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Slot, fence_async_shared

__all__ = ["SmallPartProducer"]

TURNING = 2
"""Times as many instructions that a block takes which is turned, too."""

_Block = tuple[int, int, bool]
"""Of a stage: where it begins, its bytes, and whether it is turned."""


@dataclasses.dataclass(frozen=True)
class SmallPartProducer:
    """Emits the role; `plan.exact` is set."""

    plan: MmaPlan
    task: TaskContext
    stages: Stages

    def run(self) -> None:
        """All tiles of the block; the plan's `small_part_threads`."""
        slot = self.stages.ring.consumer_start()
        self.task.for_each_piece(self._piece, slot.values)

    def _piece(self, tile: TileContext, piece: Value, stage: Value, parity: Value) -> list[Value]:
        begin, end = Pieces(self.plan, self.task).chunks(piece, self.plan.sum.chunks)

        def chunk(_: Value, stage: Value, parity: Value) -> list[Value]:
            slot = Slot(stage, parity)
            self.stages.ring.full(stage).wait(parity)
            self._halve(self.stages.pointer(stage))
            fence_async_shared()
            sync_warp()
            if_(self.task.thread % 32 == 0, self.stages.small_parts(stage).arrive)
            return self.stages.ring.next(slot).values

        return for_(begin, end, 1, chunk, [stage, parity])

    def _halve(self, start: Value) -> None:
        plan, (first, count) = self.plan, self.plan.small_part_threads
        thread = self.task.thread - first
        if not (plan.a.turned or plan.b.turned):
            write_parts(start, plan.operand_bytes, thread, count)
            return
        lane, warp = thread % 32, warp_id(thread)

        def work(blocks: Sequence[_Block]) -> None:
            for place, bytes, turned in blocks:
                if turned:
                    turn_parts(offset(start, place), lane, plan.operand_bytes)
                else:
                    write_parts(offset(start, place), bytes, lane, 32, plan.operand_bytes)

        for number, blocks in enumerate(self._shares(count // 32)):
            if_(warp == number, functools.partial(work, blocks))

    def _shares(self, warps: int) -> list[list[_Block]]:
        """The blocks of a stage, dealt out to warps: the longest first, each to the warp that has the least to do."""
        plan = self.plan
        operands = (plan.a, 0, plan.a_tile.bytes), (plan.b, plan.a_tile.bytes, plan.b_tile.bytes)
        blocks = [
            (start + at, min(BLOCK_BYTES, bytes - at), operand.turned)
            for operand, start, bytes in operands
            for at in range(0, bytes, BLOCK_BYTES)
        ]
        shares: list[list[_Block]] = [[] for _ in range(warps)]
        for block in sorted(blocks, key=_cost, reverse=True):
            min(shares, key=lambda share: sum(map(_cost, share))).append(block)
        return shares


def _cost(block: _Block) -> int:
    _, bytes, turned = block
    return bytes * (TURNING if turned else 1)
