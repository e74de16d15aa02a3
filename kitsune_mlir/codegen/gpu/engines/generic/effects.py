"""Which memory the operations of a lowered body touch, and whether two of them can meet."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from torch_mlir import ir

from kitsune_mlir.dialects.tile_records import Buffer
from kitsune_mlir.dialects.verify import walk

__all__ = ["Access", "Memory", "accesses", "is_pure", "root_of", "writes"]

_VIEWS = frozenset(
    "memref." + name
    for name in (
        "subview",
        "cast",
        "memory_space_cast",
        "expand_shape",
        "collapse_shape",
        "reinterpret_cast",
        "transpose",
    )
)
_SILENT = frozenset(("memref.alloc", "memref.alloca", "memref.dealloc", "memref.get_global", "memref.dim", "memref.view"))
_PURE_DIALECTS = ("arith.", "math.", "index.", "affine.", "complex.", "vector.", "ub.")


@dataclasses.dataclass(frozen=True, eq=False)
class Access:
    """One load, store or atomic.

    Attributes:
        op: the operation.
        kind: "read", "write", "atomic" (reads and writes; atomics on the same place commute) or "unknown".
        memref: what is indexed.
        indices: one a dimension; empty when the kind is "unknown".
    """

    op: ir.Operation
    kind: str
    memref: ir.Value
    indices: tuple[ir.Value, ...]

    @property
    def reads(self) -> bool:
        return self.kind != "write"

    @property
    def writes(self) -> bool:
        return self.kind != "read"


def root_of(value: ir.Value) -> ir.Value | None:
    """The function argument or allocation that a memref is a view of; None if that depends on run-time control flow."""
    while not isinstance(value.owner, ir.Block):
        op = value.owner
        if op.name not in _VIEWS:
            return value if op.name in _SILENT else None
        value = op.operands[0]
    return value if value.owner.owner.operation.name == "func.func" else None


def _access(op: ir.Operation) -> Iterator[Access]:
    name = op.name
    if name == "memref.load":
        yield Access(op, "read", op.operands[0], tuple(op.operands)[1:])
    elif name == "memref.store":
        yield Access(op, "write", op.operands[1], tuple(op.operands)[2:])
    elif name == "memref.atomic_rmw":
        yield Access(op, "atomic", op.operands[1], tuple(op.operands)[2:])
    elif name == "memref.generic_atomic_rmw":
        yield Access(op, "atomic", op.operands[0], tuple(op.operands)[1:])
    elif name not in _VIEWS and name not in _SILENT and not name.startswith("scf."):
        for operand in op.operands:
            if isinstance(operand.type, ir.MemRefType):
                yield Access(op, "unknown", operand, ())


def accesses(op: ir.Operation) -> list[Access]:
    """Every access made by `op` and what it contains."""
    found = list(_access(op))
    for inner in walk(op):
        found += _access(inner)
    return found


def writes(op: ir.Operation) -> bool:
    """Whether `op`, or something inside, writes to memory."""
    return any(access.writes for access in accesses(op))


def is_pure(op: ir.Operation) -> bool:
    """Whether `op` (which holds no region) only computes: running it twice, elsewhere or in every thread is harmless."""
    return op.name in _VIEWS or op.name.startswith(_PURE_DIALECTS) or op.name in ("memref.get_global", "memref.dim")


class Memory:
    """Decides whether two memrefs can overlap.

    Args:
        buffers: what the function's memref arguments are, by argument value.
        placed: where allocations are, as (space, first byte, end); without it, different allocations never meet.
    """

    def __init__(self, buffers: dict[ir.Value, Buffer], placed: Callable[[ir.Value], tuple[str, int, int]] | None = None):
        self.buffers = buffers
        self.placed = placed

    def meet(self, a: ir.Value, b: ir.Value) -> bool:
        """Whether two memrefs may share a byte."""
        first, second = root_of(a), root_of(b)
        if first is None or second is None or first == second:
            return True
        if first in self.buffers and second in self.buffers:
            one, two = self.buffers[first], self.buffers[second]
            return one.argument == two.argument and one.offset < two.offset + two.bytes and two.offset < one.offset + one.bytes
        if first in self.buffers or second in self.buffers or self.placed is None:
            return False
        space, start, end = self.placed(first)
        other_space, other_start, other_end = self.placed(second)
        return space == other_space and start < other_end and other_start < end

    def conflict(self, a: Access, b: Access) -> bool:
        """Whether the order of two accesses matters, indices aside."""
        if not (a.writes or b.writes) or (a.kind == b.kind == "atomic"):
            return False
        return self.meet(a.memref, b.memref)
