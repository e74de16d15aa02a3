"""The remainder of a division of f32 (C's fmod): exact for quotients below 2^46.

NVPTX would write x - trunc(x / y) y in f32, which is off by y where the quotient is rounded to the next integer, and by more
where it has more bits than f32. Here what is left is computed by fma, which is exact: x - q y for q = trunc(x / y) in f32 is a
multiple of ulp(q) ulp(y) below ulp(q) |y|. Twice; then the quotient is right, or one more or less.
"""

import math

from torch_mlir.dialects import math as math_ops

from kitsune_mlir.codegen.gpu.emit.value import Value, fma, select, wrap

__all__ = ["remainder"]


def remainder(x: Value, y: Value) -> Value:
    """fmod(x, y) of f32: of x's sign, smaller than |y|; NaN for y = 0 and for infinite x, x for infinite y."""
    size = _absolute(y)
    rest = x
    for _ in range(2):
        rest = fma(-wrap(math_ops.trunc((rest / y).ir)), y, rest)
    step = wrap(math_ops.copysign(size.ir, x.ir))
    other = wrap(math_ops.copysign(_absolute(rest).ir, x.ir)) != rest  # beyond zero: one too many
    rest = select(other, rest + step, rest)
    rest = select(_absolute(rest) >= size, rest - step, rest)
    rest = wrap(math_ops.copysign(rest.ir, x.ir))  # zero has x's sign
    return select((size == math.inf) & (_absolute(x) < math.inf), x, rest)


def _absolute(x: Value) -> Value:
    return wrap(math_ops.absf(x.ir))
