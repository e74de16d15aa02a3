"""Functions of f32 that are cheaper than libdevice's, for results that are rounded to 16 bits, and for a softmax's numbers.

A task that reads and writes 16-bit floats has about 25 instructions an element before it is slower than memory, and
libdevice's functions, exact to an ulp or two of f32, take 8 (exp) to 30 (erf, tanh) each. Largest errors here: exp and the
reciprocal 1e-6 of the value (for |x| < 20; the error of exp grows with |x|), a power (2 + |y| / 4) 1e-6 of it, division 2 ulp,
tanh 5e-4, erf 1.5e-4 absolute; half an ulp of bf16 is 2e-3. The exponential of x - max(x) is good to 1e-7 of the largest one,
an ulp of f32. Results that would be denormal become 0. Infinities and NaN come out as IEEE 754 says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from torch_mlir import ir
from torch_mlir.dialects import math as math_ops
from torch_mlir.dialects import nvvm

from kitsune_mlir.codegen.gpu.emit.inline_ptx import inline_ptx
from kitsune_mlir.codegen.gpu.emit.operation import create
from kitsune_mlir.codegen.gpu.emit.sine import cosine, sine
from kitsune_mlir.codegen.gpu.emit.value import Value, as_type, bitcast, constant, fma, maximum, minimum, select, wrap

__all__ = [
    "APPROXIMATIONS",
    "LOG2_E",
    "approximations_for",
    "divide_by_shared",
    "exact_enough",
    "exp2",
    "exp_of_change",
    "exp_of_difference",
    "jumps",
    "log2",
    "reciprocal",
]

LOG2_E = 1.4426950408889634

_JUMPING = frozenset(
    (
        *("arith.cmpf", "arith.remf", "arith.fptosi", "arith.fptoui", "arith.bitcast"),
        *("math.floor", "math.ceil", "math.round", "math.roundeven", "math.trunc"),
    )
)

_NORMAL = (0.398676764, -0.0657197844, 0.0093166268, -0.000931544992, 6.06844718e-05, -2.27244319e-06, 3.66573746e-08)
"""The normal distribution's Phi(y) is 0.5 + y p(y^2), cut off at 0 and 1, p with these coefficients of rising powers: they are
fitted for the least largest error, 7.3e-5 (`test_simt_math.py`). Beyond the cut p grows, so it stays cut off."""

_FAR = 2.0**126
_SMALL, _LIFT = 2.0**-64, 2.0**64


def jumps(op: ir.Operation) -> bool:
    """Whether an operation's result jumps: of a number that is a little off, or was not rounded, it may be another one.

    A comparison with zero, as in a ReLU, does not: errors and roundings leave the sign as it is. Nor does one with infinity.
    """
    if op.name != "arith.cmpf" or isinstance(op.operands[1].owner, ir.Block):
        return op.name in _JUMPING
    maker = op.operands[1].owner
    if maker.name != "arith.constant":
        return True
    number = ir.FloatAttr(maker.attributes["value"]).value
    return number != 0.0 and not math.isinf(number)


def exp2(x: Value) -> Value:
    """2 to the power of `x`, by the hardware: 2 ulp, denormal results are 0."""
    return wrap(nvvm.ex2(x.ir, ftz=True, results=[as_type("f32")]))


def log2(x: Value) -> Value:
    """The logarithm to base 2, by the hardware: within 2^-22 between 0.5 and 2, else 2 ulp; denormals are taken as 0."""
    return inline_ptx("lg2.approx.ftz.f32 $0, $1;", [x], ["f32"], pure=True)[0]


def _exp(x: Value) -> Value:
    return exp2(x * LOG2_E)


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
    factor = select(maximum(m, -m) < _FAR, constant(LOG2_E, "f32"), 1.0)
    return exp2(wrap(math_ops.fma(x.ir, factor.ir, (-(m * factor)).ir)))


def exp_of_change(old: Value, new: Value) -> Value:
    """exp(old - new) of two running maxima, of which the new one is not minus infinity."""
    return _exp(old - new)


def _erf(x: Value) -> Value:
    """2 Phi(sqrt(2) x) - 1, without the hardware's tanh, which takes the time of several other operations."""
    y, factor = next(iter(_made_with(x, "arith.mulf")), (x, 1.0))  # a factor, as in GELU, goes into the coefficients
    square, unit = y * y, factor * 2**0.5
    *terms, polynomial = (constant(number * unit ** (2 * power + 1), "f32") for power, number in enumerate(_NORMAL))
    for number in reversed(terms):
        polynomial = fma(square, polynomial, number)
    return minimum(maximum((y * polynomial) * 2.0, -1.0), 1.0)


def _gelu(half: Value, more: Value) -> Value | None:
    """(0.5 y) * (1 + erf) as y Phi: Phi is one fma, which cuts off. It turns NaN into 0, but 0 times NaN is NaN."""
    for y, number in _made_with(half, "arith.mulf"):
        for erf, one in _made_with(more, "arith.addf"):
            for name in ("arith.minimumf", "arith.maximumf", "arith.mulf"):
                erf, _ = next(iter(_made_with(erf, name)), (erf, 0.0))
            product = erf.ir.owner
            if number != 0.5 or one != 1.0 or isinstance(product, ir.Block) or product.name != "arith.mulf":
                continue
            mine, polynomial = product.operands
            if mine == y.ir and not isinstance(polynomial.owner, ir.Block) and polynomial.owner.name == "math.fma":
                rounding, saturated = (ir.Attribute.parse(f"#nvvm.{mode}") for mode in ("fp_rnd_mode<rn>", "sat_mode<sat>"))
                return y * wrap(nvvm.fma(mine, polynomial, constant(0.5, "f32").ir, rounding, sat=saturated))
    return None


def _multiply(a: Value, b: Value) -> Value:
    """a * b; a * (1 + y) is one fma, and has one rounding less."""
    for factor, sum_ in ((a, b), (b, a)):
        if (gelu := _gelu(factor, sum_)) is not None:
            return gelu
        for y, number in _made_with(sum_, "arith.addf"):
            if number == 1.0:
                return fma(factor, y, factor)
    return a * b


def _made_with(value: Value, name: str) -> list[tuple[Value, float]]:
    """The operand that is no constant and the one that is, if a value is made of these by the operation `name`; else none."""
    owner = value.ir.owner
    if isinstance(owner, ir.Block) or owner.name != name:
        return []
    return _operands(*map(wrap, owner.operands))


def _operands(a: Value, b: Value) -> list[tuple[Value, float]]:
    """The one of two values that is no constant and the one that is, if so."""
    for one, other in ((a, b), (b, a)):
        if not isinstance(other.ir.owner, ir.Block) and other.ir.owner.name == "arith.constant":
            return [(one, ir.FloatAttr(other.ir.owner.attributes["value"]).value)]
    return []


def _sqrt(x: Value) -> Value:
    return wrap(nvvm.sqrt_approx(x.ir, ftz=True, results=[as_type("f32")]))


def reciprocal(x: Value) -> Value:
    """1 / x, 1 ulp."""
    return wrap(nvvm.rcp_approx_ftz_f(x.ir, results=[as_type("f32")]))


def _power(x: Value, y: Value) -> Value:
    """x to the power of y: 2 to the power of y log2(|x|), with the sign that a negative x gives."""
    size = maximum(x, -x)
    far = exp2(y * _flagged("math.log2")(size))
    far = select((size == 1.0) | (y == 0.0), constant(1.0, "f32"), far)  # also of what is no number
    half = y * 0.5
    whole, even = (create("math.floor", [value], [value.type])[0] == value for value in (y, half))
    infinite = (size == math.inf) | (size == 0.0)  # whose powers are numbers for all y
    sign = bitcast(x, "i32") < 0
    nothing = sign & ~whole & ~infinite & (y != 0.0)
    odd = sign & whole & ~even
    return select(nothing, constant(math.nan, "f32"), select(odd, -far, far))


def _divide(a: Value, b: Value) -> Value:
    return wrap(nvvm.divf(a.ir, b.ir, full=True, results=[as_type("f32")]))


def _flagged(name: str) -> Callable[[Value], Value]:
    """The operation with the flag that makes `backend/fastmath.py` or MLIR's lowering take the hardware's approximation."""

    def make(x: Value) -> Value:
        flags = {"fastmath": ir.Attribute.parse("#arith.fastmath<afn>")}
        return create(name, [x], [x.type], flags)[0]

    return make


_tanh = _flagged("math.tanh")

APPROXIMATIONS: dict[str, Callable[..., Value]] = {
    "math.exp": _exp,
    "math.exp2": exp2,
    "math.powf": _power,
    "math.erf": _erf,
    "math.sqrt": _sqrt,
    "math.tanh": _tanh,
    "math.log": _flagged("math.log"),
    "math.sin": sine,
    "math.cos": cosine,
    "arith.divf": _divide,
    "arith.mulf": _multiply,
}
"""By the name of an operation on f32, a function of its operands."""

_CLOSE = {name: APPROXIMATIONS[name] for name in ("math.exp", "math.exp2", "math.sqrt", "math.sin", "math.cos", "arith.divf")}
"""Those whose error is a few millionths of the value: f16 has eleven bits."""


def approximations_for(elements: Iterable[object]) -> Mapping[str, Callable[..., Value]]:
    """The functions that are exact enough for results of these element types: all of them for bf16 alone, some with f16."""
    names = set(map(str, elements))
    return {} if not names or names - {"bf16", "f16"} else APPROXIMATIONS if names == {"bf16"} else _CLOSE


def exact_enough(
    functions: Mapping[str, Callable[..., Value]], body: Iterable[ir.Operation]
) -> Mapping[str, Callable[..., Value]]:
    """Of these functions those that a body may have: none where a result jumps that is made of what they give."""
    off: set[ir.Value] = set()
    for op in body:
        made = any(operand in off for operand in op.operands)
        if made and jumps(op):
            return {}
        if made or op.name in functions:
            off.update(op.results)
    return functions


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
