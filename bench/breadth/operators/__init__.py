"""The operators' part of the breadth benchmark: families of PyTorch's operators, large and small, in bf16 and f32."""

from __future__ import annotations

from bench.breadth.operators.images import images
from bench.breadth.operators.indices import indices
from bench.breadth.operators.maps import maps
from bench.breadth.operators.movement import movement
from bench.breadth.operators.products import products
from bench.breadth.operators.rows import rows
from bench.case import BenchCase

__all__ = ["operators"]


def operators() -> list[BenchCase]:
    """All of them."""
    return [*maps(), *rows(), *movement(), *indices(), *images(), *products()]
