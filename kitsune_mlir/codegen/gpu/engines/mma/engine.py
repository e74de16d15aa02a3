"""The `mma` engine: products on Hopper's tensor cores, with everything element-wise around them done in registers.

One block has a multiprocessor to itself, and its warpgroups have roles. One produces: a thread of it keeps a ring of stages in
shared memory full of operands by TMA (`mma.producer_tma`; where TMA cannot read them, some warps copy, `mma.producer_copy`),
another thread stores finished tiles and posts (`mma.store_warp`). Two consume (`mma.mainloop`): they share a tile of up to 128
x 256, run their accumulators through the task's element-wise steps and hand them over (`mma.epilogue`). Where there are too few
tiles for all multiprocessors, several blocks share each (`contraction.split_k`). In a kernel of its own, blocks of a cluster
load what their tiles have in common once (`mma.multicast`). Products of one A, such as SwiGLU's gate and
up, share a tile.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import ClassVar

from kitsune_mlir.codegen.gpu.contraction.split_k import Pieces
from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_, warp_id
from kitsune_mlir.codegen.gpu.emit.inline_ptx import pinned
from kitsune_mlir.codegen.gpu.emit.value import Value, i32, select
from kitsune_mlir.codegen.gpu.engines.mma import tiles
from kitsune_mlir.codegen.gpu.engines.mma.epilogue import Epilogue
from kitsune_mlir.codegen.gpu.engines.mma.mainloop import Stages
from kitsune_mlir.codegen.gpu.engines.mma.plan import STORING_THREAD, MmaPlan, make_plan
from kitsune_mlir.codegen.gpu.engines.mma.producer_copy import CopyProducer
from kitsune_mlir.codegen.gpu.engines.mma.producer_tf32x3 import SmallPartProducer
from kitsune_mlir.codegen.gpu.engines.mma.producer_tma import Loader
from kitsune_mlir.codegen.gpu.engines.mma.rasterize import ordered
from kitsune_mlir.codegen.gpu.engines.mma.store_warp import Storer, StoreRing
from kitsune_mlir.codegen.gpu.engines.mma.task_fusion import join_plans
from kitsune_mlir.codegen.gpu.interface.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.interface.engine import Engine
from kitsune_mlir.codegen.gpu.interface.offer import Candidate, Offer
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions, Plan
from kitsune_mlir.codegen.gpu.interface.traits import Traits
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Slot, sync_cluster
from kitsune_mlir.codegen.gpu.sm90.warp_specialize import specialize
from kitsune_mlir.dialects.tile_records import TaskView
from kitsune_mlir.machine.rates import ENGINES
from kitsune_mlir.machine.target import Target

__all__ = ["MmaEngine"]

PRODUCER_REGISTERS = 40
COPIER_REGISTERS = 56
TURNER_REGISTERS = 72
"""Of threads that hold a row of a block that they turn."""


class MmaEngine(Engine):
    """See the module's docstring."""

    name: ClassVar[str] = "mma"
    traits: ClassVar[Traits] = Traits(
        ENGINES["mma"],
        keeps_order=True,
        loads_ahead=True,
        weights_ahead="successor",
        one_block=True,
        concurrent=True,
        spreads_sums=True,
        f32_products=3,
        ends_early=True,
        operand_sums=True,
    )

    def offer(self, candidate: Candidate, machine: Target, options: KernelOptions) -> Offer | Decline:
        return tiles.offer(self.name, candidate, machine)

    def make_plan(self, task: TaskView, options: KernelOptions) -> Plan:
        plan = make_plan(self.name, task, options)
        mma: MmaPlan = plan.private
        return dataclasses.replace(plan, dependent=mma.boxes is not None and not (mma.mixed or mma.exact or mma.split))

    def join(self, plans: Sequence[Plan], options: KernelOptions) -> Sequence[Plan] | None:
        return join_plans(plans, options)

    def emit(self, plan: Plan, task: TaskContext) -> None:
        self.emit_fused([plan], [task])

    def emit_fused(self, plans: Sequence[Plan], tasks: Sequence[TaskContext]) -> None:
        works = [_Work(plan.private, task) for plan, task in zip(plans, tasks, strict=True)]
        mma, thread = works[0].plan, tasks[0].thread

        def load(share: slice) -> None:
            slot = works[0].stages.ring.producer_start()
            for work in works:
                operands = tuple(range(1 + work.plan.geometry.products))
                slot = Loader(work.plan, work.task, work.stages, operands[share]).run(slot)

        def store() -> None:
            state = works[0].storer.start()
            for work in works:
                state = work.storer.run(state)

        def produce() -> None:
            if mma.boxes is not None:
                shares = (slice(0, 1), slice(1, None)) if mma.loaders == 2 else (slice(None),)
                for number, share in enumerate(shares):
                    if_(warp_id(thread) == number, functools.partial(load, share))
            if mma.boxes is None or mma.mixed:
                warp = warp_id(thread) - mma.first_copier // 32
                if_(warp.below(mma.copiers // 32), CopyProducer(mma, tasks[0], works[0].stages).run)
            if mma.exact:
                first, count = mma.small_part_threads
                warp = warp_id(thread)
                if_(
                    (warp >= first // 32) & (warp < (first + count) // 32),
                    SmallPartProducer(mma, tasks[0], works[0].stages).run,
                )
            if works[0].storer.needed:
                if_(thread == STORING_THREAD, store)

        def consume(group: Value) -> None:
            state: list[Value] | None = None
            for work in works:
                state = _consume(work, group, state)

        registers = PRODUCER_REGISTERS if mma.boxes and not (mma.exact or mma.mixed) else COPIER_REGISTERS
        registers = TURNER_REGISTERS if mma.a.turned or mma.b.turned else registers
        if mma.multicast is not None:
            sync_cluster()  # before that, another block's barriers may not be there
        specialize(tasks[0], produce, consume, registers)
        if mma.multicast is not None:
            sync_cluster()  # others may still arrive on its barriers


@dataclasses.dataclass(frozen=True)
class _Work:
    """A task and what its roles share."""

    plan: MmaPlan
    task: TaskContext

    @functools.cached_property
    def stages(self) -> Stages:
        return Stages(self.plan, self.task)

    @functools.cached_property
    def storer(self) -> Storer:
        return Storer(self.plan, self.task)


def _add_up(
    mma: MmaPlan, tile: TileContext, pieces: Pieces, piece: Value, group: Value, accumulators: list[Value], slot: Slot
) -> Slot:
    """Hand over a piece's accumulators, and add up and store the block's part of the tile when all pieces are there."""
    assert mma.split is not None
    count, width, parts, every = mma.share // 2, mma.geometry.width // 2, mma.split.pieces, mma.geometry.n // 2
    runs = [number * width for number in range(mma.geometry.products)]

    def owner(register: int) -> int:
        return register % width // count % parts if register < every else parts - 1

    pieces.hand_over(tile, piece, group, accumulators, owner)
    # Only the registers of the block's own shares are kept: the others' are needed for partial results.
    shares = [[accumulators[run + first + at] for run in runs for at in range(count)] for first in range(0, width, count)]
    kept = [pinned(_pick(shares[first : first + parts], piece)) for first in range(0, len(shares), parts)]
    pieces.meet(tile, group)

    def share(number: Value, *slot: Value) -> list[Value]:
        own = _pick(kept, (number - piece) // parts)
        sums = pieces.sums(tile, piece, group, number * count, runs, own)
        return Epilogue(mma, tile, group, number).store(sums, Slot(*slot)).values

    slot = Slot(*for_(piece, mma.shares, parts, share, slot.values))
    if mma.pattern.operand_sum is not None:

        def add_sums() -> None:
            Epilogue(mma, tile, group).store_sums(pieces.sums(tile, piece, group, i32(every), [0], accumulators[every:]))

        if_(piece == parts - 1, add_sums)
    pieces.done(group)
    return slot


def _pick(choices: Sequence[list[Value]], number: Value) -> list[Value]:
    """The list of this number; any of them if there are fewer."""
    found = choices[0]
    for place, choice in enumerate(choices[1:], 1):
        mine = number == place
        found = [select(mine, new, old) for new, old in zip(choice, found, strict=True)]
    return found


def _consume(work: _Work, group: Value, state: list[Value] | None) -> list[Value]:
    """All the block's tiles, or pieces of tiles, by one of the two consumers.

    `state` is where it is in the rings of stages, of slices and of announcements, None at their beginning; returned is where it
    is afterwards.
    """
    mma, task, stages = work.plan, work.task, work.stages
    pieces, handover = Pieces(mma, task), StoreRing(mma, task)
    stages.prepare(group)
    staged, announced = handover.ring(0), handover.announcements()

    def finish(epilogue: Epilogue, piece: Value | None, accumulators: list[Value], *state: Value) -> list[Value]:
        """Store a tile, or the block's part of one of which it had a `piece`; `state`: where the consumer is in the rings of
        slices and of announcements."""
        slot, told = Slot(*state[:2]), Slot(*state[2:])
        if piece is None:
            slot = epilogue.store(accumulators[: mma.geometry.n // 2], slot)
            epilogue.store_sums(accumulators[mma.geometry.n // 2 :])
        else:
            slot = _add_up(mma, epilogue.tile, pieces, piece, group, accumulators, slot)
        epilogue.announce(told)
        return [*slot.values, *announced.next(told).values]

    def consume(tile: TileContext, piece: Value, *state: Value) -> list[Value]:
        tile = ordered(tile)
        tile.resolve()
        begin, end = pieces.chunks(piece, mma.sum.chunks)
        epilogue = Epilogue(mma, tile, group)
        meanwhile = epilogue.preload if mma.split is None else lambda: None
        accumulators, at = stages.product(group, Slot(*state[:2]), end - begin, meanwhile)
        rest = list(state[2:])

        def mine() -> list[Value]:
            if mma.split is None:
                return finish(epilogue, None, accumulators, *rest)
            if not mma.split.whole:
                return finish(epilogue, piece, accumulators, *rest)
            whole, part = (functools.partial(finish, epilogue, one, accumulators, *rest) for one in (None, piece))
            return if_(pieces.alone(piece), whole, part, ["i32"] * len(rest))

        rest = mine() if mma.geometry.groups == 2 else if_(group == 0, mine, lambda: rest, ["i32"] * len(rest))
        return [*at.values, *rest]

    start = [*stages.ring.consumer_start().values, *staged.producer_start().values, *announced.producer_start().values]
    return task.for_each_piece(consume, start if state is None else state)
