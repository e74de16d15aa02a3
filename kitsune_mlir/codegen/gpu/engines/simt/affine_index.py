"""Indices of the simt engine: sums of run-time numbers with known multiples and bounds.

A thread works on *vectors*: `width` neighbouring points, numbered by the lane variable e = 0 .. width - 1. A coordinate of
a vector's points is a `Linear` in e, or one `Linear` a point where it is not linear (`Scattered`). Because what the numbers
are multiples of is tracked, an access knows whether its points are neighbours in memory and how they are aligned; because
quotients and remainders remember what they came from, `i / n * n + i % n` is `i` again, so that a tile of whole rows is
seen to be contiguous.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.value import Value, cast, constant, i32, maximum, minimum
from kitsune_mlir.errors import UnsupportedError

__all__ = [
    "Atom",
    "Index",
    "Linear",
    "Scattered",
    "add",
    "affine",
    "at",
    "clamp",
    "clamped",
    "divmod_index",
    "emit",
    "joined",
    "scale",
]

_serial = itertools.count()


class Atom:
    """A number known at run time only.

    Attributes:
        value: i32.
        multiple: it is a multiple of this.
        bound: it is in [0, bound); None if nothing is known.
        origin: (x, n, "div" or "mod") if it is x / n or x % n.
    """

    __slots__ = ("bound", "multiple", "origin", "serial", "value")

    def __init__(self, value: Value, multiple: int = 1, bound: int | None = None, origin: tuple | None = None):
        self.value, self.multiple, self.bound, self.origin = value, max(1, multiple), bound, origin
        self.serial = next(_serial)


@dataclasses.dataclass(frozen=True)
class Linear:
    """The sum of `coefficient * atom` over `terms`, of `lane * e`, and of `const`."""

    terms: tuple[tuple[Atom, int], ...] = ()
    lane: int = 0
    const: int = 0

    @staticmethod
    def of(atom: Atom) -> Linear:
        return Linear(((atom, 1),))

    @property
    def multiple(self) -> int:
        """What the value for e = 0 is a multiple of; 0 if it is 0."""
        return math.gcd(self.const, *(coefficient * atom.multiple for atom, coefficient in self.terms))

    def range(self, width: int) -> tuple[int, int] | None:
        """Smallest and largest value over all e < `width`; None if some atom has no bound."""
        low = high = self.const
        spans = [(coefficient, atom.bound, atom.multiple) for atom, coefficient in self.terms] + [(self.lane, width, 1)]
        for coefficient, bound, multiple in spans:
            if bound is None:
                return None
            reach = coefficient * ((bound - 1) // multiple * multiple)
            low, high = low + min(0, reach), high + max(0, reach)
        return low, high


Scattered = tuple[Linear, ...]
"""One index without lane a point."""

Index = Linear | Scattered


def at(index: Index, e: int) -> Linear:
    """The index of point `e` of the vector."""
    if isinstance(index, tuple):
        return index[e]
    return dataclasses.replace(index, lane=0, const=index.const + index.lane * e) if index.lane else index


def _pointwise(function, a: Index, *others: Index) -> Index:
    """`function` on linears; point by point if one of the indices is scattered."""
    indices = (a, *others)
    widths = {len(index) for index in indices if isinstance(index, tuple)}
    if not widths:
        return function(*indices)
    (width,) = widths
    return joined(tuple(function(*(at(index, e) for index in indices)) for e in range(width)))


def joined(parts: Scattered) -> Index:
    """A single linear index for points that turn out to lie at equal distances."""
    first = parts[0]
    step = parts[1].const - first.const
    for e, part in enumerate(parts):
        if part.terms != first.terms or part.const != first.const + e * step:
            return parts
    return Linear(first.terms, step, first.const)


def add(a: Index, b: Index | int) -> Index:
    """The sum."""
    return _pointwise(_add, a, Linear(const=b) if isinstance(b, int) else b)


def _add(a: Linear, b: Linear) -> Linear:
    terms = dict(a.terms)
    for atom, coefficient in b.terms:
        terms[atom] = terms.get(atom, 0) + coefficient
    return _combine(Linear(_sorted(terms), a.lane + b.lane, a.const + b.const))


def _sorted(terms: dict[Atom, int]) -> tuple[tuple[Atom, int], ...]:
    return tuple(sorted(((a, c) for a, c in terms.items() if c), key=lambda term: term[0].serial))


def _combine(index: Linear) -> Linear:
    """Replace c * (x % n) + c * n * (x / n) by c * x."""
    terms = dict(index.terms)
    for atom, coefficient in index.terms:
        if atom.origin is None or atom.origin[2] != "mod":
            continue
        source, divisor, _ = atom.origin
        for other, factor in index.terms:
            if other.origin == (source, divisor, "div") and factor == coefficient * divisor:
                del terms[atom], terms[other]
                rest = Linear(_sorted(terms), index.lane, index.const)
                return _add(rest, _scale(source, coefficient))
    return index


def scale(a: Index, factor: int) -> Index:
    """The product with a number."""
    return _pointwise(lambda x: _scale(x, factor), a)


def _scale(a: Linear, factor: int) -> Linear:
    if factor == 0:
        return Linear()
    return Linear(tuple((atom, c * factor) for atom, c in a.terms), a.lane * factor, a.const * factor)


def emit(index: Linear, type: str = "i32") -> Value:
    """The value of an index without lane, as `type` ("i32", "i64")."""
    total: Value | None = None
    for atom, coefficient in index.terms:
        value = atom.value if type == "i32" else cast(atom.value, type)
        part = value if coefficient == 1 else value * coefficient
        total = part if total is None else total + part
    if total is None:
        return constant(index.const, type)
    return total + index.const if index.const else total


def divmod_index(index: Index, divisor: int, width: int) -> tuple[Index, Index]:
    """Quotient and remainder of a non-negative index by a positive number."""
    if divisor == 1:
        return index, Linear()
    if isinstance(index, tuple):
        known: dict[tuple, Linear] = {}
        pairs = [_divmod_point(part, divisor, known) for part in index]
        return joined(tuple(q for q, _ in pairs)), joined(tuple(r for _, r in pairs))
    found = _divmod(index, divisor, width)
    if found is not None:
        return found
    return divmod_index(tuple(at(index, e) for e in range(width)), divisor, width)


def _divmod_point(index: Linear, divisor: int, known: dict[tuple, Linear]) -> tuple[Linear, Linear]:
    whole = [(a, c) for a, c in index.terms if c % divisor and c * a.multiple % divisor == 0]
    key = tuple(whole)
    if key not in known:
        known[key] = _exact_quotients(whole, divisor)
    rest = dataclasses.replace(index, terms=tuple(term for term in index.terms if term not in whole))
    if any(a.bound is None for a, _ in whole):
        rest = index  # they may be negative
    found = _divmod(rest, divisor, 1)
    assert found is not None  # a single point has one quotient
    return _add(known[key] if rest is not index else Linear(), found[0]), found[1]


def _exact_quotients(terms: Sequence[tuple[Atom, int]], divisor: int) -> Linear:
    """The quotient of terms that are multiples of a divisor though their factors are not."""
    exact = []
    for atom, factor in terms:
        common = math.gcd(factor, divisor)
        bound = atom.bound if atom.bound is None else (atom.bound - 1) // (divisor // common) + 1
        part = Atom(atom.value // (divisor // common), atom.multiple // (divisor // common), bound)
        exact.append((part, factor // common))
    return Linear(tuple(exact))


def _divmod(index: Linear, divisor: int, width: int) -> tuple[Linear, Linear] | None:
    """None if the points of a vector have different quotients."""
    whole = {atom: c // divisor for atom, c in index.terms if c % divisor == 0}
    rest = {atom: c for atom, c in index.terms if c % divisor}
    lane_whole = index.lane // divisor if index.lane % divisor == 0 else 0
    lane_rest = index.lane if index.lane % divisor else 0
    quotient = Linear(_sorted(whole), lane_whole, index.const // divisor)
    remainder = Linear(_sorted(rest), lane_rest, index.const % divisor)
    span = remainder.range(width)
    if span is not None and 0 <= span[0] and span[1] < divisor:
        return quotient, remainder
    if lane_rest:
        # The lanes stay inside one period if base and period are multiples of all the lanes together.
        reach = lane_rest * width
        if lane_rest < 0 or divisor % reach or remainder.multiple % reach:
            return None
    base = dataclasses.replace(remainder, lane=0)
    value = emit(base)
    span = base.range(1)
    bound = span[1] // divisor + 1 if span is not None else None
    upper = Atom(value // divisor, 1, bound, (base, divisor, "div"))
    lower = Atom(value % divisor, math.gcd(base.multiple, divisor), divisor, (base, divisor, "mod"))
    return _add(quotient, Linear.of(upper)), Linear(((lower, 1),), lane_rest, 0)


def clamp(index: Linear, last: int) -> Linear:
    """min(index, last) for an index without lane."""
    span = index.range(1)
    if span is not None and span[1] <= last:
        return index
    return Linear.of(Atom(minimum(emit(index), last), math.gcd(index.multiple, last), last + 1))


def affine(expression: ir.AffineExpr, loops: list[Index], width: int) -> Index:
    """An affine expression at the given loop indices.

    Raises:
        UnsupportedError: it has symbols or a ceiling division.
    """
    if isinstance(expression, ir.AffineDimExpr):
        return loops[expression.position]
    if isinstance(expression, ir.AffineConstantExpr):
        return Linear(const=expression.value)
    if isinstance(expression, ir.AffineAddExpr):
        return add(affine(expression.lhs, loops, width), affine(expression.rhs, loops, width))
    if isinstance(expression, ir.AffineMulExpr):
        for a, b in ((expression.lhs, expression.rhs), (expression.rhs, expression.lhs)):
            if isinstance(b, ir.AffineConstantExpr):
                return scale(affine(a, loops, width), b.value)
    if isinstance(expression, ir.AffineFloorDivExpr | ir.AffineModExpr) and isinstance(expression.rhs, ir.AffineConstantExpr):
        pair = divmod_index(affine(expression.lhs, loops, width), expression.rhs.value, width)
        return pair[0] if isinstance(expression, ir.AffineFloorDivExpr) else pair[1]
    raise UnsupportedError("affine map", "sums, multiples, quotients and remainders of loops", str(expression))


def opaque(values: list[Value]) -> Index:
    """Numbers computed by the program, one for all points or one a point, as an index."""
    indices = tuple(Linear.of(Atom(cast(value, "i32"), 1, None)) for value in values)
    return indices[0] if len(indices) == 1 else indices


def zero() -> Value:
    return i32(0)


def clamped(index: Linear, last: int) -> Linear:
    """Brought into [0, last]."""
    if (span := index.range(1)) is not None and span[0] >= 0:
        return clamp(index, last)
    return Linear.of(Atom(minimum(maximum(emit(index), 0), last), math.gcd(index.multiple, last), last + 1))


def with_units(coordinates: Sequence[Index], shape: Sequence[int], sizes: Sequence[int]) -> list[Index]:
    """Coordinates of a shape, as coordinates of `sizes`, which may have further extents of 1.

    Raises:
        UnsupportedError: `sizes` is not the shape with extents of 1 added.
    """
    if len(shape) == len(sizes):
        return list(coordinates)
    moving = [index for index, extent in zip(coordinates, shape, strict=True) if extent != 1]
    if sum(size != 1 for size in sizes) != len(moving):
        raise UnsupportedError("tensor", f"a window of {list(sizes)}", list(shape))
    return [moving.pop(0) if size != 1 else Linear() for size in sizes]
