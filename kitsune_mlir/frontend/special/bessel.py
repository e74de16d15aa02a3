"""Bessel functions of orders 0 and 1.

The modified ones, of the first kind: the power series (Abramowitz and Stegun 9.6.10) up to 16, behind it a polynomial of 16/x
(9.7.1), fitted on Chebyshev points in 50 digits. J₀ and J₁ are Cephes' j0 and j1. PyTorch has these too, in double without the
leading 1 of the denominators, which costs it digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.frontend.polynomials import polynomial
from kitsune_mlir.frontend.special.functions import Ratio, of_floats, ratio

__all__ = ["BESSEL"]

aten = torch.ops.aten

FAR = 16.0
"""From where on modified functions are asymptotic."""
TERMS = 36
"""Of their power series."""

_SERIES = tuple([1 / (math.factorial(k) * math.factorial(k + order)) for k in range(TERMS)] for order in (0, 1))
"""Coefficients of the powers of x²/4 in I₀(x), and in I₁(x)·2/x."""

_ASYMPTOTIC = (
    (
        *(0.3989422804014327, 0.003116736565634856, 0.00010957276995564773, 7.133642404749456e-06, 6.827280423978683e-07),
        *(8.630196259443431e-08, 1.4041108596390347e-08, 1.4014471825859399e-09, 2.6996977019564478e-09),
        *(-2.4648655757926117e-09, 2.084369055941301e-09, -9.288413777918685e-10, 2.0265955977634872e-10),
    ),
    (
        *(0.39894228040143265, -0.009350209696907141, -0.00018262128321784907, -9.987099849678297e-06),
        *(-8.777897271407787e-07, -1.0549621012182262e-07, -1.6544657252272438e-08, -1.7204839406907399e-09),
        *(-2.911819328104294e-09, 2.612935741802194e-09, -2.2162875690428227e-09, 9.860106827821466e-10),
        -2.1534674131838007e-10,
    ),
)
"""exp(-x)·√x·I₀(x) and that of I₁, of 16/x, to 2e-17."""

_J0_NEAR: Ratio = (
    (9708622510473064.0, -249248344360967.72, 1956174919465.5657, -4794432209.782018),
    (
        *(1.7108629408104315e18, 3.1812195594320496e16, 310518229857422.56, 2112775201154.892, 11185553704.535683),
        *(48440965.83399621, 173785.4016763747, 499.563147152651),
        1.0,
    ),
)
_J0_COSINE: Ratio = (
    (
        *(1.0, 5.303240382353949, 8.74716500199817, 5.447250030587687, 1.239533716464143, 0.08283523921074408),
        *(0.0007969367292973471,),
    ),
    (
        *(1.0, 5.306052882353947, 8.761908832370695, 5.470977403304171, 1.2535274390105895, 0.08562884743544745),
        *(0.0009244088105588637,),
    ),
)
_J0_SINE: Ratio = (
    (
        *(-6.050143506007285, -51.41053267665993, -147.07750515495118, -177.68116798048806, -93.20601521237683),
        *(-19.553954425773597, -1.2825271867050931, -0.011366383889846916),
    ),
    (
        *(242.0057402402914, 2062.0933166032783, 5930.727011873169, 7240.467741956525, 3882.4018360540163, 856.4300259769806),
        *(64.3178256118178,),
        1.0,
    ),
)
_J1_NEAR: Ratio = (
    (3682957328638529.0, -72749424522181.83, 452228297998.19403, -899971225.7055594),
    (
        *(5.322786203326801e18, 8.952223361846274e16, 784369607876235.9, 4749141220799.914, 22151159547.97925),
        *(83514679.14319493, 256987.25675774884, 620.8364781180543),
        1.0,
    ),
)
_J1_COSINE: Ratio = (
    (
        *(1.0, 5.214515986823615, 8.424045901417724, 5.112079511468076, 1.1271960812968493, 0.07313970569409176),
        *(0.0007621256162081731,),
    ),
    (
        *(1.0, 5.209828486823619, 8.399855543276042, 5.073863861286015, 1.105142326340617, 0.06884559087544954),
        *(0.0005713231280725487,),
    ),
)
_J1_SINE: Ratio = (
    (
        *(25.207020585802372, 211.68875710057213, 597.4896124006136, 710.8563049989261, 366.7796093601508, 75.82382841325453),
        *(4.982138729512334, 0.05108625947501766),
    ),
    (
        *(336.0936078106983, 2826.1927851763908, 7997.041604473507, 9562.318924047562, 4986.410583376536, 1056.4488603826283),
        *(74.23732770356752,),
        1.0,
    ),
)

_ROOTS = ((5.78318596294678452118, 30.4712623436620863991), (14.6819706421238932572, 49.2184563216946036703))
"""Squares of the first two zeros of J₀, and of J₁ beside 0."""


def _modified(order: int, scaled: bool) -> Callable[[Tensor], Tensor]:
    """I₀ or I₁, with `scaled` times exp(-|x|)."""

    def of(x: Tensor) -> Tensor:
        a = x.abs()
        half = torch.clamp(a, max=FAR) / 2
        near = polynomial(half * half, _SERIES[order])
        near = near * half if order else near
        far = polynomial(FAR / torch.clamp(a, min=FAR), _ASYMPTOTIC[order]) / torch.sqrt(torch.clamp(a, min=FAR))
        if scaled:
            near = near * torch.exp(-a)
        else:
            root = torch.exp(a / 2)  # the whole exponential is infinite before the function is
            far = torch.where(torch.isinf(a), a, far * root * root)
        found = torch.where(a < FAR, near, far)
        found = torch.where(x != x, x, found)
        return torch.where(x < 0, -found, found) if order else found

    return of


def _oscillating(order: int, near: Ratio, cosine: Ratio, sine: Ratio) -> Callable[[Tensor], Tensor]:
    """J₀ or J₁: up to 5 a quotient with its zeros, behind it a cosine and a sine with quotients of 25/x²."""
    first, second = _ROOTS[order]

    def of(x: Tensor) -> Tensor:
        a = x.abs()
        square = a * a
        small = (square - first) * (square - second) * ratio(torch.clamp(square, max=25.0), near)
        small = small * x if order else small
        inverse = 5 / torch.clamp(a, min=5.0)
        angle = a - (0.75 if order else 0.25) * math.pi
        waves = torch.cos(angle) * ratio(inverse * inverse, cosine)
        waves = waves - inverse * ratio(inverse * inverse, sine) * torch.sin(angle)
        large = waves * math.sqrt(2 / math.pi) / torch.sqrt(a)
        large = torch.where(x < 0, -large, large) if order else large
        return torch.where(a <= 5, small, large)

    return of


BESSEL: dict[Any, Callable[..., Any]] = {
    aten.i0.default: of_floats(_modified(0, scaled=False)),
    aten.special_i0e.default: of_floats(_modified(0, scaled=True)),
    aten.special_i1.default: of_floats(_modified(1, scaled=False)),
    aten.special_i1e.default: of_floats(_modified(1, scaled=True)),
    aten.special_modified_bessel_i0.default: of_floats(_modified(0, scaled=False)),
    aten.special_modified_bessel_i1.default: of_floats(_modified(1, scaled=False)),
    aten.special_bessel_j0.default: of_floats(_oscillating(0, _J0_NEAR, _J0_COSINE, _J0_SINE)),
    aten.special_bessel_j1.default: of_floats(_oscillating(1, _J1_NEAR, _J1_COSINE, _J1_SINE)),
}
"""Operator → decomposition."""
