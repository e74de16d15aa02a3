"""How the rows of a tile are shared among threads, as plain figures; `simt.choose` picks them, `simt.rows` emits them."""

from __future__ import annotations

import dataclasses

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.simt.exchange import ITEM_BYTES
from kitsune_mlir.codegen.gpu.engines.simt.graph import Graph
from kitsune_mlir.codegen.gpu.engines.simt.row_space import RowSpace
from kitsune_mlir.codegen.gpu.engines.simt.scalar_body import carrier

__all__ = ["SHARE", "RowSchedule", "is_softmax", "levels_of", "scratch_bytes"]

SHARE = 16
"""Blocks that share columns begin at multiples of this: bulk copies of elements of any size can, too."""


@dataclasses.dataclass(frozen=True)
class RowSchedule:
    """How the rows of a tile are shared.

    Attributes:
        space: rows and columns.
        threads: threads that work, a power of two.
        width: points of a vector.
        fast: threads side by side along the contiguous direction, a power of two.
        unroll: vectors that a thread has of the contiguous direction and of rows at a time: rows if columns are contiguous.
        steps: columns (or vectors of columns) of a thread that are evaluated together; all of them if `resident`.
        resident: values stay in registers from level to level.
        scratch: where in the block's shared memory warps exchange their parts.
        blocks: of a cluster, which share the columns; each has neighbouring ones (`simt.cluster_rows`).
        running: sums of a resident row's softmax follow its maximum (`simt.online_softmax`).
    """

    space: RowSpace
    threads: int
    width: int
    fast: int
    unroll: int
    steps: int
    resident: bool
    scratch: int = 0
    blocks: int = 1
    running: bool = False

    @property
    def share(self) -> int:
        """Columns of a block: all, or a multiple of `SHARE` of them."""
        if self.blocks == 1:
            return self.space.col_count
        return -(-self.space.col_count // (self.blocks * SHARE)) * SHARE

    @property
    def slow(self) -> int:
        return self.threads // self.fast

    @property
    def col_steps(self) -> int:
        """Steps that a thread needs for all columns."""
        if self.space.row_major:
            return -(-self.share // (self.fast * self.width))
        return -(-self.share // self.slow)

    @property
    def rows_at_once(self) -> int:
        """Rows that all threads together have at a time."""
        return self.unroll * (self.slow if self.space.row_major else self.fast * self.width)

    @property
    def parts(self) -> int:
        """Groups of warps that share rows."""
        if self.space.row_major:
            return max(1, self.fast // 32)
        return self.threads // max(self.fast, 32)

    @property
    def values(self) -> int:
        """Results of one reduction that a thread has at a time."""
        return self.unroll * (1 if self.space.row_major else self.width)


def levels_of(graph: Graph, space: RowSpace) -> list[list[ir.Operation]]:
    """The shared reductions, grouped by what must be known before."""
    numbers = sorted({graph.levels[op.results[0]] for op in space.shared})
    return [[op for op in space.shared if graph.levels[op.results[0]] == number] for number in numbers]


def is_softmax(graph: Graph, space: RowSpace, number: int) -> bool:
    """Whether level `number` is a maximum of f32, and the next one sums of exponentials of what is less than it."""
    levels = levels_of(graph, space)
    if not space.row_major or number + 1 >= len(levels) or len(levels[number]) != 1:
        return False
    (op,) = levels[number]
    recipe = graph.reductions[op]
    if not isinstance(recipe, tuple) or len(recipe) != 1 or recipe[0].kind != "max":
        return False
    wide = carrier(ir.RankedTensorType(op.results[0].type).element_type) == "f32"
    return wide and all(graph.is_sum_of_powers(other, op) for other in levels[number + 1])


def scratch_bytes(schedule: RowSchedule, graph: Graph) -> list[tuple[int, int]]:
    """(start, end) of each level's shared memory."""
    spans, start = [], 0
    places = schedule.slow if schedule.space.row_major else schedule.fast
    for level in levels_of(graph, schedule.space):
        values = sum(len(op.results) for op in level) * schedule.values
        parts = schedule.parts if schedule.parts > 1 else 0
        parts += schedule.blocks if schedule.blocks > 1 else 0
        size = values * parts * places * ITEM_BYTES
        spans.append((start, start + size))
        start += size
    return spans
