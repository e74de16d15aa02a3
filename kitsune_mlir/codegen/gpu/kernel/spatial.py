"""Which blocks work on which task: all of them, or in a spatial program those of the task's share of the multiprocessors.

In a spatial program (`kitsune.mode = "spatial"`) a task says how many multiprocessors are its own (`workers`), and the first of
them (`first`; else tasks follow each other). Tasks with the same share take turns on it. A kernel runs on any number of
blocks: shares grow and shrink with it, and where there are fewer blocks than shares every block runs every task. Whatever
the shares, a block runs its tiles in the order of the program; so as long as every wait is for an earlier tile, the block that
has the first unfinished tile can always run. Programs with rings wait for later tiles too: they need the shares apart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.control_flow import sm_count, sm_id, uniform
from kitsune_mlir.codegen.gpu.emit.value import Value, i32, select
from kitsune_mlir.codegen.gpu.interface.tile_view import ProgramView, TaskView
from kitsune_mlir.errors import CompileError

__all__ = ["Range", "Share", "by_multiprocessor", "ranges", "shares_of"]


@dataclasses.dataclass(frozen=True, order=True)
class Share:
    """Multiprocessors [first, first + workers) of those that the program was planned for."""

    first: int
    workers: int


@dataclasses.dataclass(frozen=True)
class Range:
    """The blocks of a share at run time: `begin` and `count` (i32), and `mine` (i1), whether the calling block is one.

    `begin` and `mine` are None where the share is all blocks.
    """

    begin: Value | None
    count: Value
    mine: Value | None


def shares_of(program: ProgramView) -> list[Share] | None:
    """The share of each task of a spatial program; None for any other.

    Raises:
        CompileError: a task has no workers, or shares overlap without being the same.
    """
    attributes = program.function.attributes
    if "kitsune.mode" not in attributes or ir.StringAttr(attributes["kitsune.mode"]).value != "spatial":
        return None
    shares: list[Share] = []
    end = 0
    for task in program.tasks:
        workers = _number(task, "workers")
        if not workers:
            raise CompileError(f"task '{task.name}' of spatial program '{program.name}' has no 'workers'")
        first = _number(task, "first")
        shares.append(Share(end if first is None else first, workers))
        end = max(end, shares[-1].first + workers)
    distinct = sorted(set(shares))
    for before, after in zip(distinct, distinct[1:], strict=False):
        if before.first + before.workers > after.first:
            raise CompileError(f"spatial program '{program.name}': {before} and {after} overlap")
    return shares


def _number(task: TaskView, name: str) -> int | None:
    attributes = task.op.attributes
    return ir.IntegerAttr(attributes[name]).value if name in attributes else None


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

    found = {}
    for index, share in enumerate(distinct):
        first, last = begin(index), begin(index + 1)
        first, last = select(too_few, i32(0), first), select(too_few, blocks, last)
        found[share] = Range(first, last - first, (number >= first) & (number < last))
    return found
