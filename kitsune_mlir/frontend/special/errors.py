"""The error function's relatives: erfc, erfcx, and the inverses of the error function and of the normal distribution.

erfcx is a polynomial of (x - 2)/(x + 2), as in Shepherd and Laframboise, "Chebyshev approximation of (1 + 2x)·exp(x²)·erfc(x)
in 0 ≤ x < ∞" (1981), fitted on Chebyshev points in 50 digits. The quantiles are those of Cephes' ndtri, which PyTorch has too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.frontend.polynomials import polynomial
from kitsune_mlir.frontend.special.functions import Ratio, of_floats, ratio

__all__ = ["ERRORS"]

aten = torch.ops.aten

_SCALED = (
    *(1.0215827052420232, -0.6871606844138126, 0.27947209255600414, -0.0364422315066608, -0.021510661886849986),
    *(0.0064791850609048265, 0.003090612005135584, -0.0008372959643942738, -0.000663072928977398, 3.437065707598764e-05),
    *(0.00014446709019794675, 3.4152669396871485e-05, -2.168130075814857e-05, -1.6132622557127358e-05),
    *(-1.1664348302371642e-06, 3.667427646291671e-06, 2.0788868571460346e-06, -2.8386598762109823e-08),
    *(-6.711382772342776e-07, -3.015746777196993e-07, 8.441920923120536e-08, 1.0377187123128464e-07),
    *(8.292319754607354e-09, -1.3344315926056097e-08, -3.0281757727207163e-09),
)
"""exp(x²)·erfc(x)·(x + 2) of (x - 2)/(x + 2), to 3e-16."""

_CENTRAL: Ratio = (
    (-1.2391658386738125, 13.931260938727968, -56.67628574690703, 98.00107541859997, -59.96335010141079),
    (
        *(-1.1833162112133, 15.90562251262117, -82.03722561683334, 200.26021238006066, -225.46268785411937),
        *(86.36024213908905, 4.676279128988815, 1.9544885833814176, 1.0),
    ),
)
"""How far the quantile of 1/2 + y, over √2π, is from y: this times y³, of y²; for |y| up to 1/2 - exp(-2)."""

_TAIL: Ratio = (
    (
        *(-0.0008574567851546854, -0.03504246268278482, -0.1402560791713545, 2.1866330685079025, 14.684956192885803),
        *(44.08050738932008, 57.16281922464213, 31.525109459989388, 4.0554489230596245),
    ),
    (
        *(-0.0009332594808954574, -0.03808064076915783, -0.14218292285478779, 2.504649462083094, 15.04253856929075),
        *(41.3172038254672, 45.39076351288792, 15.779988325646675, 1.0),
    ),
)
"""What r - log(r)/r lacks of the quantile of exp(-r²/2), times -r, of 1/r for r from 2 to 8 ..."""

_FAR_TAIL: Ratio = (
    (
        *(6.239745391849833e-09, 2.6580697468673755e-06, 0.00030158155350823543, 0.012371663481782003, 0.20148538954917908),
        *(1.3330346081580755, 3.9388102529247444, 6.915228890689842, 3.2377489177694603),
    ),
    (
        *(6.790194080099813e-09, 2.8924786474538068e-06, 0.00032801446468212774, 0.013420400608854318, 0.21623699359449663),
        *(1.3770209948908132, 3.6798356385616087, 6.02427039364742, 1.0),
    ),
)
"""... and from there to 64."""

EDGE = math.exp(-2)
"""Probability below which a quantile is one of a tail."""


def _exp_of_square(a: Tensor, sign: int) -> Tensor:
    """exp(±a²) for a ≥ 0: of the square of its first bits, which is exact, and of the small rest, as in fdlibm's erfc."""
    a = torch.clamp(a, max=30.0)  # the result is infinite, or 0, long before
    first = torch.floor(a * 16) / 16
    return torch.exp(sign * (first * first)) * torch.exp(sign * ((a - first) * (a + first)))


def _scaled(a: Tensor) -> Tensor:
    """exp(a²)·erfc(a) for a ≥ 0."""
    behind = 1 / (a + 2)
    return polynomial(1 - 4 * behind, _SCALED) * behind


def _erfcx(x: Tensor) -> Tensor:
    a = x.abs()
    found = _scaled(a)
    return torch.where(x < 0, 2 * _exp_of_square(a, 1) - found, found)


def _erfc(x: Tensor) -> Tensor:
    """1 - erf(x) has no digits where erf(x) is nearly 1."""
    a = x.abs()
    return torch.where(x < 0.5, 1 - torch.erf(x), _exp_of_square(a, -1) * _scaled(a))


def _quantile(y: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """Quantiles of the normal distribution: of 1/2 + y, over √2π·y, for small y; and of p, which is small."""
    square = y * y
    r = torch.sqrt(-2 * torch.log(p))
    inverse = 1 / r
    lacking = torch.where(r < 8, ratio(inverse, _TAIL), ratio(inverse, _FAR_TAIL))
    tail = torch.where(p == 0, -math.inf, inverse * (torch.log(r) + lacking) - r)
    return 1 + square * ratio(square, _CENTRAL), tail


def _ndtri(x: Tensor) -> Tensor:
    upper = x > 1 - EDGE
    p = torch.where(upper, 1 - x, x)
    y = x - 0.5
    factor, tail = _quantile(y, p)
    return torch.where(p > EDGE, y * (factor * math.sqrt(2 * math.pi)), torch.where(upper, -tail, tail))


def _erfinv(x: Tensor) -> Tensor:
    """The quantile of (1 + x)/2, over √2: half of x, and the smaller probability, are exact."""
    p = (1 - x.abs()) / 2
    factor, tail = _quantile(x / 2, p)
    tail = tail * math.sqrt(0.5)
    return torch.where(p > EDGE, x * (factor * (math.sqrt(math.pi) / 2)), torch.where(x < 0, tail, -tail))


ERRORS: dict[Any, Callable[..., Any]] = {
    aten.erfc.default: of_floats(_erfc),
    aten.special_erfcx.default: of_floats(_erfcx),
    aten.special_ndtri.default: of_floats(_ndtri),
    aten.erfinv.default: of_floats(_erfinv),
}
"""Operator → decomposition."""
