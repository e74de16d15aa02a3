"""Functions of f32 that are cheaper than libdevice's, for results that are rounded to 16 bits, and for a softmax's numbers.

A task that reads and writes 16-bit floats has about 25 instructions an element before it is slower than memory, and
libdevice's functions, exact to an ulp or two of f32, take 8 (exp) to 30 (erf, tanh) each. Largest errors here: exp and the
reciprocal 1e-6 of the value (for |x| < 20; the error of exp grows with |x|), division 2 ulp, tanh 5e-4, erf 8e-4 absolute;
half an ulp of bf16 is 2e-3. The exponential of x - max(x) is good to 1e-7 of the largest one, an ulp of f32. Results that would
be denormal become 0. Infinities and NaN come out as IEEE 754 says.
"""

from __future__ import annotations

from collections.abc import Callable

from torch_mlir import ir
from torch_mlir.dialects import math, nvvm

from kitsune_mlir.codegen.gpu.value import Value, as_type, constant, fma, maximum, select, wrap

__all__ = ["APPROXIMATIONS", "divide_by_shared", "exp_of_change", "exp_of_difference", "reciprocal"]

_LOG2_E = 1.4426950408889634

_ERF = (1.12966788, 0.09980357)
"""erf(x) is tanh(a x + b x^3), fitted for the least largest error (`test_simt_math.py`): 2.8e-4."""

_FAR = 2.0**126
_SMALL, _LIFT = 2.0**-64, 2.0**64


def _exp2(x: Value) -> Value:
    return wrap(nvvm.ex2(x.ir, ftz=True, results=[as_type("f32")]))


def _exp(x: Value) -> Value:
    return _exp2(x * _LOG2_E)


def exp_of_difference(difference: Value) -> Value:
    """exp(x - m) of a value made by arith.subf, m the largest x of a row: one fma and the hardware's power of two.

    The product of m and log2(e) is rounded once for all x of the row, so that the error is a common factor, which the division
    by the sum takes out. Where it would overflow, x and m are so large that they are equal or exp(x - m) is 0 (or infinite),
    in powers of two as in those of e.
    """
    owner = difference.ir.owner
    if isinstance(owner, ir.Block) or owner.name != "arith.subf":
        return _exp(difference)
    x, m = (wrap(operand) for operand in owner.operands)
    factor = select(maximum(m, -m) < _FAR, constant(_LOG2_E, "f32"), 1.0)
    return _exp2(wrap(math.fma(x.ir, factor.ir, (-(m * factor)).ir)))


def exp_of_change(old: Value, new: Value) -> Value:
    """exp(old - new) of two running maxima: 1 where they are equal, infinite ones included."""
    return select(old == new, constant(1.0, "f32"), _exp(old - new))


def _erf(x: Value) -> Value:
    # A polynomial that is as good takes three times as many instructions.
    for y, factor in _operands(x, "arith.mulf"):  # of y times a constant, as in GELU: into the coefficients with it
        return _tanh((y * y * (_ERF[1] * factor**3) + _ERF[0] * factor) * y)
    return _tanh((x * x * _ERF[1] + _ERF[0]) * x)


def _multiply(a: Value, b: Value) -> Value:
    """a * b; a * (1 + y) is one fma, and has one rounding less."""
    for factor, sum_ in ((a, b), (b, a)):
        for y, number in _operands(sum_, "arith.addf"):
            if number == 1.0:
                return fma(factor, y, factor)
    return a * b


def _operands(value: Value, name: str) -> list[tuple[Value, float]]:
    """The operand that is no constant and the one that is, if a value is made of these by the operation `name`; else none."""
    owner = value.ir.owner
    if isinstance(owner, ir.Block) or owner.name != name:
        return []
    for one, other in (owner.operands, reversed(list(owner.operands))):
        if not isinstance(other.owner, ir.Block) and other.owner.name == "arith.constant":
            return [(wrap(one), ir.FloatAttr(other.owner.attributes["value"]).value)]
    return []


def _sqrt(x: Value) -> Value:
    return wrap(nvvm.sqrt_approx(x.ir, ftz=True, results=[as_type("f32")]))


def reciprocal(x: Value) -> Value:
    """1 / x, 1 ulp."""
    return wrap(nvvm.rcp_approx_ftz_f(x.ir, results=[as_type("f32")]))


def _divide(a: Value, b: Value) -> Value:
    return wrap(nvvm.divf(a.ir, b.ir, full=True, results=[as_type("f32")]))


def _flagged(name: str) -> Callable[[Value], Value]:
    """The operation with the flag that makes `fastmath.py` or MLIR's lowering take the hardware's approximation."""

    def make(x: Value) -> Value:
        flags = {"fastmath": ir.Attribute.parse("#arith.fastmath<afn>")}
        return wrap(ir.Operation.create(name, results=[x.type], operands=[x.ir], attributes=flags).results[0])

    return make


_tanh = _flagged("math.tanh")

APPROXIMATIONS: dict[str, Callable[..., Value]] = {
    "math.exp": _exp,
    "math.exp2": _exp2,
    "math.erf": _erf,
    "math.sqrt": _sqrt,
    "math.tanh": _tanh,
    "math.log": _flagged("math.log"),
    "arith.divf": _divide,
    "arith.mulf": _multiply,
}
"""By the name of an operation on f32, a function of its operands."""


def divide_by_shared(values: list[Value], divisor: Value, approximate: bool) -> list[Value]:
    """f32 values divided by one and the same number: one reciprocal for all of them, an ulp and a half off at most."""
    if approximate:
        inverse = reciprocal(divisor)
        return [value * inverse for value in values]
    # A denormal divisor has no finite reciprocal: small ones are lifted first.
    small = maximum(divisor, -divisor) < _SMALL
    lift = select(small, constant(_LIFT, "f32"), 1.0)
    inverse = constant(1.0, "f32") / (divisor * lift)
    return [value * inverse * lift for value in values]
