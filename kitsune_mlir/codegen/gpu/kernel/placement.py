"""Which blocks run which task: every block runs tiles of every task (`AllBlocks`). Spatial programs have a placement of
their own (`kernel.spatial.shares`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from kitsune_mlir.codegen.gpu.emit.control_flow import sm_count, sm_id, uniform
from kitsune_mlir.codegen.gpu.emit.smem import SHARED_LIMIT
from kitsune_mlir.codegen.gpu.emit.value import Value, select
from kitsune_mlir.codegen.gpu.engines.registry import traits_of
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions, Plan
from kitsune_mlir.codegen.gpu.kernel.concurrent_gemms import options_of
from kitsune_mlir.codegen.gpu.kernel.task_equality import equal_tasks
from kitsune_mlir.dialects.tile_reader import ProgramView

__all__ = ["AllBlocks", "Range", "advance", "by_multiprocessor"]


@dataclasses.dataclass(frozen=True)
class Range:
    """The blocks that run a task, at run time.

    Attributes:
        first: the calling block's number among them, i32.
        count: how many there are, i32.
        mine: whether (i1) the calling block is one; None: all are.
    """

    first: Value
    count: Value
    mine: Value | None


class AllBlocks:
    """Every block runs tiles of every task.

    Args:
        share: whether tasks that are alike share a body however few they are.

    Attributes:
        everywhere: so it is.
        workers: multiprocessors that the program was dealt out to; 0 if it was not.
        least_blocks: how many blocks must run at the same time for that, and for what.
        least_shared: bytes of shared memory that a block has at least.
    """

    everywhere: bool = True
    workers: int = 0
    least_blocks: tuple[int, str] = (1, "a launch")
    least_shared: int = 0

    def __init__(self, share: bool = False):
        self.share = share

    def group(self, task: int) -> Hashable:
        """Equal for tasks that take turns on the same blocks."""
        return 0

    def options_of(self, program: ProgramView, options: KernelOptions) -> list[KernelOptions]:
        """What each task is planned for."""
        return options_of(program.tasks, options)

    def equal_tasks(self, program: ProgramView) -> list[int] | None:
        """For each task the number of the first one whose code can do it; None where each has code of its own."""
        return equal_tasks(program, self.share)

    def numbered(self, plans: Sequence[Plan], slots: int, workers: int) -> bool:
        """Whether blocks have the numbers of their multiprocessors (`by_multiprocessor`), one block on each.

        So tasks of fewer tiles than multiprocessors are spread over all parts of the machine, as a kernel of its own would be:
        the hardware gives neighbouring numbers to one part, whose way to L2 the blocks share. Where products fill the machine
        that is an advantage: neighbouring tiles read the same operands (a block of attention of 512 tokens takes 127 us, and
        144 with the numbers of multiprocessors, on an H200).

        Args:
            slots: of semaphores.
            workers: multiprocessors.
        """
        alone = max(plan.shared_bytes for plan in plans) > SHARED_LIMIT // 2
        return alone and slots > 0 and not any(traits_of(plan.engine).one_block and 2 * plan.pieces > workers for plan in plans)

    def ranges(self, number: Value, blocks: Value) -> Mapping[Any, Range]:
        """The blocks of each group of tasks, for block `number` of `blocks`."""
        return {0: Range(number, blocks, None)}


def by_multiprocessor(block: Value, blocks: Value) -> Value:
    """A block's number by where it runs: those of one half run beside those of the other.

    Number n and number n + blocks / 2 are on the two multiprocessors of one TPC, between which data moves a third faster
    (`%smid` counts so). There must be one block on each multiprocessor: the caller sees to it that two do not fit one. On other
    numbers of multiprocessors than blocks, and where ids have gaps (`%nsmid`), it is the block's own number.
    """
    place = uniform(sm_id())
    half = blocks // 2
    paired = (place & 1) * half + place // 2
    return select((sm_count() == blocks) & (blocks % 2 == 0), paired, block)


def advance(first: Value, tiles: Value | int, blocks: Value) -> Value:
    """The block's first tile of a task that `tiles` come before: they go round the blocks without a break between tasks."""
    if isinstance(tiles, int) and tiles == 0:
        return first
    rest = first - tiles
    # first is in [0, blocks): bring first - tiles back there, towards the next multiple.
    lifted = rest.remainder_signed(blocks)
    return select(lifted < 0, lifted + blocks, lifted)
