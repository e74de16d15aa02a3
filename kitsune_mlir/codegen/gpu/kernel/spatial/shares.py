"""Which blocks run which task of a spatial program: those of the task's share of the multiprocessors.

In a spatial program (`kitsune.mode = "spatial"`) a task says how many multiprocessors are its own (`workers`), and the first of
them (`first`; else tasks follow each other). Tasks with the same share take turns on it. A kernel runs on any number of
blocks: shares grow and shrink with it, and where there are fewer blocks than shares every block runs every task. Whatever
the shares, a block runs its tiles in the order of the program; so as long as every wait is for an earlier tile, the block that
has the first unfinished tile can always run. Programs with rings wait for later tiles too: they need the shares apart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from kitsune_mlir.codegen.gpu.emit.smem import SHARED_LIMIT
from kitsune_mlir.codegen.gpu.emit.value import Value, i32, select
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions, Plan
from kitsune_mlir.codegen.gpu.kernel.placement import AllBlocks, Range
from kitsune_mlir.dialects import tile_reader
from kitsune_mlir.dialects.tile_reader import ProgramView
from kitsune_mlir.dialects.tile_records import Share
from kitsune_mlir.errors import CompileError

__all__ = ["Share", "Shares", "ranges", "shares_of"]


class Shares(AllBlocks):
    """Each task runs on the blocks of its share.

    Args:
        shares: one a task.
        rings: whether tasks hand data to each other through rings. Partners are then told by their multiprocessors: there must
            not be two blocks on one.
    """

    everywhere = False

    def __init__(self, shares: Sequence[Share], rings: bool):
        self.shares, self.rings = shares, rings
        self.workers = sum(share.workers for share in set(shares))
        if rings:
            self.least_blocks = len(set(shares)), "the stages at the ends of its rings"
            self.least_shared = SHARED_LIMIT // 2

    @classmethod
    def of(cls, program: ProgramView) -> Shares | None:
        """The placement of a spatial program; None for any other."""
        shares = shares_of(program)
        return None if shares is None else cls(shares, any(task.uses_ring for task in program.tasks))

    def group(self, task: int) -> Share:
        return self.shares[task]

    def options_of(self, program: ProgramView, options: KernelOptions) -> list[KernelOptions]:
        return [dataclasses.replace(options, workers=share.workers) for share in self.shares]

    def equal_tasks(self, program: ProgramView) -> None:
        return None

    def numbered(self, plans: Sequence[Plan], slots: int, workers: int) -> bool:
        return self.rings

    def ranges(self, number: Value, blocks: Value) -> Mapping[Any, Range]:
        return ranges(self.shares, number, blocks)


def shares_of(program: ProgramView) -> list[Share] | None:
    """The share of each task of a spatial program; None for any other.

    Raises:
        CompileError: a task has no workers, or shares overlap without being the same.
    """
    if program.mode != "spatial":
        return None
    shares: list[Share] = []
    for task, share in zip(program.tasks, tile_reader.shares_of(program.task_ops), strict=True):
        if share is None:
            raise CompileError(f"task '{task.name}' of spatial program '{program.name}' has no 'workers'")
        shares.append(share)
    distinct = sorted(set(shares))
    for before, after in zip(distinct, distinct[1:], strict=False):
        if before.first + before.workers > after.first:
            raise CompileError(f"spatial program '{program.name}': {before} and {after} overlap")
    return shares


def ranges(shares: Sequence[Share], number: Value, blocks: Value) -> dict[Share, Range]:
    """The blocks of each share for the block with this number.

    With as many blocks as planned, or a multiple, every share has its part exactly. With fewer, every share keeps one and the
    others are dealt out in proportion; with fewer than shares, each share has all blocks.
    """
    distinct = sorted(set(shares))
    total, count = sum(share.workers for share in distinct), len(distinct)
    enough, too_few = blocks >= total, blocks < count

    def begin(index: int) -> Value:
        before = sum(share.workers for share in distinct[:index])
        if index in (0, count):
            return i32(0) if index == 0 else blocks
        shrunk = (blocks - count) * (before - index) // max(1, total - count) + index
        return select(enough, blocks * before // total, shrunk)

    found = []
    for index in range(count):
        first, last = begin(index), begin(index + 1)
        first, last = select(too_few, i32(0), first), select(too_few, blocks, last)
        found.append((first, last - first, (number >= first) & (number < last)))
    return {share: Range(number - first, *more) for share, (first, *more) in zip(distinct, found, strict=True)}
