"""A weight's and a bias's gradient read one tangent: the sum of a product's operand is made where the product reads it.

A linear layer's gradients are `dy.T @ x` and the sum of `dy` over the same rows. As a stage of its own that sum reads all of
`dy` again; tensor cores can make it beside the product, as one more column (cuBLASLt calls it the epilogue BGRADA).
"""

from __future__ import annotations

from torch_mlir import ir

from kitsune_mlir.dialects.access import affine_maps, iterator_kinds, loop_sizes, plain_loops, shape_of
from kitsune_mlir.dialects.attribute_table import ATTENTION, OPERAND_SUM
from kitsune_mlir.dialects.contraction import contraction_dims
from kitsune_mlir.dialects.products import body_of, defining_op, fills_zero, is_contraction, is_generic, is_projected_product
from kitsune_mlir.dialects.sizes import HALF_TYPES, tensor_bytes

__all__ = ["mark_operand_sums", "rows_operand", "sums_of"]

LEAST_BYTES = 9 << 19
"""Of an operand. Smaller ones are read again from L2: a recommender's step (2,048 rows of 1,024) took 2 % longer with its sums
beside products, one of a mesh network (20,000 rows of 128, and 120,000) 7 % less (H200)."""


def rows_operand(product: ir.Operation) -> int | None:
    """The operand that has the rows of a product's result, its last dimension but one; None where it has no rows or columns."""
    dims, sizes = contraction_dims(product), loop_sizes(product)
    wide = [loop for loop in plain_loops(affine_maps(product)[2]) if loop is not None and sizes[loop] != 1]
    if len(wide) < 2 or len(dims.k) != 1:
        return None
    row, col = wide[-2:]
    if row in dims.m and col in dims.n:
        return 0
    return 1 if row in dims.n and col in dims.m else None


def mark_operand_sums(ops: list[ir.Operation]) -> list[ir.Operation]:
    """Mark sums that a product can make beside it, each with its product; the sums by their marks."""
    found: list[tuple[ir.Operation, ir.Operation]] = []
    for op in ops:
        if not is_contraction(op) or not is_projected_product(op) or ATTENTION in op.attributes:
            continue
        number = rows_operand(op)
        if number is None or not fills_zero(defining_op(op.operands[2])):
            continue
        taken = [sum_ for _, sum_ in found]
        sum_ = next((one for one in sums_of(op, number) if one not in taken), None)
        if sum_ is not None:
            found.append((op, sum_))
    for mark, pair in enumerate(found):  # afterwards: an operation's hash changes with its attributes
        for op in pair:
            op.attributes[OPERAND_SUM] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), mark)
    return [sum_ for _, sum_ in found]


def sums_of(product: ir.Operation, number: int) -> list[ir.Operation]:
    """The sums of an operand over the terms of a product, for each of its rows: plain sums in f32 of 16-bit numbers."""
    value = product.operands[number]
    if str(ir.ShapedType(value.type).element_type) not in HALF_TYPES or tensor_bytes(value.type) < LEAST_BYTES:
        return []
    (term,) = contraction_dims(product).k
    walked = plain_loops(affine_maps(product)[number])
    kinds = ["reduction" if loop == term else "parallel" for loop in walked]
    return [user for use in value.uses if _adds(user := use.owner.operation, value, kinds)]


def _adds(op: ir.Operation, value: ir.Value, kinds: list[str]) -> bool:
    """Whether an op adds up a value, and nothing else, over the dimensions that are a "reduction" in `kinds`."""
    if not is_generic(op) or len(op.operands) != 2 or op.operands[0] != value or not fills_zero(defining_op(op.operands[1])):
        return False
    read, made = affine_maps(op)
    loops, own = plain_loops(read), iterator_kinds(op)
    if None in loops or len(set(loops)) != len(own) or [own[loop] for loop in loops if loop is not None] != kinds:
        return False
    if plain_loops(made) != [loop for loop in loops if loop is not None and own[loop] == "parallel"]:
        return False
    return str(ir.ShapedType(op.results[0].type).element_type) == "f32" and _is_sum(op) and len(shape_of(value)) == len(own)


def _is_sum(op: ir.Operation) -> bool:
    """Whether a body extends its term and adds it to what there is."""
    names = [inner.name for inner in body_of(op)]
    return names == ["arith.extf", "arith.addf"]
