"""Products of one input that a GPU's stage may hold together: their weights come in one pass (SwiGLU's gate and up)."""

from collections.abc import Sequence

from torch_mlir import ir

from kitsune_mlir.dialects.access import shape_of

from .copies import root_of
from .tiles_gemv import few_rows

MOST = 3
"""Products that share a pass: each needs registers for its sums."""


def share_a_pass(products: Sequence[ir.Operation]) -> bool:
    """Whether the `gemv` engine reads the weights of several products side by side: few rows, one input, equal sizes."""
    if not 1 < len(products) <= MOST:
        return False
    found = [few_rows(op) for op in products]
    first = found[0]
    return first is not None and all(
        one is not None
        and root_of(op.operands[one.input]) == root_of(products[0].operands[first.input])
        and shape_of(op.operands[one.weights]) == shape_of(products[0].operands[first.weights])
        for op, one in zip(products, found, strict=True)
    )
