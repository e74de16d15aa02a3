"""Sine, cosine, tangent and the arc tangents in f32.

The argument is reduced in f64, where it is exact enough up to 2^30; lanes beyond that (rare) are computed by libm.
"""

from __future__ import annotations

from collections.abc import Callable

from torch_mlir import ir

from kitsune_mlir.codegen.host.number import Number, choose, fused, horner, per_lane

__all__ = ["atan", "atan2", "cos", "sin", "tan"]

LIMIT = float(1 << 30)
TWO_OVER_PI = 0.6366197723675814
HALF_PI_HIGH = 1.5707963267948966
HALF_PI_LOW = 6.123233995736766e-17
ROUND = 6755399441055744.0  # 1.5 * 2^52

# (sin(r) - r) / r^3 and (cos(r) - 1 + r^2/2) / r^4 in r^2, |r| <= pi/4; (atan(a) - a) / a^3 in a^2, |a| <= 1
_SIN = (-0.166666641831398, 0.008332725614309311, -0.00019582953245844692)
_COS = (0.0416666641831398, -0.0013888280373066664, 2.4542972823837772e-05)
_ATAN = (
    -0.3333333134651184,
    0.1999979019165039,
    -0.14279615879058838,
    0.11042037606239319,
    -0.08689051866531372,
    0.06318236142396927,
    -0.03667048364877701,
    0.013996606692671776,
    -0.0025086074601858854,
)

Libm = Callable[[ir.Value], ir.Value]


def _reduced(x: Number) -> tuple[Number, Number, Number]:
    """(quadrant as i32, sin(r), cos(r)) for x = quadrant * pi/2 + r."""
    d = x.double()
    shifted = fused(d, TWO_OVER_PI, ROUND)
    n = shifted - ROUND
    r = fused(n, -HALF_PI_LOW, fused(n, -HALF_PI_HIGH, d)).single()
    quadrant = shifted.bits().low_half()
    s = r * r
    sine = fused(horner(s, _SIN) * s, r, r)
    cosine = fused(horner(s, _COS), s * s, fused(s, -0.5, 1.0))
    return quadrant, sine, cosine


def _with_sign_bit(x: Number, bit: Number) -> Number:
    """x, negated where `bit` (bit 1 of a quadrant number) is set."""
    return (x.bits() ^ ((bit & 2) << 30)).bits()


def _far(x: Number) -> ir.Value:
    return (x.abs() > LIMIT).any()


def sin(x: Number, libm: Libm) -> Number:
    """Sine."""
    quadrant, sine, cosine = _reduced(x)
    value = choose((quadrant & 1).compare("ne", 0), cosine, sine)
    result = choose(x.compare("oeq", 0.0), x, _with_sign_bit(value, quadrant))  # keeps -0.0
    return per_lane(_far(x), result, x, libm)


def cos(x: Number, libm: Libm) -> Number:
    """Cosine."""
    quadrant, sine, cosine = _reduced(x)
    value = choose((quadrant & 1).compare("ne", 0), sine, cosine)
    return per_lane(_far(x), _with_sign_bit(value, quadrant + 1), x, libm)


def tan(x: Number, libm: Libm) -> Number:
    """Tangent."""
    quadrant, sine, cosine = _reduced(x)
    odd = (quadrant & 1).compare("ne", 0)
    result = choose(odd, -cosine, sine) / choose(odd, sine, cosine)
    return per_lane(_far(x), choose(x.compare("oeq", 0.0), x, result), x, libm)


def _atan_reduced(a: Number) -> Number:
    """atan(a) for 0 <= a <= 1."""
    s = a * a
    return fused(horner(s, _ATAN) * s, a, a)


def atan(x: Number) -> Number:
    """Arc tangent."""
    t = x.abs()
    steep = t > 1.0
    a = _atan_reduced(choose(steep, 1.0 / t, t))
    return choose(steep, HALF_PI_HIGH - a, a).sign_of(x)


def atan2(y: Number, x: Number) -> Number:
    """Angle of the point (x, y)."""
    ay, ax = y.abs(), x.abs()
    steep = ay > ax
    high, low = choose(steep, ay, ax), choose(steep, ax, ay)
    ratio = low / high
    ratio = choose(high.compare("oeq", 0.0), 0.0, ratio)
    ratio = choose(low.compare("oeq", float("inf")), 1.0, ratio)  # both infinite
    a = _atan_reduced(ratio)
    a = choose(steep, HALF_PI_HIGH - a, a)
    negative = x.bits().compare("slt", 0)  # also -0.0
    a = choose(negative, 3.141592653589793 - a, a).sign_of(y)
    return choose((x + y).compare("uno", 0.0) & x.compare("uno", y), x + y, a)
