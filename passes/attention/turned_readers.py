"""Who reads an attention's result beside the operation that turns it reads what was turned.

A projection reads the rows of all heads side by side, for which the result is put in another order as the attention stores it.
A gradient reads the result, too: in the first order it would have to be stored twice.
"""

from torch_mlir import ir

from kitsune_mlir.dialects.access import affine_maps, is_tensor, iterator_kinds, shape_of
from kitsune_mlir.dialects.iteration import root_of
from kitsune_mlir.dialects.products import body_of, defining_op, is_generic, is_movement, is_projected_product
from kitsune_mlir.dialects.verify import captures

__all__ = ["read_turned"]


def read_turned(block: ir.Block) -> None:
    """Let generics read what products of a batch make in the order in which another one puts it, in place."""
    order = {hash(op.operation): n for n, op in enumerate(block.operations)}
    for op in [o.operation for o in block.operations]:
        if not is_movement(op) or body_of(op) or not is_tensor(op.operands[0]):
            continue
        source, (given, made) = op.operands[0], affine_maps(op)
        maker = defining_op(source)
        turns = given != made and given.is_permutation and made.is_permutation
        if not turns or not _rounds_products(maker):
            continue
        others = [use for use in source.uses if use.owner.operation != op]
        readers = [use.owner.operation for use in others]
        if any(not _reads_plainly(reader, source) or order[hash(reader)] < order[hash(op)] for reader in readers):
            continue
        walked = [ir.AffineDimExpr(e).position for e in given.results]
        dims = [walked.index(ir.AffineDimExpr(e).position) for e in made.results]  # of the source, by those of the result
        for reader in dict.fromkeys(readers):
            _turn(reader, source, op.results[0], dims)


def _rounds_products(op: ir.Operation | None) -> bool:
    """Whether a map makes its result of products of a batch alone."""
    if op is None or not is_generic(op) or len(op.operands) != 2 or "reduction" in iterator_kinds(op):
        return False
    product = defining_op(root_of(op.operands[0]))
    return product is not None and is_projected_product(product) and len(shape_of(product.results[0])) > 2


def _reads_plainly(op: ir.Operation, value: ir.Value) -> bool:
    """Whether an operation reads a tensor by its maps alone, and is part of nothing that another pass has marked."""
    if not is_generic(op) or value in captures(op) or any(name.startswith("kitsune.") for name in op.attributes):
        return False
    return value not in list(op.operands)[len(op.operands) - len(op.results) :]


def _turn(op: ir.Operation, value: ir.Value, turned: ir.Value, dims: list[int]) -> None:
    maps = affine_maps(op)
    for number, operand in enumerate(op.operands):
        if operand == value:
            maps[number] = ir.AffineMap.get(maps[number].n_dims, 0, [maps[number].results[dim] for dim in dims])
            op.operands[number] = turned
    assert len(dims) == len(shape_of(turned))
    op.attributes["indexing_maps"] = ir.ArrayAttr.get([ir.AffineMapAttr.get(map_) for map_ in maps])
