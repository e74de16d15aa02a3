"""Products with few rows, whose weights lie along the sum: their time is that of reading the weights once."""

from dataclasses import dataclass

from torch_mlir import ir

from kitsune_mlir.dialects.access import affine_maps, loop_sizes, plain_loops
from kitsune_mlir.dialects.contraction import contraction_dims
from kitsune_mlir.dialects.products import is_projected_product

__all__ = ["OPERANDS", "ROWS", "RUN_BYTES", "FewRows", "few_rows"]

ROWS = 64
"""Up to this many rows the weights take longer to come from memory than the products take on tensor cores."""
OPERANDS = {"bf16": 2, "f16": 2, "f32": 4}
"""Element types that the `gemv` engine multiplies, and their bytes."""
RUN_BYTES = 16
"""What a bulk copy moves is a multiple of this."""


@dataclass(frozen=True)
class FewRows:
    """A product of few rows.

    Attributes:
        input, weights: numbers of the operands that have the rows and the columns.
        columns: loop of the columns.
    """

    input: int
    weights: int
    columns: int


def few_rows(op: ir.Operation) -> FewRows | None:
    """A product that the engine can do; None for any other."""
    if not is_projected_product(op):
        return None
    types = [str(ir.ShapedType(v.type).element_type) for v in op.operands]
    if types[0] != types[1] or types[0] not in OPERANDS:
        return None
    sizes = loop_sizes(op)
    first, second, out = ([loop for loop in plain_loops(m) if loop is not None and sizes[loop] > 1] for m in affine_maps(op))
    sums = [loop for loop in contraction_dims(op).k if sizes[loop] > 1]
    if not out or len(out) > 2 or len(sums) != 1:
        return None
    rows, columns = out[:-1], out[-1]
    weights = 0 if columns in first else 1
    wanted = [columns, *sums], [*rows, *sums]
    if any(sizes[loop] > ROWS for loop in rows) or (first, second) != (wanted[weights], wanted[1 - weights]):
        return None
    whole = sizes[sums[0]] * OPERANDS[types[0]] % RUN_BYTES == 0
    return FewRows(1 - weights, weights, columns) if whole else None
