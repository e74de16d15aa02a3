"""Arithmetic on values as Python operators, so that the formulas of `math_*.py` read as formulas.

A `Number` is a scalar or a vector of f32, f64, i32 or i64; a Python number next to it becomes a constant of its type.
Nothing here may be reordered or contracted by LLVM: the operations carry no fast-math flags.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch_mlir import ir
from torch_mlir.dialects import arith, math, scf, vector

from kitsune_mlir.codegen.host import ops

__all__ = ["Number", "choose", "fused", "horner", "per_lane"]


class Number:
    """A value with arithmetic operators. Comparisons give Numbers of `i1`."""

    def __init__(self, value: ir.Value):
        self.value = value

    @property
    def lanes(self) -> int | None:
        """Number of lanes; None for a scalar."""
        return ir.VectorType(self.value.type).shape[0] if ops.is_vector(self.value) else None

    @property
    def element(self) -> ir.Type:
        """Type of one lane."""
        return self.value.type.element_type if ops.is_vector(self.value) else self.value.type

    def of(self, element: ir.Type) -> ir.Type:
        """This number's shape with another element type."""
        return element if self.lanes is None else ir.VectorType.get([self.lanes], element)

    def like(self, other: Number | float | int) -> Number:
        """A constant of this number's type."""
        if isinstance(other, Number):
            return other
        attribute = (
            ir.FloatAttr.get(self.element, float(other))
            if isinstance(self.element, ir.FloatType)
            else ir.IntegerAttr.get(self.element, int(other))
        )
        if self.lanes is not None:
            attribute = ir.DenseElementsAttr.get_splat(self.value.type, attribute)
        return Number(arith.constant(self.value.type, attribute))

    def _float(self) -> bool:
        return isinstance(self.element, ir.FloatType)

    def __add__(self, other: Number | float) -> Number:
        other = self.like(other)
        return Number((arith.addf if self._float() else arith.addi)(self.value, other.value))

    def __sub__(self, other: Number | float) -> Number:
        other = self.like(other)
        return Number((arith.subf if self._float() else arith.subi)(self.value, other.value))

    def __rsub__(self, other: float) -> Number:
        return self.like(other) - self

    def __mul__(self, other: Number | float) -> Number:
        other = self.like(other)
        return Number((arith.mulf if self._float() else arith.muli)(self.value, other.value))

    __radd__ = __add__
    __rmul__ = __mul__

    def __truediv__(self, other: Number | float) -> Number:
        return Number(arith.divf(self.value, self.like(other).value))

    def __rtruediv__(self, other: float) -> Number:
        return self.like(other) / self

    def __neg__(self) -> Number:
        return Number(arith.negf(self.value))

    def __and__(self, other: Number | int) -> Number:
        return Number(arith.andi(self.value, self.like(other).value))

    def __or__(self, other: Number | int) -> Number:
        return Number(arith.ori(self.value, self.like(other).value))

    def __xor__(self, other: Number | int) -> Number:
        return Number(arith.xori(self.value, self.like(other).value))

    def __lshift__(self, bits: int) -> Number:
        return Number(arith.shli(self.value, self.like(bits).value))

    def __rshift__(self, bits: int) -> Number:
        """Arithmetic shift."""
        return Number(arith.shrsi(self.value, self.like(bits).value))

    def compare(self, predicate: str, other: Number | float) -> Number:
        """`olt`, `ogt`, `oeq`, `une`, `uno`, ... for floats; `eq`, `ne`, `slt`, ... for integers."""
        other = self.like(other)
        if self._float():
            return Number(arith.cmpf(arith.CmpFPredicate[predicate.upper()], self.value, other.value))
        return Number(arith.cmpi(arith.CmpIPredicate[predicate], self.value, other.value))

    def __lt__(self, other: Number | float) -> Number:
        return self.compare("olt", other)

    def __gt__(self, other: Number | float) -> Number:
        return self.compare("ogt", other)

    def abs(self) -> Number:
        """Absolute value."""
        return Number(math.absf(self.value))

    def floor(self) -> Number:
        """Largest integer not above."""
        return Number(math.floor(self.value))

    def sign_of(self, other: Number) -> Number:
        """This magnitude with the sign of `other`."""
        return Number(math.copysign(self.value, other.value))

    def bits(self) -> Number:
        """The bits of a float as an integer, or the float that an integer's bits are."""
        width = self.element.width
        to = ir.IntegerType.get_signless(width) if self._float() else (ir.F32Type.get() if width == 32 else ir.F64Type.get())
        return Number(arith.bitcast(self.of(to), self.value))

    def double(self) -> Number:
        """f32 to f64, exactly."""
        return Number(arith.extf(self.of(ir.F64Type.get()), self.value))

    def single(self) -> Number:
        """f64 rounded to f32."""
        return Number(arith.truncf(self.of(ir.F32Type.get()), self.value))

    def to_float(self) -> Number:
        """An i32 (or i64) as f32 (or f64)."""
        return Number(arith.sitofp(self.of(ir.F32Type.get() if self.element.width == 32 else ir.F64Type.get()), self.value))

    def low_half(self) -> Number:
        """The low 32 bits of an i64."""
        return Number(arith.trunci(self.of(ir.IntegerType.get_signless(32)), self.value))

    def any(self) -> ir.Value:
        """Of an `i1`: whether it is true in some lane."""
        if self.lanes is None:
            return self.value
        return vector.reduction(self.element, ir.Attribute.parse("#vector.kind<or>"), self.value)


def fused(a: Number, b: Number | float, c: Number | float) -> Number:
    """a * b + c, rounded once."""
    return Number(math.fma(a.value, a.like(b).value, a.like(c).value))


def horner(x: Number, coefficients: Sequence[float]) -> Number:
    """The polynomial with `coefficients[i]` for x^i."""
    result = x.like(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        result = fused(result, x, c)
    return result


def choose(condition: Number, yes: Number | float, no: Number | float) -> Number:
    """`yes` where `condition` holds, else `no`; at least one of them is a Number."""
    yes = yes if isinstance(yes, Number) else no.like(yes)  # type: ignore[union-attr]
    return Number(arith.select(condition.value, yes.value, yes.like(no).value))


def per_lane(condition: ir.Value, fast: Number, x: Number, function) -> Number:
    """`fast`, or if the scalar `condition` holds, `function` of each lane of `x` (one after the other, in a loop)."""
    branch = scf.IfOp(condition, [fast.value.type], has_else=True)
    with ir.InsertionPoint(branch.then_block):
        if x.lanes is None:
            result = function(x.value)
        else:
            count = x.lanes

            def lane(counter, carried):
                got = function(vector.extract(x.value, [ops.value_of(counter)], [ir.ShapedType.get_dynamic_size()]))
                place = [ops.value_of(counter)]
                return [vector.insert(got, carried[0], place, [ir.ShapedType.get_dynamic_size()])]

            (result,) = ops.loop(0, count, 1, [fast.value], lane)
        scf.YieldOp([result])
    with ir.InsertionPoint(branch.else_block):
        scf.YieldOp([fast.value])
    return Number(branch.operation.results[0])
