"""Products of matrices so small that a tile of tensor cores would be nearly empty: a thread makes each number alone.

Of f32 also single products that read little: on tensor cores each of their factors is two numbers of tf32, which warps split
before they multiply, so that 63 x 129 by a vector took 16 us on an H200 and a sum over rows of as many numbers 3.5.
"""

import math

from torch_mlir import ir

from kitsune_mlir.dialects.access import loop_sizes
from kitsune_mlir.dialects.contraction import contraction_dims
from kitsune_mlir.dialects.products import is_projected_product

__all__ = ["MOST_TERMS", "is_tiny"]

MOST_MULTIPLICATIONS = 3072
"""Of a matrix: a tile takes a block about 0.8 us on an H200 however empty it is, a thread's loop of 16 terms less. (5,000 of
9 x 33 by 33 x 9 took 68 us on tensor cores, 10,000 of 6 x 33 by 33 x 6 more than 94.)"""
MOST_TERMS = 64
MOST_BY_VECTOR, MOST_OF_F32 = 1 << 14, 1 << 18
"""Multiplications of an f32 product by a vector, which a few blocks do, and of others, which have a block for each row."""
MOST_F32_TERMS = 1024


def is_tiny(op: ir.Operation) -> bool:
    """Whether a product is of a batch of such matrices, or a small one of f32."""
    if not is_projected_product(op):
        return False
    sizes, dims = loop_sizes(op), contraction_dims(op)
    terms, rows, columns, batch = (math.prod(sizes[loop] for loop in d) for d in (dims.k, dims.m, dims.n, dims.batch))
    each = terms * rows * columns
    if batch > 1:
        return each <= MOST_MULTIPLICATIONS and terms <= MOST_TERMS
    if not all(isinstance(ir.RankedTensorType(operand.type).element_type, ir.F32Type) for operand in list(op.operands)[:2]):
        return False
    if rows == 1 or columns == 1:
        return each <= MOST_BY_VECTOR
    return each <= MOST_OF_F32 and terms <= MOST_F32_TERMS
