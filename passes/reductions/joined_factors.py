"""Products whose result's rows or columns are those of a concatenation: a product for each of the joined tensors.

What a layer reads is often joined from several tensors, which the layer's own product, that sums over the columns, reads where
they lie. The gradient of its weight, which sums over the rows, has a column for each of the joined ones: where it reads them
apart, too, nobody needs the concatenation in memory. What is joined then are columns of the weight's gradient.
"""

from torch_mlir import ir
from torch_mlir.dialects import tensor

from kitsune_mlir.dialects.access import affine_maps, iterator_kinds, shape_of
from kitsune_mlir.dialects.products import body_of, defining_op, fills_zero, is_generic, is_projected_product
from kitsune_mlir.dialects.sizes import tensor_bytes
from kitsune_mlir.passes.reductions.associative import filled

__all__ = ["multiply_parts"]

LARGER = 4
"""Times its result that a joined tensor is at least: the parts' results are joined instead."""
LEAST_COLUMNS = 16
"""Of a part: narrower ones are no tiles of tensor cores."""


def multiply_parts(op: ir.Operation) -> bool:
    """Replace a product by those of the parts of one of its factors, if that factor is not needed as a whole then."""
    if not is_projected_product(op) or not fills_zero(defining_op(op.operands[2])):
        return False
    for number in (0, 1):
        dim = _joined(op, number)
        if dim is not None:
            _replace(op, number, dim)
            return True
    return False


def _joined(op: ir.Operation, number: int) -> int | None:
    """The dimension along which a factor is joined, where its parts had better be factors of products of their own."""
    concat, maps = defining_op(op.operands[number]), affine_maps(op)
    if concat is None or concat.name != "tensor.concat":
        return None
    dim = ir.IntegerAttr(concat.attributes["dim"]).value
    loop = ir.AffineDimExpr(maps[number].results[dim]).position
    walked = [ir.AffineDimExpr(e).position for e in maps[1 - number].results]
    if iterator_kinds(op)[loop] != "parallel" or loop in walked:
        return None
    if any(shape_of(part)[dim] < LEAST_COLUMNS or _gathered(part) for part in concat.operands):
        return None
    if tensor_bytes(concat.results[0].type) < LARGER * tensor_bytes(op.results[0].type):
        return None
    for use in concat.results[0].uses:
        reader = use.owner.operation
        if reader == op:
            continue
        if not is_projected_product(reader) or use.operand_number > 1:
            return None
        other = ir.AffineDimExpr(affine_maps(reader)[use.operand_number].results[dim]).position
        if iterator_kinds(reader)[other] != "reduction":
            return None
    return dim


def _gathered(value: ir.Value) -> bool:
    """Whether rows are picked by index: joined, they are read once more as they lie."""
    maker = defining_op(value)
    return maker is not None and is_generic(maker) and any(inner.name == "tensor.extract" for inner in body_of(maker))


def _replace(op: ir.Operation, number: int, dim: int) -> None:
    concat = defining_op(op.operands[number])
    assert concat is not None
    maps = affine_maps(op)
    loop = ir.AffineDimExpr(maps[number].results[dim]).position
    along = [ir.AffineDimExpr(e).position for e in maps[2].results].index(loop)
    shape, element = shape_of(op.results[0]), ir.ShapedType(op.results[0].type).element_type
    made = []
    with ir.InsertionPoint(op), op.location:
        for part in concat.operands:
            sizes = [shape_of(part)[dim] if n == along else size for n, size in enumerate(shape)]
            start = filled(sizes, element, 0.0)
            copy = op.clone().operation
            copy.operands[number], copy.operands[2] = part, start
            copy.results[0].set_type(start.type)
            made.append(copy.results[0])
        joined = tensor.concat(op.results[0].type, along, made)
    op.results[0].replace_all_uses_with(joined)
    op.erase()
