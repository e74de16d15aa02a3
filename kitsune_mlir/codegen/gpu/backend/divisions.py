"""Divisions without a branch, in kernels where ptxas would take minutes for those with one.

An exactly rounded reciprocal, quotient or square root of f32 is a few instructions and a call for numbers that these cannot do
(denormals, mostly). The call is a branch, and what lives across it must be saved: amid a wide layer's sums and factors, 150 to
200 registers of them, ptxas (CUDA 13.5) takes 0.1 s for each, and more the more there are (x + silu(linear(x)) of 256 columns:
29 s for 2 layers, 80 s for 3, on one core; without branches 2 s for 3). Up to 128 columns it takes 0.01 s for each.

Such kernels multiply 16-bit factors; their element-wise work is rounded to as many bits. So there the instructions good to 1
(reciprocal, square root) or 2 ulp (quotient) of f32 over the whole range are enough, which are no slower on the device.
"""

from __future__ import annotations

import re

__all__ = ["FEW", "NARROW", "without_branches"]

FEW = 32
"""Divisions for which ptxas takes little time whatever is around them."""
NARROW = 128
"""Columns of products whose sums leave ptxas registers enough."""

_EXACT = re.compile(r"\b(rcp|div|sqrt)\.rn\.f32\b")
_FAST = {"rcp": "rcp.approx.f32", "div": "div.full.f32", "sqrt": "sqrt.approx.f32"}
_FROM_REGISTERS = re.compile(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\S+ \{[^}]*\}, \{")


def without_branches(ptx: str) -> str:
    """PTX with those divisions, where it holds more than `FEW`, and a product wider than `NARROW` of a factor in registers."""
    wide = any(int(columns) > NARROW for columns in _FROM_REGISTERS.findall(ptx))
    if not wide or len(_EXACT.findall(ptx)) <= FEW:
        return ptx
    return _EXACT.sub(lambda found: _FAST[found[1]], ptx)
