"""Reading the body of a task for the `gemv` engine: products of one input with few rows, and element-wise steps around them."""

from __future__ import annotations

import dataclasses

from kitsune_mlir.codegen.gpu.mma_match import (
    Mismatch,
    Pattern,
    Product,
    Sides,
    check_outputs,
    name_sides,
    read_body,
    wide_dims,
)
from kitsune_mlir.codegen.gpu.tasks import Load, TaskView
from kitsune_mlir.dialects.access import affine_maps, shape_of

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
        raise Mismatch("no product")
    first = products[0]
    for other in products[1:]:
        _unite(sides, first, other)
    for product in products:
        name_sides(sides, product)
    pattern = GemvPattern(task, steps, first, sides, tuple(products))
    inputs = [_loaded(task, product, product.a) for product in products]
    for product, source in zip(products, inputs, strict=True):
        _loaded(task, product, product.b)
        if len(product.sums) != 1:
            raise Mismatch(f"a sum over {len(product.sums)} dimensions; one is done")
        if (source.buffer.memory, source.offsets, source.sizes) != (
            inputs[0].buffer.memory,
            inputs[0].offsets,
            inputs[0].sizes,
        ):
            raise Mismatch("several products of different inputs")
    check_outputs(pattern, products)
    return pattern


def _loaded(task: TaskView, product: Product, number: int) -> Load:
    load = task.load_of(product.op.operands[number])
    if load is None:
        raise Mismatch("an operand of the product is computed in the task")
    return load


def _unite(sides: Sides, first: Product, other: Product) -> None:
    """Rows and columns of two products of one size are the same rows and columns of the tile."""

    def key(product: Product) -> tuple:
        return product.rows, product.cols, [length for _, length in product.sums], product.dtype

    if key(first) != key(other):
        raise Mismatch("several products of different sizes or types")
    loops = []
    for product in (first, other):
        out = affine_maps(product.op)[2]
        wide = wide_dims(shape_of(product.op.results[0]))
        loops.append([("loop", product.op, out.results[dim].position) for dim in wide])
    for one, same in zip(*loops, strict=True):
        sides.unite(one, same)
