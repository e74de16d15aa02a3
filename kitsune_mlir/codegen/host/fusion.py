"""Runs a chain of element-wise nests and row reductions row by row: what one leaves is still close when the next reads it.

A softmax or a layer norm on a tile is several passes over it. Where all of them walk the same rows, and every row of what one
writes is read by the others at that row only, the passes share one loop over rows; temporaries shrink to a single row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch_mlir import ir

from kitsune_mlir.codegen.host import ops
from kitsune_mlir.codegen.host.choice import plan
from kitsune_mlir.codegen.host.elementwise import Elementwise, plan_elementwise
from kitsune_mlir.codegen.host.machine import Machine
from kitsune_mlir.codegen.host.nest import Access, Nest, read_nest
from kitsune_mlir.codegen.host.reduction import RowReduction
from kitsune_mlir.codegen.host.transposing import plan_transposed
from kitsune_mlir.dialects.sizes import tensor_bytes
from kitsune_mlir.dialects.verify import walk

__all__ = ["HARMLESS", "VIEWS", "RowGroup", "find_groups"]

MIN_BYTES = 32 << 10
"""Chains that touch less than this stay in the first-level cache anyway; there vectors along the rows are worth more."""

VIEWS = frozenset({
    "memref.subview", "memref.expand_shape", "memref.collapse_shape", "memref.cast", "memref.reinterpret_cast",
    "memref.transpose",
})  # fmt: skip
HARMLESS = VIEWS | {"memref.alloc", "memref.dim", "arith.constant"}


@dataclass(frozen=True)
class Member:
    """One nest of a chain: its schedule within a row, and which of its dimensions is the row."""

    op: ir.Operation
    schedule: Elementwise | RowReduction
    row: int

    @property
    def nest(self) -> Nest:
        """The nest."""
        return self.schedule.nest

    @property
    def indexed(self) -> Iterator[ir.Value]:
        """What its body reads at places that it computes: any row."""
        return (op.operands[0] for op in walk(self.op) if op.name == "memref.load")


class RowGroup:
    """Nests that share a loop over `rows` rows."""

    def __init__(self, rows: int):
        self.rows = rows
        self.members: list[Member] = []

    @property
    def size(self) -> int:
        """Bytes of all memrefs that the group touches."""
        memrefs = {a.memref for m in self.members for a in m.nest.accesses if a.memref is not None}
        return sum(tensor_bytes(m.type) for m in memrefs)

    @property
    def pays(self) -> bool:
        """Whether sharing a loop is worth it."""
        return len(self.members) > 1 and self.size >= MIN_BYTES

    def accepts(self, member: Member) -> bool:
        """Whether `member` can follow: what one of them writes is touched by the others in the same row only."""
        if member.nest.extents[member.row] != self.rows:
            return False
        accesses = [(a, m.row) for m in [*self.members, member] for a in m.nest.accesses if a.memref is not None]
        written = {_root(o.memref) for m in [*self.members, member] for o in m.nest.outputs if o.memref is not None}
        if any(_root(memref) in written for m in [*self.members, member] for memref in m.indexed):
            return False
        for root in written:
            own = [(a, row) for a, row in accesses if _root(a.memref) == root]
            if len({a.memref for a, _ in own}) > 1 or len({a.coefficients[row] for a, row in own}) > 1:
                return False
            if not all(_within_row(a, row, self.rows) for a, row in own):
                return False
        return True

    def emit(self) -> None:
        """Emit the loop over rows in the place of the last nest, and erase the nests."""
        last = self.members[-1].op
        private = self._private()
        with ir.InsertionPoint(last), last.location:
            nests = []
            for member in self.members:
                nest = _contracted(member.nest, member.row, private).with_views()
                nests.append(nest)

            def row(counter: ops.Index, carried: list[ir.Value]) -> list[ir.Value]:
                for member, nest in zip(self.members, nests, strict=True):
                    inner = [d for d in member.schedule.outer if d != member.row]
                    member.schedule.emit(nest, {member.row: counter}, inner)
                return carried

            ops.loop(0, self.rows, 1, [], row)
        for member in self.members:
            member.op.erase()

    def _private(self) -> set[ir.Value]:
        """Temporaries that nothing outside the group uses: one row of them is enough."""
        inside = [m.op for m in self.members]
        memrefs = {a.memref for m in self.members for a in m.nest.accesses if a.memref is not None}
        found = set()
        for value in memrefs:
            made = not isinstance(value.owner, ir.Block) and value.owner.operation.name == "memref.alloc"
            if made and all(use.owner.operation in inside for use in value.uses):
                found.add(value)
        return found


def find_groups(block: ir.Block, machine: Machine) -> Iterator[RowGroup]:
    """The chains among the operations of a block, in order."""
    group: RowGroup | None = None
    for op in [o.operation for o in block.operations]:
        if op.name in HARMLESS:
            continue
        member = _member(op, machine) if op.name == "linalg.generic" else None
        if group is not None and member is not None and group.accepts(member):
            group.members.append(member)
            continue
        if group is not None and group.pays:
            yield group
        group = None
        if member is not None:
            group = RowGroup(member.nest.extents[member.row])
            if group.accepts(member):
                group.members.append(member)
    if group is not None and group.pays:
        yield group


def _member(op: ir.Operation, machine: Machine) -> Member | None:
    """The schedule of one row of a nest; None if its first dimension is no row, or a row has no vector schedule."""
    nest = read_nest(op, keep_first=True)
    if nest is None:
        return None
    row = next((d for d in range(len(nest.extents)) if nest.extents[d] > 1), None)
    if row is None or row in nest.reductions:
        return None
    if nest.reductions:
        schedule = plan(nest, machine)
        if not isinstance(schedule, RowReduction) or any(d == row for d, _ in schedule.tile):
            return None
        return Member(op, schedule, row)
    if plan_transposed(nest, machine) is not None:
        return None  # its rows lie across those of what it reads
    within = plan_elementwise(nest, machine, outside=row)
    return None if within is None else Member(op, within, row)


def _root(value: ir.Value | None) -> ir.Value:
    """The memref that a view is made of, in the end."""
    assert value is not None
    root: ir.Value = value
    while not isinstance(root.owner, ir.Block) and root.owner.operation.name in VIEWS:
        root = root.owner.operation.operands[0]
    return root


def _within_row(access: Access, row: int, rows: int) -> bool:
    """Whether different rows of an access are different elements."""
    step = access.coefficients[row]
    rest = access.span - 1 - access.constant - step * (rows - 1)
    return step > rest and step > 0


def _contracted(nest: Nest, row: int, private: set[ir.Value]) -> Nest:
    """The nest with every row of a private temporary in the same place."""

    def change(access: Access) -> Access:
        if access.memref is None or access.memref not in private:
            return access
        coefficients = tuple(0 if d == row else c for d, c in enumerate(access.coefficients))
        return replace(access, coefficients=coefficients)

    return replace(nest, inputs=tuple(map(change, nest.inputs)), outputs=tuple(map(change, nest.outputs)))
