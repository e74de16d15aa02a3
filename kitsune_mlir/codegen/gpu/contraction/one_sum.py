"""Reading the body of a task for the `gemv` engine: products of one input with few rows, and element-wise steps around them."""

from __future__ import annotations

import dataclasses

from kitsune_mlir.codegen.gpu.contraction.match import (
    Pattern,
    Product,
    Sides,
    check_outputs,
    loaded,
    name_sides,
    read_body,
    unite_products,
)
from kitsune_mlir.codegen.gpu.interface.tile_view import TaskView
from kitsune_mlir.dialects.match_failure import MatchFailure

__all__ = ["DTYPES", "GemvPattern", "match_products"]

DTYPES = ("bf16", "f16", "f32")
"""Element types of the operands; sums are f32."""


@dataclasses.dataclass(eq=False)
class GemvPattern(Pattern):
    """A body that was understood: `products` have one size and one first operand; `product` is the first of them."""

    products: tuple[Product, ...] = ()


def match_products(task: TaskView) -> GemvPattern:
    """Read the body of a task.

    Raises:
        Mismatch: it is nothing but products of one loaded tensor with loaded weights and element-wise work around them.
    """
    sides = Sides(task)
    steps, products = read_body(task, sides, DTYPES)
    if not products:
        raise MatchFailure("no product")
    unite_products(task, sides, products)
    for product in products:
        name_sides(sides, product)
        for operand in (product.a, product.b):
            loaded(task, product, operand)
        if len(product.sums) != 1:
            raise MatchFailure(f"a sum over {len(product.sums)} dimensions; one is done")
    pattern = GemvPattern(task, steps, products[0], sides, tuple(products))
    check_outputs(pattern, products)
    return pattern
