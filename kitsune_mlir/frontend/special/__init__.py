"""Special functions, made of arithmetic and of the functions that engines have: each element of a result is made of one of the
operands', in f32, for 16 bits too, or in f64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kitsune_mlir.frontend.special.bessel import BESSEL
from kitsune_mlir.frontend.special.errors import ERRORS
from kitsune_mlir.frontend.special.gamma import GAMMA
from kitsune_mlir.frontend.special.zeta import ZETA

__all__ = ["SPECIAL"]

SPECIAL: dict[Any, Callable[..., Any]] = {**GAMMA, **ZETA, **ERRORS, **BESSEL}
"""Operator → decomposition."""
