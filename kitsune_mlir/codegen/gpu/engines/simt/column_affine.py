"""Products with and sums of what depends on columns alone, made one fma: (x * a + b) * c is x * (a * c) + b * c.

A layer normalization's gain and bias, and what its result is multiplied by, are numbers of the column. A block of the simt
engine makes the two coefficients once for all its rows (`simt.hoisted`), in f32, where values between operations may have more
bits than the program says. Each element then takes one fma, and two numbers that need no unpacking.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Mapping

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.memory import load, offset, store
from kitsune_mlir.codegen.gpu.emit.value import Value, unpack, vector
from kitsune_mlir.codegen.gpu.engines.simt.affine_index import Index, Linear, at, emit, scale
from kitsune_mlir.codegen.gpu.engines.simt.scalar_body import Lanes
from kitsune_mlir.dialects.deep import postorder

__all__ = ["QUAD", "Fold", "Line", "Term", "evaluate", "find_folds", "leaves"]

LEAST_OPERATIONS = 3
"""Sums and products that one fma stands for: two are an fma already."""

QUAD = 4
"""Numbers of f32 in the widest access."""

Term = ir.Value | tuple[str, "Term", "Term"]
"""A coefficient: a value of the body that depends on columns alone, or the "mul" or "add" of two."""


@dataclasses.dataclass(frozen=True)
class Fold:
    """`value` is base * factor + addend.

    Attributes:
        op: whose body has the value.
        value: the last of a chain of operations.
        base: what the chain begins with, which depends on rows.
    """

    op: ir.Operation
    value: ir.Value
    base: ir.Value
    factor: Term
    addend: Term


@dataclasses.dataclass(frozen=True)
class _Form:
    base: ir.Value
    factor: Term | None = None
    addend: Term | None = None
    operations: int = 0


def find_folds(op: ir.Operation, columns: Mapping[ir.Value, object]) -> list[Fold]:
    """Chains of a body that are worth an fma of their own.

    Args:
        columns: values of the body that depend on columns alone.
    """
    forms: dict[ir.Value, _Form] = {}
    longer: set[ir.Value] = set()
    for inner in (o.operation for o in op.regions[0].blocks[0].operations):
        if len(inner.results) != 1 or inner.results[0] in columns:
            continue
        result, operands = inner.results[0], list(inner.operands)
        if inner.name in ("arith.extf", "arith.truncf") and _only_use(operands[0], forms):
            forms[result] = forms[operands[0]]
            longer.add(operands[0])
        if inner.name not in ("arith.mulf", "arith.addf"):
            continue
        own, other = operands if operands[1] in columns else reversed(operands)
        if other not in columns or own in columns or _is_constant(other):
            continue
        form = forms[own] if _only_use(own, forms) else _Form(own)
        longer.add(own)
        forms[result] = _extended(form, inner.name, other)
    whole = [(value, form) for value, form in forms.items() if value not in longer and form.operations >= LEAST_OPERATIONS]
    return [Fold(op, v, f.base, f.factor, f.addend) for v, f in whole if f.factor is not None and f.addend is not None]


def _only_use(value: ir.Value, forms: Container[ir.Value]) -> bool:
    return value in forms and len(list(value.uses)) == 1


def _is_constant(value: ir.Value) -> bool:
    return not isinstance(value.owner, ir.Block) and value.owner.name == "arith.constant"


def _extended(form: _Form, name: str, other: ir.Value) -> _Form:
    factor, addend = form.factor, form.addend
    if name == "arith.addf":
        addend = other if addend is None else ("add", addend, other)
    else:
        factor = other if factor is None else ("mul", factor, other)
        addend = None if addend is None else ("mul", addend, other)
    return _Form(form.base, factor, addend, form.operations + 1)


def leaves(term: Term) -> list[ir.Value]:
    """The values that a coefficient is made of."""
    return [part for part in postorder([term], _parts, id) if not isinstance(part, tuple)]


def evaluate(term: Term, values: Callable[[ir.Value], Lanes]) -> Lanes:
    """A coefficient at the points of a vector."""
    made: dict[int, Lanes] = {}
    for part in postorder([term], _parts, id):
        if not isinstance(part, tuple):
            made[id(part)] = values(part)
            continue
        a, b = made[id(part[1])], made[id(part[2])]
        points = [(a[e if len(a) > 1 else 0], b[e if len(b) > 1 else 0]) for e in range(max(len(a), len(b)))]
        made[id(part)] = [x * y if part[0] == "mul" else x + y for x, y in points]
    return made[id(term)]


def _parts(term: Term) -> tuple[Term, ...]:
    return term[1:] if isinstance(term, tuple) else ()


@dataclasses.dataclass(frozen=True)
class Line:
    """A coefficient's numbers in shared memory, one a column, in f32.

    Vectors of 8 columns are read by two accesses. So that each of these reads what is side by side, for all lanes of a warp,
    the first four columns of all vectors lie in the first half, the others in the second one.

    Attributes:
        start: bytes from the table's beginning.
        count: columns, a multiple of `width`.
        width: columns of a vector that is read, 4 or 8.
    """

    start: int
    count: int
    width: int

    @property
    def bytes(self) -> int:
        return self.count * 4

    def read(self, table: Value, index: Index) -> Lanes:
        """The numbers of a vector's columns."""
        assert isinstance(index, Linear) and index.lane == 1 and index.multiple % self.width == 0
        parts = self.width // QUAD
        moved = scale(at(index, 0), 4 // parts)
        assert isinstance(moved, Linear)
        place = offset(table, emit(dataclasses.replace(moved, const=0)))
        found: Lanes = []
        for part in range(parts):
            found += unpack(load(offset(place, self.start + moved.const + part * (self.bytes // parts)), "vector<4xf32>"))
        return found

    def write(self, table: Value, first: Value, numbers: Lanes) -> None:
        """Write the numbers of some columns, a multiple of 4 from `first`, which is one, too."""
        parts, quad = self.width // QUAD, first // QUAD
        for number in range(0, len(numbers), QUAD):
            mine = quad + number // QUAD if number else quad
            place = (mine % parts) * (self.bytes // parts) + (mine // parts) * 16
            store(vector(numbers[number : number + QUAD]), offset(table, place + self.start), 16)
