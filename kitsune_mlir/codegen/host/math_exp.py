"""Exponentials, logarithms and what follows from them, in f32: a few units in the last place at most, for every argument.

Source of `log` and `erf`: N. Juffa's single-precision implementations (below 1 ulp). The other polynomials were fitted with
Lawson's algorithm to the functions' values in 40 digits.
"""

from __future__ import annotations

from torch_mlir.dialects import math

from kitsune_mlir.codegen.host.number import Number, choose, fused, horner

__all__ = ["erf", "exp", "exp2", "expm1", "log", "log10", "log1p", "log2", "tanh"]

LOG2_E = 1.4426950408889634
LN2_HIGH = 0.693145751953125  # 16 bits: products with a small integer are exact
LN2_LOW = 1.428606765330187e-06
LN2 = 0.6931471805599453
ROUND = 12582912.0  # 1.5 * 2^23: adding it leaves the nearest integer in the low bits of the sum

# (exp(r) - 1 - r) / r^2 on [-ln(2)/2, ln(2)/2]
_EXP = (0.5, 0.16666573286056519, 0.041666362434625626, 0.008363775908946991, 0.0013942164368927479)


def _clamped(x: Number, low: float, high: float) -> Number:
    """x in [low, high]; NaN stays NaN."""
    y = choose(x < low, low, x)
    return choose(y > high, high, y)


def _nearest(t: Number) -> tuple[Number, Number]:
    """The integer nearest to |t| < 2^22, as f32 and as i32. NaN gives NaN and some integer."""
    shifted = t + ROUND
    return shifted - ROUND, shifted.bits() - t.like(ROUND).bits()


def _power_of_two(n: Number) -> Number:
    """2^n for an i32 in [-126, 127]."""
    return ((n + 127) << 23).bits()


def _scaled(p: Number, n: Number) -> Number:
    """p * 2^n, rounded once: also where the result is denormal or overflows."""
    half = n >> 1
    return p * _power_of_two(half) * _power_of_two(n - half)


def _expm1_reduced(r: Number) -> Number:
    """exp(r) - 1 for |r| <= ln(2)/2."""
    return fused(horner(r, _EXP), r * r, r)


def exp(x: Number) -> Number:
    """e^x."""
    x = _clamped(x, -104.0, 89.0)
    f, n = _nearest(x * LOG2_E)
    r = fused(f, -LN2_LOW, fused(f, -LN2_HIGH, x))
    return _scaled(_expm1_reduced(r) + 1.0, n)


def exp2(x: Number) -> Number:
    """2^x."""
    x = _clamped(x, -151.0, 129.0)
    f, n = _nearest(x)
    return _scaled(_expm1_reduced((x - f) * LN2) + 1.0, n)


def expm1(x: Number) -> Number:
    """e^x - 1, accurate near 0."""
    c = _clamped(x, -20.0, 89.0)
    f, n = _nearest(c * LOG2_E)
    r = fused(f, -LN2_LOW, fused(f, -LN2_HIGH, c))
    half = _power_of_two(n - 1)  # 2^n itself overflows before the result does
    result = fused(half, _expm1_reduced(r), half - 0.5) * 2.0
    return choose(x.compare("oeq", 0.0), x, result)  # keeps -0.0


def expm1_of_double(x: Number) -> Number:
    """e^x - 1 in f64, by the library's e^x and log: what u = e^x lacks by being rounded, log(u) says (Kahan)."""
    u = Number(math.exp(x.value))
    less = u - 1.0
    near = choose(u.compare("oeq", 1.0), x, less * (x / Number(math.log(u.value))))
    return choose(x.abs() < 1.0, near, less)


def tanh(x: Number) -> Number:
    """Hyperbolic tangent."""
    t = x.abs()
    t = choose(t > 10.0, 10.0, t)
    f, n = _nearest(t * (2.0 * LOG2_E))
    r = fused(f, -LN2_LOW, fused(f, -LN2_HIGH, t * 2.0))
    scale = _power_of_two(n)
    e = fused(scale, _expm1_reduced(r), scale - 1.0)  # exp(2t) - 1
    return (e / (e + 2.0)).sign_of(x)


def erf(x: Number) -> Number:
    """Error function (Juffa)."""
    t, s = x.abs(), x * x
    r = fused(t, -1.72853470e-5, 3.83197126e-4)
    u = fused(t, -3.88396438e-3, 2.42546219e-2)
    r = fused(r, s, u)
    for c in (-1.06777877e-1, -6.34846687e-1, -1.28717512e-1):
        r = fused(r, t, c)
    far = (1.0 - exp(fused(r, t, -t))).sign_of(x)
    near = horner(s, (1.28379166e-1, -3.76125336e-1, 1.12819925e-1, -2.67681349e-2, 4.99119423e-3, -5.96761703e-4))
    return choose(t > 0.927734375, far, fused(near, x, x))


def _log_parts(x: Number) -> tuple[Number, Number]:
    """(i, l) with log(x) = i * ln(2) + l for positive finite x; exp(l) is in [2/3, 4/3] (Juffa)."""
    small = x < 1.1754943508222875e-38
    a = choose(small, x * 8388608.0, x)
    offset = choose(small, a.like(-23.0), 0.0)
    e = (a.bits() - a.like(0.6666666865348816).bits()) & -8388608
    m = (a.bits() - e).bits() - 1.0
    i = fused(e.to_float(), 1.1920928955078125e-07, offset)
    s = m * m
    r = fused(fused(s.like(-0.130310059), s, -0.121483512), s, -0.166846126)
    t = fused(fused(s.like(0.140869141), s, 0.139814854), s, 0.200120345)
    r = fused(fused(t, m, fused(r, s, -0.249996200)), m, 0.333331972)
    return i, fused(fused(r, m, -0.5), s, m)


def _log_special(x: Number, result: Number) -> Number:
    """Zero gives -inf, negative numbers NaN, inf and NaN themselves."""
    result = choose(x.compare("oeq", 0.0), float("-inf"), result)
    result = choose(x < 0.0, float("nan"), result)
    return choose(x.compare("ult", float("inf")), result, x)


def _ordinary(x: Number, result: Number) -> Number:
    special = _log_special(x, result)
    return choose(x.compare("uno", 0.0), x, special)


def log(x: Number) -> Number:
    """Natural logarithm."""
    i, m = _log_parts(x)
    return _ordinary(x, fused(i, LN2, m))


def log2(x: Number) -> Number:
    """Logarithm to base 2."""
    i, m = _log_parts(x)
    high = fused(m, 1.44269502162933349609375, i)
    return _ordinary(x, fused(m, 1.92596299112661746887e-8, high))


def log10(x: Number) -> Number:
    """Logarithm to base 10."""
    i, m = _log_parts(x)
    return _ordinary(x, fused(i, 0.30102999566398120, m * 0.43429448190325183))


def log1p(x: Number) -> Number:
    """log(1 + x), accurate near 0: the rounding error of 1 + x is added to first order."""
    u = x + 1.0
    i, m = _log_parts(u)
    lost = (x - (u - 1.0)) / u
    result = fused(i, LN2, m + lost)
    result = choose(u.compare("oeq", 1.0), x, result)
    result = choose(u.compare("oeq", 0.0), float("-inf"), result)
    result = choose(u < 0.0, float("nan"), result)
    return choose(u.compare("ult", float("inf")), result, u)
