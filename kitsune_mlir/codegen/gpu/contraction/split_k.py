"""Pieces of a product's sum: which chunks a block multiplies, and how the blocks that share a tile add their accumulators.

Each thread writes its accumulators to global memory and reads those of the same thread of the other blocks, 16 bytes at a
time, neighbours by neighbouring threads: the order in memory is that of the registers.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Protocol

from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_
from kitsune_mlir.codegen.gpu.emit.inline_ptx import fresh
from kitsune_mlir.codegen.gpu.emit.memory import offset, store
from kitsune_mlir.codegen.gpu.emit.value import Value, constant, i32, i64, select, vector
from kitsune_mlir.codegen.gpu.emit.vectors import load_elements
from kitsune_mlir.codegen.gpu.interface.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.interface.split import Split
from kitsune_mlir.codegen.gpu.interface.split_exchange import SplitExchange
from kitsune_mlir.codegen.gpu.sm90.mbarrier import NamedBarrier
from kitsune_mlir.codegen.gpu.sm90.warp_specialize import WARPGROUP_THREADS

__all__ = ["Pieces", "SplitPlan"]

BARRIER = 2
"""Named barrier of the first consumer; the second has the next one."""
MOST_LOADED = 96
"""Registers for partial results that are on their way at a time."""


class _Shares(Protocol):
    @property
    def groups(self) -> int: ...


class SplitPlan(Protocol):
    """What is asked of a plan: `split`, the bytes of one warpgroup's accumulators, and how many warpgroups have their own."""

    @property
    def split(self) -> Split | None: ...

    @property
    def partial_bytes(self) -> int: ...

    @property
    def geometry(self) -> _Shares: ...


class Pieces:
    """The pieces of a task's tiles, while its code is emitted."""

    def __init__(self, plan: SplitPlan, task: TaskContext):
        self.plan, self.task = plan, task

    @property
    def split(self) -> Split | None:
        """None: every tile is one piece."""
        return self.plan.split

    def chunks(self, piece: Value, chunks: int) -> tuple[Value | int, Value | int]:
        """The first chunk of a piece, and the first after it; the tile has `chunks`."""
        split = self.split
        if split is None:
            return 0, chunks
        begin, end = piece * chunks // split.pieces, (piece + 1) * chunks // split.pieces
        if not split.whole:
            return begin, end
        alone = piece == split.pieces
        return select(alone, i32(0), begin), select(alone, i32(chunks), end)

    def finishes(self, piece: Value) -> Value:
        """Whether the piece's block adds up the tile and stores it."""
        assert self.split is not None
        return piece >= self.split.pieces - 1

    def hand_over(
        self,
        tile: TileContext,
        piece: Value,
        group: Value,
        accumulators: list[Value],
        owner: Callable[[int], int] | None = None,
    ) -> None:
        """Write a consumer's accumulators and announce them.

        Args:
            owner: the piece whose block adds up a register (the same for four of them): it need not write it.
        """
        exchange = self._exchange(group)
        exchange.claim()
        target = self._pointer(tile, piece, group)

        def write(numbers: Sequence[int]) -> None:
            for number in numbers:
                store(vector(accumulators[number : number + 4]), offset(target, number * (4 * WARPGROUP_THREADS)))

        numbers = range(0, len(accumulators), 4)
        if owner is None:
            write(numbers)
        else:
            for mine, together in itertools.groupby(numbers, owner):
                if_(piece != mine, functools.partial(write, list(together)))
        exchange.sync()
        exchange.announce(self._number(tile, group))

    def collect(self, tile: TileContext, piece: Value, group: Value, accumulators: list[Value]) -> list[Value]:
        """The sum of all pieces, of which the block's own, `piece`, is the last."""
        assert self.split is not None
        exchange, others = self._exchange(group), self.split.pieces - 1
        shared = piece == others  # not a whole tile
        exchange.wait(self._number(tile, group), others, shared)

        def add(piece: Value, *sums: Value) -> list[Value]:
            found = _loaded(self._pointer(tile, piece, group), range(0, len(sums), 4))
            return [mine + other for mine, other in zip(sums, found, strict=True)]

        # Never a loop of one iteration to the compiler: ptxas starts all loads of straight code at once, and spills.
        accumulators = for_(0, fresh(select(shared, piece, 0)), 1, add, accumulators)
        exchange.release(shared)
        return accumulators

    def alone(self, piece: Value) -> Value:
        """Whether it is a tile that one block does alone."""
        assert self.split is not None
        return piece == self.split.pieces

    def meet(self, tile: TileContext, group: Value) -> None:
        """Wait until all pieces of the tile have announced theirs (`Split.spread`)."""
        assert self.split is not None
        self._exchange(group).wait(self._number(tile, group), self.split.pieces)

    def sums(
        self, tile: TileContext, piece: Value, group: Value, first: Value, runs: Sequence[int], own: Sequence[Value]
    ) -> list[Value]:
        """Registers of the calling thread, added up over all pieces in their order, whichever of them, `piece`, is its block's.

        Ragged tiles overlap, and an element may be in different blocks' shares of the columns of two tiles: both write it.

        Args:
            first, runs: which registers: as many from each start in `runs`, moved by `first`.
            own: those of its block's piece.
        """
        assert self.split is not None
        moved, count, others = i64(first) * (4 * WARPGROUP_THREADS), len(own) // len(runs), self.split.pieces - 1
        at_once = max(1, MOST_LOADED // len(own))

        def load(other: Value | int) -> list[Value]:
            other = i32(other)
            number = select(other < piece, other, other + 1)
            source = offset(self._pointer(tile, number, group), moved)
            return _loaded(source, [number for start in runs for number in range(start, start + count, 4)])

        def add(first: Value | int, many: int, sums: Sequence[Value]) -> list[Value]:
            # All loads of some pieces before the first addition: they are on their way together.
            for number, found in enumerate([load(first + number) for number in range(many)]):
                sums = insert(first + number, sums)
                sums = [sum + other for sum, other in zip(sums, found, strict=True)]
            return list(sums)

        def insert(number: Value | int, sums: Sequence[Value]) -> list[Value]:
            mine = [sum + one for sum, one in zip(sums, own, strict=True)]
            return [select(piece == number, new, old) for new, old in zip(mine, sums, strict=True)]

        total: list[Value] = [constant(0.0, "f32")] * len(own)
        whole, rest = others // at_once, others % at_once
        if whole > 1:
            total = for_(0, whole * at_once, at_once, lambda first, *sums: add(first, at_once, sums), total)
        elif whole:
            total = add(0, at_once, total)
        return insert(others, add(whole * at_once, rest, total) if rest else total)

    def done(self, group: Value) -> None:
        """The warpgroup has read all that it adds up."""
        self._exchange(group).release()

    def _exchange(self, group: Value) -> SplitExchange:
        """Of a consumer, whose warpgroup hands over its own accumulators."""
        sync = lambda: NamedBarrier(group + BARRIER, WARPGROUP_THREADS).sync()  # noqa: E731
        return SplitExchange(self.task, lambda: self._local() == 0, sync)

    def _local(self) -> Value:
        return self.task.thread % WARPGROUP_THREADS

    def _number(self, tile: TileContext, group: Value) -> Value:
        """Number of a consumer's part of a tile among all that are shared."""
        return self._shared(tile) * self.plan.geometry.groups + group

    def _shared(self, tile: TileContext) -> Value:
        """Number of a tile among those that are shared."""
        assert self.split is not None
        return tile.rank - self.split.whole

    def _pointer(self, tile: TileContext, piece: Value, group: Value) -> Value:
        """Where the calling thread's accumulators of a piece are."""
        assert self.split is not None
        number = (self._shared(tile) * self.split.parts + piece) * self.plan.geometry.groups + group
        return offset(self._exchange(group).partials(number, self.plan.partial_bytes), self._local() * 16)


def _loaded(source: Value, numbers: Sequence[int]) -> list[Value]:
    """Registers of a thread that were stored at `source`: four from each of `numbers` on."""
    return [
        value
        for number in numbers
        for value in load_elements(offset(source, number * (4 * WARPGROUP_THREADS)), "f32", 4, align=16)
    ]
