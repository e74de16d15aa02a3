"""Products of matrices so small that a tile of tensor cores would be nearly empty: a thread makes each number alone."""

import math

from torch_mlir import ir

from kitsune_mlir.dialects.access import loop_sizes
from kitsune_mlir.dialects.contraction import contraction_dims
from kitsune_mlir.dialects.products import is_projected_product

__all__ = ["is_tiny"]

MOST_MULTIPLICATIONS = 1024
"""Of a matrix: a tile takes a block about 0.8 us on an H200 however empty it is, a thread's loop of 16 terms less."""
MOST_TERMS = 64


def is_tiny(op: ir.Operation) -> bool:
    """Whether a product is of a batch of such matrices."""
    if not is_projected_product(op):
        return False
    sizes, dims = loop_sizes(op), contraction_dims(op)
    terms = math.prod(sizes[loop] for loop in dims.k)
    each = terms * math.prod(sizes[loop] for loop in (*dims.m, *dims.n))
    return math.prod(sizes[loop] for loop in dims.batch) > 1 and each <= MOST_MULTIPLICATIONS and terms <= MOST_TERMS
