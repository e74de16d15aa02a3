"""Semaphores of the stages, and the waits that edges become: which slots hold what a tile reads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch_mlir import ir
from torch_mlir.dialects import arith

from kitsune_mlir.dialects.edges import Edge, Grid, Slice
from kitsune_mlir.dialects.tile_program import SemaphoreOp, WaitOp, WaitRowsOp
from kitsune_mlir.dialects.types import SemaphoreType

from .memrefs import i64, index
from .tiling import Tiling

__all__ = ["MANY_SLOTS", "Signals", "semaphore", "wait_for"]

MANY_SLOTS = 4
"""Above this, stages that wait for all of a producer get a semaphore of one slot instead of polling each."""


@dataclass
class Signals:
    """The semaphores a stage posts to: slots for each tile of its first grid dimension, and one slot for the whole stage.

    A stage's second grid dimension may be cut into `groups` (`mma.column_groups`): `rows` then has the slots of all
    first tiles for the first group, then those for the next one, so that who reads a row can begin before the last of it is
    there.
    """

    grid: Grid
    rows: ir.Value | None = None
    whole: ir.Value | None = None
    groups: int = 1

    @property
    def per_slot(self) -> int:
        """Posts that complete one slot of `rows`, where there is one group."""
        return self.grid.tasks // self.grid.extents[0]

    @property
    def slots(self) -> int:
        """Slots of `rows`."""
        return self.grid.extents[0] * self.groups

    @property
    def counts(self) -> list[int]:
        """Posts that complete a slot of each group."""
        if self.groups == 1:
            return [self.per_slot]
        across = self.grid.extents[1]
        return [min(self._across, across - first) for first in range(0, across, self._across)]

    def slot(self, coordinates: Sequence[ir.Value]) -> ir.Value:
        """The slot of `rows` that a tile posts to."""
        if self.groups == 1:
            return coordinates[0]
        group = arith.divui(coordinates[1], index(self._across))
        return arith.addi(coordinates[0], arith.muli(group, index(self.grid.extents[0])))

    def wait(self, first: ir.Value | int, end: ir.Value | int) -> None:
        """Emit waits for the tiles [first, end) of the first grid dimension: one for each group."""
        assert self.rows is not None
        for group, count in enumerate(self.counts):
            WaitOp(self.rows, *(_moved(bound, group * self.grid.extents[0]) for bound in (first, end)), i64(count))

    @property
    def _across(self) -> int:
        return -(-self.grid.extents[1] // self.groups)


def semaphore(slots: int) -> ir.Value:
    """Declare a semaphore at the insertion point."""
    return SemaphoreOp(i64(slots), SemaphoreType.get()).operation.results[0]


def wait_for(edge: Edge, signals: Signals, grid: Grid, tiling: Tiling, buffer: Callable[[ir.Value], ir.Value]) -> None:
    """Emit what a tile of `grid` waits for over an edge whose producer has `signals`; `buffer`: the memref of a tensor."""
    if edge.policy == "indexed":
        _wait_for_named(edge, signals, grid, tiling, buffer)
        return
    made = signals.grid
    offset = tiling.offsets[edge.dim] if edge.policy != "all" else None
    if edge.policy == "all" or offset is None:
        if signals.whole is not None:
            WaitOp(signals.whole, index(0), index(1), i64(made.tasks))
        else:
            signals.wait(0, made.extents[0])
        return
    # Rows [start, start + size) lie in the producer's tiles floor(start / T) .. floor((start + size - 1) / T).
    rows = made.tile[made.moving[0]]
    start = offset if edge.scale == 1 else arith.muli(offset, index(edge.scale))
    size = Slice(edge.dim, edge.scale, edge.extent).size(grid.tile[edge.dim])
    first = arith.divui(start, index(rows))
    last = arith.divui(arith.addi(start, index(size - 1)), index(rows))
    signals.wait(first, arith.addi(last, index(1)))


def _moved(bound: ir.Value | int, slots: int) -> ir.Value:
    if isinstance(bound, int):
        return index(bound + slots)
    return arith.addi(bound, index(slots)) if slots else bound


def _wait_for_named(edge: Edge, signals: Signals, grid: Grid, tiling: Tiling, buffer: Callable[[ir.Value], ir.Value]) -> None:
    """Waits for the rows that the edge's indices name: row r lies in the producer's tile floor(r / T)."""
    first = signals.grid.moving[0]
    numbers = [signals.per_slot, signals.grid.tile[first], signals.grid.space.dims[first].size]
    assert signals.rows is not None
    for named in edge.named:
        offset = tiling.offsets[named.dim] if named.dim is not None else None
        lo = index(named.start)
        if offset is not None:
            start = offset if named.step == 1 else arith.muli(offset, index(named.step))
            lo = arith.addi(start, lo) if named.start else start
        hi = arith.addi(lo, index(named.count(grid.tile)))
        WaitRowsOp(signals.rows, lo, hi, buffer(named.indices), *map(i64, numbers))
