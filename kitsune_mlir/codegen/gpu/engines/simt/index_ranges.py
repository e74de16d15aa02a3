"""Integer operations on indices whose ranges are known: what the ranges decide costs no instruction, the rest takes 32 bits.

A padded image is read at `min(max(w - 1, 0), 111)`: of a vector that begins at a multiple of eight only the first point can be
outside. The others stay sums of known things, so that memory sees neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.value import Value, constant, maximum, minimum, select
from kitsune_mlir.codegen.gpu.engines.simt.affine_index import Atom, Index, Linear, at, divmod_index, emit, joined, scale

__all__ = ["choose_index", "compare", "int32_range", "on_indices"]

_LIMIT = 1 << 31
_QUOTIENTS = ("arith.divsi", "arith.divui", "arith.floordivsi")
_REMAINDERS = ("arith.remsi", "arith.remui")
_EXTREMES = ("arith.maxsi", "arith.minsi")


def int32_range(index: Linear) -> tuple[int, int] | None:
    """Smallest and largest value of an index without lane, if it is known to fit 32 bits."""
    span = index.range(1)
    return span if span is not None and -_LIMIT <= span[0] and span[1] < _LIMIT else None


def on_indices(name: str, operands: Sequence[Index], width: int) -> Index | None:
    """The result of an integer operation (its MLIR name) on indices, or None where their ranges say too little."""
    if name in _QUOTIENTS + _REMAINDERS:
        return _divided(name, operands[0], operands[1], width)
    if name in _EXTREMES:
        return _each(lambda a, b: _extreme(name == "arith.maxsi", a, b), operands, width)
    if name == "math.absi":
        return _each(_absolute, operands, width)
    return None


def compare(predicate: int, operands: Sequence[Index], width: int) -> list[Value] | None:
    """The truth values of `arith.cmpi`, one a point or one for all; None where ranges are not known."""
    found: list[Value] = []
    for e in range(width if any(map(_moves, operands)) else 1):
        a, b = (at(index, e) for index in operands)
        first, second = int32_range(a), int32_range(b)
        if first is None or second is None:
            return None
        known = _decided(predicate, first, second)
        if known is None:
            left, right = emit(a), emit(b)
            found.append(_COMPARED[predicate](left, right))
        else:
            found.append(constant(known, "i1"))
    return found


def choose_index(conditions: Sequence[Value], first: Index, second: Index, width: int) -> Index | None:
    """`arith.select` of indices; None where ranges are not known."""
    points = max(len(conditions), width if _moves(first) or _moves(second) else 1)
    parts = []
    for e in range(points):
        condition, a, b = conditions[e if len(conditions) > 1 else 0], at(first, e), at(second, e)
        known = _constant(condition)
        if known is not None:
            parts.append(a if known else b)
            continue
        spans = int32_range(a), int32_range(b)
        if spans[0] is None or spans[1] is None:
            return None
        parts.append(_opaque(select(condition, emit(a), emit(b)), (a, b), max(spans[0][1], spans[1][1]), spans))
    return _together(parts)


def _each(function: Callable[..., Linear | None], operands: Sequence[Index], width: int) -> Index | None:
    parts = []
    for e in range(width if any(map(_moves, operands)) else 1):
        made = function(*(at(index, e) for index in operands))
        if made is None:
            return None
        parts.append(made)
    return _together(parts)


def _moves(index: Index) -> bool:
    return isinstance(index, tuple) or bool(index.lane)


def _together(parts: list[Linear]) -> Index:
    return parts[0] if len(parts) == 1 else joined(tuple(parts))


def _divided(name: str, index: Index, divisor: Index, width: int) -> Index | None:
    if not isinstance(divisor, Linear) or divisor.terms or divisor.lane or not 0 < divisor.const < _LIMIT:
        return None
    for e in range(width if _moves(index) else 1):
        span = int32_range(at(index, e))
        if span is None or span[0] < 0:
            return None
    return divmod_index(index, divisor.const, width)[name in _REMAINDERS]


def _extreme(largest: bool, a: Linear, b: Linear) -> Linear | None:
    first, second = int32_range(a), int32_range(b)
    if first is None or second is None:
        return None
    if first[0] >= second[1]:
        return a if largest else b
    if second[0] >= first[1]:
        return b if largest else a
    value = (maximum if largest else minimum)(emit(a), emit(b))
    low = (max if largest else min)(first[0], second[0])
    high = (max if largest else min)(first[1], second[1])
    return _opaque(value, (a, b), high, ((low, high),))


def _absolute(a: Linear) -> Linear | None:
    span = int32_range(a)
    if span is None or -_LIMIT in span:
        return None
    if span[0] >= 0:
        return a
    negative = scale(a, -1)
    assert isinstance(negative, Linear)
    if span[1] <= 0:
        return negative
    return _opaque(maximum(emit(a), emit(negative)), (a,), max(-span[0], span[1]), ((0, 0),))


def _opaque(value: Value, sources: Sequence[Linear], high: int, spans: Sequence[tuple[int, int] | None]) -> Linear:
    """A number made of others: a multiple of what they are multiples of, and bounded if it is not negative."""
    lowest = min((span[0] for span in spans if span is not None), default=-1)
    multiple = math.gcd(*(source.multiple for source in sources))
    return Linear.of(Atom(value, multiple, high + 1 if lowest >= 0 else None))


def _constant(value: Value) -> bool | None:
    """What a truth value is, if it is known."""
    owner = value.ir.owner
    if isinstance(owner, ir.Block) or owner.name != "arith.constant":
        return None
    return bool(ir.IntegerAttr(owner.attributes["value"]).value)


def _decided(predicate: int, a: tuple[int, int], b: tuple[int, int]) -> bool | None:
    """What the ranges of two numbers say of their order."""
    if predicate in _NEGATED:
        other = _decided(_NEGATED[predicate], a, b)
        return None if other is None else not other
    if predicate in _TURNED:
        return _decided(_TURNED[predicate], b, a)
    if predicate == _EQ:
        if a == b and a[0] == a[1]:
            return True
        return False if a[1] < b[0] or b[1] < a[0] else None
    if predicate == _ULT:
        if b[0] < 0 or a[0] < 0 <= a[1]:
            return None
        if a[1] < 0:
            return False  # as unsigned numbers negative ones are the largest
    if a[1] < b[0]:
        return True
    return False if a[0] >= b[1] else None


_EQ, _NE, _SLT, _SLE, _SGT, _SGE, _ULT, _ULE, _UGT, _UGE = range(10)
_NEGATED = {_NE: _EQ, _SGE: _SLT, _SLE: _SGT, _UGE: _ULT, _ULE: _UGT}
_TURNED = {_SGT: _SLT, _UGT: _ULT}
_COMPARED: dict[int, Callable[[Value, Value], Value]] = {
    _EQ: lambda a, b: a == b,
    _NE: lambda a, b: a != b,
    _SLT: lambda a, b: a < b,
    _SLE: lambda a, b: a <= b,
    _SGT: lambda a, b: a > b,
    _SGE: lambda a, b: a >= b,
    _ULT: lambda a, b: a.below(b),
    _ULE: lambda a, b: ~b.below(a),
    _UGT: lambda a, b: b.below(a),
    _UGE: lambda a, b: ~a.below(b),
}
