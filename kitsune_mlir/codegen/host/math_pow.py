"""x^y in f32, computed in f64: log2(|x|) to about 2^-37, times y, and a power of two of that."""

from __future__ import annotations

from kitsune_mlir.codegen.host.number import Number, choose, fused, horner

__all__ = ["power", "power_constant"]

ROUND = 6755399441055744.0  # 1.5 * 2^52
TWO_OVER_LN2 = 2.8853900817779268

# 2^r for |r| <= 1/2
_EXP2 = (
    1.0000000000000278,
    0.6931471805459317,
    0.24022650695466904,
    0.05550410941215423,
    0.009618129228591652,
    0.0013333450560024834,
    0.00015403411572719456,
    1.5310081318204985e-05,
    1.3264081916187782e-06,
)


def _log2(x: Number) -> Number:
    """log2 of a non-negative f64 that was an f32 (so it is normal, 0, inf or NaN)."""
    e = (x.bits() - x.like(0.6666666666666666).bits()) & -4503599627370496
    m = (x.bits() - e).bits()
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    series = horner(z, tuple(TWO_OVER_LN2 / (2 * i + 1) for i in range(8)))
    result = fused(series, s, (e >> 52).to_float())
    result = choose(x.compare("oeq", 0.0), float("-inf"), result)
    return choose(x.compare("ult", float("inf")), result, x)


def _exp2(p: Number) -> Number:
    """2^p in f64, for |p| <= 160."""
    shifted = p + ROUND
    n = shifted - ROUND
    scale = ((shifted.bits() - p.like(ROUND).bits() + 1023) << 52).bits()
    return horner(p - n, _EXP2) * scale


def power(x: Number, y: Number) -> Number:
    """x^y with the special cases of C's `powf`."""
    ax = x.abs()
    p = y.double() * _log2(ax.double())
    p = choose(p < -160.0, -160.0, p)
    p = choose(p > 160.0, 160.0, p)
    result = _exp2(p).single()
    ay = y.abs()
    whole = y.floor().compare("oeq", y)
    half = y * 0.5
    odd = whole & half.floor().compare("une", half)
    negative = x.bits().compare("slt", 0)
    result = choose(negative & odd, -result, result)
    # A negative base with a fraction as exponent has no real power; -0.0 and -inf have (the magnitude's).
    bad = (x < 0.0) & ax.compare("one", float("inf")) & (whole ^ 1)
    result = choose(bad, float("nan"), result)
    result = choose(x.compare("uno", y), x + y, result)
    one = y.compare("oeq", 0.0) | x.compare("oeq", 1.0) | (x.compare("oeq", -1.0) & ay.compare("oeq", float("inf")))
    return choose(one, 1.0, result)


def power_constant(x: Number, exponent: float) -> Number | None:
    """x^exponent by multiplications where the exponent is a small integer; None where it is not."""
    if exponent != int(exponent) or not 1 <= abs(exponent) <= 4:
        return None
    square = x * x if abs(exponent) > 1 else x
    result = {1: x, 2: square, 3: square * x if abs(exponent) == 3 else x, 4: square * square if abs(exponent) == 4 else x}
    chosen = result[int(abs(exponent))]
    return 1.0 / chosen if exponent < 0 else chosen
