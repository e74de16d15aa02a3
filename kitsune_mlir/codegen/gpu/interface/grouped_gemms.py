"""Products of one input that a GPU's stage may hold together: their weights come in one pass (SwiGLU's gate and up)."""

from collections.abc import Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.interface.few_rows import OPERANDS, ROWS, RUN_BYTES, few_rows
from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.contraction import subscripts
from kitsune_mlir.dialects.iteration import root_of
from kitsune_mlir.dialects.products import is_projected_product
from kitsune_mlir.dialects.sizes import HALF_TYPES

MOST, MOST_OF_FEW_ROWS = 3, 4
"""Products that share a pass: each needs registers for its sums. Four are the gates of an LSTM."""


def share_a_pass(products: Sequence[ir.Operation]) -> bool:
    """Whether an engine reads the weights of several products side by side: one input, equal sizes.

    The `gemv` engine does it for few rows, the `mma` engine for more than 64 rows of 16-bit floats.
    """
    if not 1 < len(products) <= (MOST_OF_FEW_ROWS if all(map(few_rows, products)) else MOST):
        return False
    found = [_operands(op) for op in products]
    first = found[0]
    return first is not None and all(
        one is not None
        and root_of(op.operands[one[0]]) == root_of(products[0].operands[first[0]])
        and shape_of(op.operands[one[1]]) == shape_of(products[0].operands[first[1]])
        for op, one in zip(products, found, strict=True)
    )


def _operands(op: ir.Operation) -> tuple[int, int] | None:
    """Numbers of the operands that hold the rows and the weights of a product that an engine can do beside others."""
    few = few_rows(op)
    if few is not None:
        return few.input, few.weights
    if not is_projected_product(op):
        return None
    types = {str(ir.ShapedType(v.type).element_type) for v in list(op.operands)[:2]}
    # Memory runs along the sum, in both: the products' columns then lie behind each other in shared memory.
    weights = {"mk,nk->mn": 1, "mk,nk->nm": 0}.get(subscripts(op))
    if len(types) > 1 or not types <= set(HALF_TYPES) or weights is None:
        return None
    height, terms = shape_of(op.operands[1 - weights])
    return (1 - weights, weights) if height > ROWS and terms * OPERANDS[types.pop()] % RUN_BYTES == 0 else None
