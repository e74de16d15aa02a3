"""Deciding how the `pairs` engine does a task: what is loaded when, and where everything is in shared memory."""

from __future__ import annotations

import dataclasses
import math

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.chain.few_rows.plan import FewRowsPlan, plan_few_rows
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.dialects.pairs import Columns, Pairs, Vectors, maker_of, read_pairs
from kitsune_mlir.dialects.sizes import element_bytes
from kitsune_mlir.dialects.tile_records import Load, Store, TaskView

__all__ = ["LAYER_WARPS", "PIECE", "PairsPlan", "picks_wait", "read_plan", "row_align"]

LAYER_WARPS = 8
"""Warps that make vectors by layers, while others bring those that are gathered."""

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
        made: the vectors, and columns, that layers of the task make; at most one tensor.
        layers: how they are made.
        table_at, places_at: offsets in shared memory of the table of columns, and of the places of gathered vectors, after the
            samples.
        products_at: of all samples' products, and of what the layers need before there are any.
        bytes: of shared memory.
    """

    pairs: Pairs
    loads: dict[ir.Value, Load]
    store: Store
    samples: int
    early: tuple[Vectors, ...]
    made: ir.Value | None
    layers: FewRowsPlan | None
    table_at: int
    places_at: int
    products_at: int
    bytes: int

    @property
    def late(self) -> tuple[Vectors, ...]:
        """The vectors that are read after the task's waits."""
        return tuple(part for part in self.pairs.vectors if part not in self.early and not self.makes(part.value))

    def makes(self, value: ir.Value) -> bool:
        """Whether vectors or columns are what the task's layers make."""
        return self.made is not None and maker_of(value) == self.made

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
        """Whether the others are multiplied before the waits: where that leaves less than all of it for later.

        Beside layers it does not pay: few warps would take longer for it than all of them do afterwards.
        """
        return self.layers is None and bool(self.early) and 0 < len(self.late_groups) < self.pairs.padded // 16

    @property
    def parted(self) -> bool:
        """Whether what does not depend on late vectors is stored before these are there."""
        late = [first for first, part in self._firsts() if part.kind == "rows"]
        return self.ahead and not picks_wait(self) and all(first % PIECE == 0 for first in late)

    def is_late(self, piece: int) -> bool:
        """Whether all of a piece of the result's columns are rows that come, or are made, after the waits."""
        return any(
            part.kind == "rows" and first <= piece * PIECE and (piece + 1) * PIECE <= first + part.width
            for first, part in self._firsts()
        )

    def _firsts(self) -> list[tuple[int, Columns]]:
        """Each part of the columns with its first one."""
        found, first = [], 0
        for part in self.pairs.columns:
            found.append((first, part))
            first += part.width
        return found

    @property
    def columns(self) -> int:
        """Columns of the result."""
        return sum(part.width for part in self.pairs.columns)


def read_plan(task: TaskView, room: int) -> PairsPlan:
    """Read a task; `room`: bytes of shared memory, which a plan may exceed.

    Raises:
        NoPairs: its body is something else, or holds more than that.
    """
    joined = next((op for op in reversed(task.work()) if op.name == "tensor.concat"), None)
    if joined is None:
        raise MatchFailure("nothing is joined")
    pairs = read_pairs(joined)
    if len(task.stores) != 1 or task.stores[0].tensor != pairs.result:
        raise MatchFailure("the task stores something else than the joined columns")
    loads = {load.tensor: load for load in task.loads}
    made, making = _layers(task, pairs, loads)
    early = []
    for part in pairs.vectors:
        if made is not None and maker_of(part.value) == made:
            continue
        read = [part.value] if part.gather is None else [*list(part.gather.operands)[:-1], part.extract.operands[0]]
        for value in read:
            if value not in loads:
                raise MatchFailure("vectors that are computed in the task")
        if part.gather is not None and all(loads[value].buffer.role == "input" for value in read):
            early.append(part)
        source = loads[read[-1]]
        if row_align(source) < 16:
            raise MatchFailure("vectors that do not begin at multiples of 16 bytes")
        if part.gather is not None and not source.whole:
            raise MatchFailure("a part of a table")
    for part in pairs.columns:
        if made is not None and part.value == made:
            continue
        read = [] if part.kind == "zeros" else [part.value] if part.op is None else list(part.op.operands)[:-1]
        if any(value not in loads for value in read):
            raise MatchFailure("columns that are computed in the task")
        if part.kind == "rows" and row_align(loads[part.value]) < 16:
            raise MatchFailure("columns that do not begin at multiples of 16 bytes")
    table_at = pairs.rows * pairs.sample_bytes
    places_at = table_at + -(-sum(part.width for part in pairs.columns) // PIECE) * PIECE * 4
    end = places_at + 8 * pairs.rows * sum(part.count for part in pairs.vectors if part.gather is not None)
    products_at = -(-end // 1024) * 1024
    layers = _plan_layers(making, room - products_at) if making else None
    bytes_ = products_at + max(pairs.rows * pairs.product_bytes, layers.bytes if layers else 0)
    return PairsPlan(
        pairs, loads, task.stores[0], pairs.rows, tuple(early), made, layers, table_at, places_at, products_at, bytes_
    )


def _layers(task: TaskView, pairs: Pairs, loads: dict[ir.Value, Load]) -> tuple[ir.Value, TaskView] | tuple[None, None]:
    """What of the vectors and columns the task makes itself, and the part that does; (None, None) if all comes from memory."""
    values = [part.value for part in pairs.vectors if part.gather is None]
    values += [part.value for part in pairs.columns if part.kind == "rows"]
    made = {maker_of(value) for value in values if maker_of(value) not in loads and value not in loads}
    if not made:
        return None, None
    if len(made) > 1:
        raise MatchFailure("vectors and columns that are computed by different layers")
    result = made.pop()
    if any(part.count > 1 for part in pairs.vectors if maker_of(part.value) == result):
        raise MatchFailure("several vectors of a sample that are made by one layer")
    needed: dict[ir.Operation, None] = {}
    pending = [result]
    while pending:
        owner = pending.pop().owner
        if isinstance(owner, ir.Block) or owner.operation in needed or owner.operation not in task.body:
            continue
        needed[owner.operation] = None
        pending += owner.operation.operands
    body = tuple(op for op in task.body if op in needed)
    return result, dataclasses.replace(task, body=body, stores=(dataclasses.replace(task.stores[0], tensor=result),))


def _plan_layers(part: TaskView, room: int) -> FewRowsPlan:
    try:
        return plan_few_rows(part, LAYER_WARPS, room)
    except MatchFailure as reason:
        raise MatchFailure(f"vectors that are computed in the task: {reason}") from reason


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
