"""Products of a batch of matrices with a vector each: what is multiplied, and its sums, as two ops.

Every element of the matrices is read once, so such a product takes as long as its matrices come from memory. Tensor cores,
whose tiles are 8 columns wide at least, read them no faster, and far slower where they are of f32 or rows of odd widths; a sum
of what is multiplied element by element is done like other reductions. Where that is a sum of 16-bit columns that bulk copies
can bring, products are left: predicted 5.4 us, as sums 6.9 us (64 matrices of 512 x 128 on an H200).
"""

from torch_mlir import ir
from torch_mlir.dialects import arith, tensor

from kitsune_mlir.dialects.access import affine_maps, iterator_kinds, loop_sizes, plain_loops, shape_of
from kitsune_mlir.dialects.attribute_table import ATTENTION
from kitsune_mlir.dialects.products import body_of, is_projected_product
from kitsune_mlir.dialects.sizes import element_bytes
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.passes.reductions.associative import generic

__all__ = ["sum_vector_products"]

COPIED = 16
"""Strides in bytes are multiples of this where TMA reads."""


def sum_vector_products(module: ir.Operation) -> bool:
    """Write products of a batch, one of whose factors is a vector, as a multiplication and a sum; whether there was one."""
    found = [(op, matrices) for op in walk(module) if (matrices := _matrices(op)) is not None]
    for op, matrices in found:
        _replace(op, matrices)
    return bool(found)


def _matrices(op: ir.Operation) -> int | None:
    """The number of the factor that has all loops, where the other one is a vector of the batch; None for other products."""
    if ATTENTION in op.attributes or not is_projected_product(op):
        return None
    if not any(inner.name == "arith.mulf" for inner in body_of(op)):
        return None
    kinds, sizes = iterator_kinds(op), loop_sizes(op)
    wide = {loop for loop, size in enumerate(sizes) if size > 1}
    factors = [{loop for loop in plain_loops(map_) if loop in wide} for map_ in affine_maps(op)[:2]]
    for number, (matrices, vector) in enumerate((factors, factors[::-1])):
        batch = {loop for loop in vector if kinds[loop] == "parallel"}
        if matrices == wide and batch and vector <= matrices and all(kinds[loop] == "parallel" for loop in matrices - vector):
            return number if _along_rows(op, number) or not _in_bulk(op) else None
    return None


def _along_rows(op: ir.Operation, matrices: int) -> bool:
    """Whether the sum runs along the last dimension of the matrices."""
    sizes, kinds = loop_sizes(op), iterator_kinds(op)
    wide = [loop for loop in plain_loops(affine_maps(op)[matrices]) if loop is not None and sizes[loop] > 1]
    return kinds[wide[-1]] == "reduction"


def _in_bulk(op: ir.Operation) -> bool:
    """Whether both factors are 16-bit floats in rows that bulk copies bring to tensor cores as they are."""
    rows = [[size for size in shape_of(v) if size > 1] or [1] for v in list(op.operands)[:2]]
    return element_bytes(op.operands[0].type) == 2 and all(2 * row[-1] % COPIED == 0 for row in rows)


def _replace(op: ir.Operation, matrices: int) -> None:
    maps, sizes, kinds = affine_maps(op), loop_sizes(op), iterator_kinds(op)
    element = ir.ShapedType(op.results[0].type).element_type
    factors = list(op.operands)[:2]
    # Loops of extent 1 that the matrices do not have stay loops of the result.
    loops = [loop for loop in plain_loops(maps[matrices]) if loop is not None]
    loops += [loop for loop in range(len(sizes)) if loop not in loops]
    whole = ir.AffineMap.get(len(sizes), 0, [ir.AffineDimExpr.get(loop) for loop in loops])
    with ir.InsertionPoint(op), op.location:
        start = tensor.empty([sizes[loop] for loop in loops], element)
        made, block = generic(factors, [start], [*maps[:2], whole], ["parallel"] * len(sizes))
        with ir.InsertionPoint(block):
            wide = [v if v.type == element else arith.extf(element, v) for v in list(block.arguments)[:2]]
            ir.Operation.create("linalg.yield", [], [arith.mulf(*wide)])
        summed, block = generic([made.results[0]], [op.operands[2]], [whole, maps[2]], kinds)
        with ir.InsertionPoint(block):
            ir.Operation.create("linalg.yield", [], [arith.addf(*block.arguments)])
    op.results[0].replace_all_uses_with(summed.results[0])
    op.erase()
