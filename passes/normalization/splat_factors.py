"""Products a factor of which is one number everywhere, such as a recurrent layer's first hidden state.

They are a sum of the other factor, times the number: its loops alone are walked, and the result is repeated along the others.
What is not finite in the other factor stays so.
"""

from torch_mlir import ir
from torch_mlir.dialects import arith, tensor

from kitsune_mlir.dialects.access import affine_maps, iterator_kinds, shape_of
from kitsune_mlir.dialects.attribute_table import NO_FUSION
from kitsune_mlir.dialects.products import constant_fill, defining_op, is_projected_product
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.passes.reductions.associative import filled, generic

__all__ = ["sum_beside_splats"]


def sum_beside_splats(module: ir.Operation) -> None:
    """Replace each such product, of sums that begin with a constant, by a reduction and a repetition."""
    for op in [op for op in walk(module) if is_projected_product(op)]:
        start = constant_fill(defining_op(op.operands[2]))
        if start is None or not isinstance(start.attributes["value"], ir.FloatAttr):
            continue
        for number in (0, 1):
            value = _splat(op.operands[number])
            if value is not None and _replaced(op, number, value, ir.FloatAttr(start.attributes["value"]).value):
                break


def _splat(value: ir.Value) -> float | None:
    """The number that a float tensor is full of."""
    op = defining_op(value)
    fill = constant_fill(op)
    if fill is not None:
        held = fill.attributes["value"]
        return ir.FloatAttr(held).value if isinstance(held, ir.FloatAttr) else None
    if op is None or op.name != "arith.constant" or not isinstance(op.attributes["value"], ir.DenseElementsAttr):
        return None
    held = ir.DenseElementsAttr(op.attributes["value"])
    if not held.is_splat:
        return None
    number = held.get_splat_value()
    return ir.FloatAttr(number).value if isinstance(number, ir.FloatAttr) else None


def _replaced(op: ir.Operation, number: int, value: float, start: float) -> bool:
    """Rebuild a product whose operand `number` is full of `value`; False where the other factor lacks a loop of the sums."""
    maps, kinds = affine_maps(op), iterator_kinds(op)
    other, out = maps[1 - number], maps[2]
    held = [ir.AffineDimExpr(e).position for e in other.results]
    if any(kind == "reduction" and loop not in held for loop, kind in enumerate(kinds)):
        return False
    kept = [loop for loop in (ir.AffineDimExpr(e).position for e in out.results) if loop in held]
    if len(kept) == len(out.results):
        return False  # nothing is walked less often
    shape, source = shape_of(op.results[0]), op.operands[1 - number]
    places = [ir.AffineDimExpr(e).position for e in out.results]
    element = ir.ShapedType(op.results[0].type).element_type
    order = {loop: n for n, loop in enumerate(sorted(held))}
    along = [ir.AffineMap.get(len(held), 0, [ir.AffineDimExpr.get(order[loop]) for loop in loops]) for loops in (held, kept)]
    with ir.InsertionPoint(op), op.location:
        sums, block = generic(
            [source],
            [filled([shape[places.index(loop)] for loop in kept], element, start)],
            along,
            [kinds[loop] for loop in sorted(held)],
        )
        with ir.InsertionPoint(block):
            factor, total = block.arguments
            if factor.type != element:
                factor = arith.extf(element, factor)
            scaled = arith.mulf(factor, arith.constant(element, value))
            ir.Operation.create("linalg.yield", [], [arith.addf(total, scaled)])
        rank = len(shape)
        repeated = ir.AffineMap.get(rank, 0, [ir.AffineDimExpr.get(places.index(loop)) for loop in kept])
        whole, block = generic(
            [sums.results[0]], [tensor.empty(shape, element)], [repeated, ir.AffineMap.get_identity(rank)], ["parallel"] * rank
        )
        with ir.InsertionPoint(block):
            ir.Operation.create("linalg.yield", [], [block.arguments[0]])
        whole.attributes[NO_FUSION] = ir.UnitAttr.get()  # rows that are repeated are none of the reduction's
    op.results[0].replace_all_uses_with(whole.results[0])
    op.erase()
    return True
