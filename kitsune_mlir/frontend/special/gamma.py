"""The logarithm of the gamma function, and its derivatives.

Series, recurrences and reflections are those of Abramowitz and Stegun, chapter 6. Where a function is not the first terms of a
series, a quotient of polynomials is fitted to it (linearized least squares on Chebyshev points, in 50 digits; the errors
that are named are relative, and in exact arithmetic).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.frontend.polynomials import polynomial
from kitsune_mlir.frontend.special.functions import BERNOULLI, Ratio, is_whole, of_floats, ratio

__all__ = ["GAMMA"]

aten = torch.ops.aten

_SMALL: Ratio = (
    (
        *(0.5772156649015328, 1.4400868056406426, 1.3112471949261566, 0.5321228297881138, 0.09353865272431446),
        *(0.005649424461071908, 3.6133003706761224e-05, -3.298601122920062e-07),
    ),
    (
        *(1.0, 2.9197720655254216, 3.242966429589368, 1.7130143200495649, 0.4392678833778816),
        *(0.04943907188931553, 0.0017727193865992026),
    ),
)
"""log Γ(1 + t) / (t·(t - 1)) for t from 0 to 2, to 2e-16."""

_STIRLING: Ratio = (
    (0.0833333333333333, 0.7105221213327688, 1.4907082688482494, 0.7721862655367099, 0.05060504103713583),
    (1.0, 8.559598789325884, 18.164295376498277, 9.797334544733303, 0.8118853764318795),
)
"""What Stirling's formula lacks of log Γ(y), times y, of 1/y² for y from 3 on, to 4e-16 (6.1.41)."""

_ASYMPTOTIC: Ratio = (
    (0.08333333333333333, 0.9316185696157435, 2.626956635323645, 1.8872532178764703, 0.1720769131362202),
    (1.0, 11.27942283538865, 32.60380285994001, 25.420303500885403, 3.5274559675619317),
)
"""(log y - 1/2y - ψ(y))·y², of 1/y² for y from 4 on, to 9e-17 (6.3.18)."""

_SHIFT = (6.0, 11.0, 6.0, 1.0)
"""Coefficients of (y + 1)·(y + 2)·(y + 3)."""

MOST_ORDER = 12
"""Of a polygamma function: those of higher ones have factorials and powers that leave the range of f32 one by one."""


def _lgamma(x: Tensor) -> Tensor:
    """log|Γ(x)|: of log Γ(1 + t) with t ≥ 0, less log x below 1 (6.1.15) and by reflection below 0 (6.1.17).

    Near its zeros below 0 its error is one of these terms: a few of their last places.
    """
    below, negative = x < 1, x < 0
    t = torch.where(below, x.abs(), x - 1)
    near = t * (t - 1) * ratio(torch.clamp(t, max=2.0), _SMALL)
    y = t + 1
    far = (y - 0.5) * (torch.log(y) - 1) + (math.log(2 * math.pi) / 2 - 0.5) + ratio(1 / (y * y), _STIRLING) / y
    beyond = torch.where(t < 2, near, far)
    sine = torch.sin(math.pi * (x - torch.round(x)).abs()) / math.pi
    apart = torch.log(torch.where(negative, sine, torch.where(below, x, 1.0)))
    found = torch.where(x == 1, 0.0, torch.where(negative, -beyond, beyond) - apart)  # not -0
    return torch.where((x <= 0) & is_whole(x), math.inf, found)


def _cotangent(x: Tensor) -> Tensor:
    """cot πx, whose digits are those of the distance of x from a multiple of 1/2."""
    apart = x - torch.round(x)
    size = apart.abs()
    steep = size < 0.25
    tangent = torch.tan(math.pi * torch.where(steep, size, 0.5 - size))
    found = torch.where(steep, 1 / tangent, tangent)
    return torch.where(apart < 0, -found, found)


def _digamma(x: Tensor) -> Tensor:
    """ψ(x), by four steps up below 4 (6.3.6), whose terms are one quotient, and by reflection below 0 (6.3.7)."""
    negative = x < 0
    y = torch.where(negative, 1 - x, x)
    few = y < 4
    steps = torch.where(few, y, 1.0)
    up = torch.where(few, y + 4, y)
    inverse = 1 / (up * up)
    slope = [(order + 1) * coefficient for order, coefficient in enumerate(_SHIFT)]
    found = torch.log(up) - 0.5 / up - inverse * ratio(inverse, _ASYMPTOTIC)
    found = found - torch.where(few, polynomial(steps, slope) / (steps * polynomial(steps, _SHIFT)), 0.0)
    reflected = found - math.pi * _cotangent(x)
    return torch.where(negative, torch.where(is_whole(x), math.nan, reflected), found)


def _power(x: Tensor, exponent: int) -> Tensor:
    """By squares; of 1 or more."""
    half = x if exponent < 2 else _power(x, exponent // 2)
    if exponent < 2:
        return x
    return half * half * x if exponent % 2 else half * half


def _zeta_of_whole(s: int, y: Tensor) -> Tensor:
    """Σ (y + k)⁻ˢ over k ≥ 0, y ≥ 0 and s ≥ 2: some terms, and the rest by Euler and Maclaurin's formula (23.1.30, 23.2.3)."""
    exact = y.dtype == torch.float64
    terms, count = (max(s, 10), len(BERNOULLI)) if exact else (max(s, 6), 6)
    total = _power(1 / y, s)
    for k in range(1, terms):
        total = total + _power(1 / (y + k), s)
    coefficients = []
    for j, number in enumerate(BERNOULLI[:count], 1):
        coefficients.append(number * math.prod(range(s, s + 2 * j - 1)) / math.factorial(2 * j))
    inverse = 1 / (y + terms)
    square = inverse * inverse
    rest = 1 / (s - 1) + inverse / 2 + square * polynomial(square, coefficients)
    return total + _power(inverse, s - 1) * rest


def _cotangent_derivative(order: int) -> list[int]:
    """Coefficients of the derivative of cot u, as a polynomial of cot u: that of cᵏ is -k·cᵏ⁻¹·(1 + c²)."""
    found = [0, 1]
    for _ in range(order):
        slope = [k * coefficient for k, coefficient in enumerate(found)][1:]
        found = [-a - b for a, b in zip([*slope, 0, 0], [0, 0, *slope], strict=True)]
    return found


def _polygamma(n: int, x: Tensor) -> Tensor:
    """The n-th derivative of ψ: (-1)ⁿ⁺¹·n!·ζ(n + 1, x) (6.4.10), by reflection below 0 (6.4.7).

    At 0 and below, at whole numbers, infinite with the sign that it has right of them, where PyTorch's first derivative is some
    large number.
    """
    if n == 0:
        return aten.digamma.default(x)
    if not 0 < n <= MOST_ORDER:
        return NotImplemented
    sign = 1 if n % 2 else -1

    def of(x: Tensor) -> Tensor:
        negative = x < 0
        found = sign * math.factorial(n) * _zeta_of_whole(n + 1, torch.where(negative, 1 - x, x.abs()))
        other = -(math.pi ** (n + 1)) * polynomial(_cotangent(x), [float(c) for c in _cotangent_derivative(n)])
        found = torch.where(negative, other - sign * found, found)
        return torch.where((x <= 0) & is_whole(x), sign * math.inf, found)

    return of_floats(of)(x)


GAMMA: dict[Any, Callable[..., Any]] = {
    aten.lgamma.default: of_floats(_lgamma),
    aten.digamma.default: of_floats(_digamma),
    aten.polygamma.default: _polygamma,
}
"""Operator → decomposition."""
