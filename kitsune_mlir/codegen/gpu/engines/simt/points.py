"""The points of a tile that a thread of a schedule of rows has: its rows, its columns, and their coordinates."""

from __future__ import annotations

import dataclasses

from kitsune_mlir.codegen.gpu.emit.value import Value
from kitsune_mlir.codegen.gpu.engines.simt.affine_index import Atom, Index, Linear, add, clamp, emit
from kitsune_mlir.codegen.gpu.engines.simt.cluster_rows import Cluster
from kitsune_mlir.codegen.gpu.engines.simt.evaluate import Evaluator
from kitsune_mlir.codegen.gpu.engines.simt.schedule import RowSchedule

__all__ = ["Column", "Points", "both"]


@dataclasses.dataclass(frozen=True)
class Column:
    """One step along the columns: index (with lane if columns are contiguous), and whether it is inside (None: always)."""

    index: Linear
    inside: Value | None


class Points:
    """What a thread has. Attributes `near` and `far`: its place along the contiguous direction, and along the other one."""

    def __init__(self, schedule: RowSchedule, evaluator: Evaluator, thread: Value, cluster: Cluster | None, unroll: int):
        self.schedule, self.space, self.evaluator = schedule, schedule.space, evaluator
        self.cluster, self.unroll = cluster, unroll
        self.near = Atom(thread % schedule.fast, 1, schedule.fast)
        self.far = Atom(thread // schedule.fast, 1, schedule.slow)
        self.first = cluster.first if cluster is not None else Linear()

    def rows(self, first: Linear) -> list[tuple[Linear, Value | None]]:
        """(row, inside) for each of the thread's rows at a time; rows are vectors if they are contiguous."""
        schedule, count = self.schedule, self.space.row_count
        exact = count % schedule.rows_at_once == 0
        rows = []
        for number in range(self.unroll):
            if self.space.row_major:
                row = add(add(first, Linear.of(self.far)), number * schedule.slow)
                width = 1
            else:
                row = add(add(first, Linear(((self.near, schedule.width),))), number * schedule.fast * schedule.width)
                width = schedule.width
            assert isinstance(row, Linear)
            inside = None
            if not exact:
                inside = emit(row) < count
                row = clamp(row, count - width)
            lane = 0 if self.space.row_major or width == 1 else 1
            rows.append((Linear(row.terms, lane, row.const), inside))
        return rows

    def column(self, step: Linear) -> Column:
        """Column step `step` (0 to col_steps - 1) of the thread."""
        schedule, count = self.schedule, self.schedule.share
        if self.space.row_major:
            stride, own, width = schedule.fast * schedule.width, Linear(((self.near, schedule.width),)), schedule.width
        else:
            stride, own, width = schedule.slow, Linear.of(self.far), 1
        base = add(_scaled(step, stride), own)
        assert isinstance(base, Linear)
        inside = None
        whole = count // stride  # steps that lie inside for all threads
        span = step.range(1)
        if span is None or span[1] >= whole:
            inside = emit(base) < count
            base = clamp(base, count - width)
        if self.cluster is not None:
            base, inside = self._in_cluster(self.cluster, base, inside, width)
        return Column(Linear(base.terms, 1 if self.space.row_major and width > 1 else 0, base.const), inside)

    def _in_cluster(self, cluster: Cluster, base: Linear, inside: Value | None, width: int) -> tuple[Linear, Value | None]:
        """A column of the row, of one of the block's; the last block may have fewer than the others."""
        place, count = add(base, self.first), self.space.col_count
        assert isinstance(place, Linear)
        if cluster.blocks * cluster.share == count:
            return place, inside
        return clamp(place, count - width), both(inside, emit(place) < count)

    def where(self, row: Index, col: Index | None) -> dict:
        """The index of each class of dimensions; the same objects whenever it is asked again."""
        where: dict = {}
        for dims, index in ((self.space.rows, row), (self.space.cols, col)):
            if index is not None and dims:
                extents = tuple(extent for _, extent in dims)
                parts = self.evaluator.spread(index, extents)
                where.update((node, part) for (node, _), part in zip(dims, parts, strict=True))
        return where

    @property
    def padded_steps(self) -> int:
        """Column steps in whole groups."""
        steps = self.schedule.steps
        return -(-self.schedule.col_steps // steps) * steps

    def columns_from(self, first: Value) -> list[Column]:
        """The group of steps that begins with step `first`."""
        origin = Linear.of(Atom(first, self.schedule.steps, self.padded_steps))
        columns = []
        for number in range(self.schedule.steps):
            step = add(origin, number)
            assert isinstance(step, Linear)
            columns.append(self.column(step))
        return columns


def both(a: Value | None, b: Value | None) -> Value | None:
    """Whether both conditions hold; None: always."""
    if a is None or b is None:
        return b if a is None else a
    return a & b


def _scaled(step: Linear, stride: int) -> Linear:
    return Linear(tuple((atom, c * stride) for atom, c in step.terms), 0, step.const * stride)
