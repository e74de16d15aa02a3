"""Deciding how the `pairs` engine does a task: what is loaded when, and where everything is in shared memory."""

from __future__ import annotations

import dataclasses
import math

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.tasks import Load, Store, TaskView, element_bytes
from kitsune_mlir.dialects.pairs import NoPairs, Pairs, Vectors, read_pairs

__all__ = ["PIECE", "PairsPlan", "picks_wait", "read_plan", "row_align"]

PIECE = 8
"""Elements of 16 bytes."""


@dataclasses.dataclass(frozen=True, eq=False)
class PairsPlan:
    """What was decided for a task.

    Attributes:
        pairs: the body.
        loads: by tensor.
        store: the result's.
        samples: rows of a tile.
        early: the gathered vectors that nobody writes while the kernel runs.
        table_at, places_at: offsets in shared memory of the table of columns, and of the places of gathered vectors, after the
            samples.
        bytes: of shared memory.
    """

    pairs: Pairs
    loads: dict[ir.Value, Load]
    store: Store
    samples: int
    early: tuple[Vectors, ...]
    table_at: int
    places_at: int
    bytes: int

    @property
    def late(self) -> tuple[Vectors, ...]:
        """The vectors that are read after the task's waits."""
        return tuple(part for part in self.pairs.vectors if part not in self.early)

    @property
    def late_ranges(self) -> list[tuple[int, int]]:
        """Their numbers, from and to."""
        found, first = [], 0
        for part in self.pairs.vectors:
            if part not in self.early:
                found.append((first, first + part.count))
            first += part.count
        return found

    @property
    def late_groups(self) -> list[int]:
        """The groups of 16 vectors that late ones are in; those between them are done with them."""
        groups = [number // 16 for start, end in self.late_ranges for number in range(start, end)]
        return list(range(min(groups), max(groups) + 1)) if groups else []

    @property
    def ahead(self) -> bool:
        """Whether the others are multiplied before the waits: where that leaves less than all of it for later."""
        return bool(self.early) and 0 < len(self.late_groups) < self.pairs.padded // 16

    @property
    def columns(self) -> int:
        """Columns of the result."""
        return sum(part.width for part in self.pairs.columns)


def read_plan(task: TaskView) -> PairsPlan:
    """Read a task.

    Raises:
        NoPairs: its body is something else, or holds more than that.
    """
    joined = next((op for op in reversed(task.work()) if op.name == "tensor.concat"), None)
    if joined is None:
        raise NoPairs("nothing is joined")
    pairs = read_pairs(joined)
    if len(task.stores) != 1 or task.stores[0].tensor != pairs.result:
        raise NoPairs("the task stores something else than the joined columns")
    loads = {load.tensor: load for load in task.loads}
    early = []
    for part in pairs.vectors:
        read = [part.value] if part.gather is None else [*list(part.gather.operands)[:-1], part.extract.operands[0]]
        for value in read:
            if value not in loads:
                raise NoPairs("vectors that are computed in the task")
        if part.gather is not None and all(loads[value].buffer.role == "input" for value in read):
            early.append(part)
        source = loads[read[-1]]
        if row_align(source) < 16:
            raise NoPairs("vectors that do not begin at multiples of 16 bytes")
        if part.gather is not None and not source.whole:
            raise NoPairs("a part of a table")
    for part in pairs.columns:
        read = [] if part.kind == "zeros" else [part.value] if part.op is None else list(part.op.operands)[:-1]
        if any(value not in loads for value in read):
            raise NoPairs("columns that are computed in the task")
        if part.kind == "rows" and row_align(loads[part.value]) < 16:
            raise NoPairs("columns that do not begin at multiples of 16 bytes")
    table_at = pairs.rows * pairs.sample_bytes
    places_at = table_at + -(-sum(part.width for part in pairs.columns) // PIECE) * PIECE * 4
    end = places_at + 8 * pairs.rows * sum(part.count for part in pairs.vectors if part.gather is not None)
    return PairsPlan(pairs, loads, task.stores[0], pairs.rows, tuple(early), table_at, places_at, end)


def picks_wait(plan: PairsPlan) -> bool:
    """Whether some index of the picks is written while the kernel runs."""
    read = [value for part in plan.pairs.columns if part.kind == "picks" and part.op for value in list(part.op.operands)[:-1]]
    return any(plan.loads[value].buffer.role != "input" for value in read)


def row_align(record: Load | Store) -> int:
    """Bytes that divide the address of every row of a window, at most 16."""
    strides = record.buffer.strides[:-1]
    size = element_bytes(record.buffer.element)
    places = [record.buffer.offset, *(stride * size for stride in strides)]
    last = record.offsets[-1]
    places.append(last * size if isinstance(last, int) else size)
    return math.gcd(16, *places)
