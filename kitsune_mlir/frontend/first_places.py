"""Places of maxima in windows, which arrive as "the first number that is chosen", become the least of the chosen numbers.

torch-mlir's maximum pooling looks for its maxima a second time: a number that is still -1 becomes the place of an element that
is the maximum. Places rise with the loops that look, so the first one is the least, and a minimum is a reduction that can be
done in any order. As in PyTorch, an element that is no number is the maximum, which it does not equal, and one of the padding,
whose place would be outside of the image, never is, where all others are minus infinity too.
"""

from __future__ import annotations

from torch_mlir import ir
from torch_mlir.dialects import arith, linalg, tensor

from kitsune_mlir.dialects.access import constant_of
from kitsune_mlir.dialects.products import constant_fill, defining_op

__all__ = ["find_least_places"]

EQUAL = 0
"""Number of the predicate of `arith.cmpi`."""
NONE, BEYOND = -1, (1 << 63) - 1


def find_least_places(block: ir.Block) -> None:
    """Rewrite all such reductions of a function's body, in place."""
    for op in [o.operation for o in block.operations if o.operation.name == "linalg.generic"]:
        if (choice := _chosen(op)) is not None:
            with ir.InsertionPoint(op), op.location:
                _rewrite(op, *choice)


def _chosen(op: ir.Operation) -> tuple[ir.Value, ir.Value] | None:
    """The condition and the place of `out == -1 ? (condition ? place : out) : out`, which starts with -1; None of others."""
    body = op.regions[0].blocks[0]
    if len(op.results) != 1 or str(ir.RankedTensorType(op.results[0].type).element_type) != "i64":
        return None
    out = body.arguments[len(op.operands) - 1]
    start = defining_op(op.operands[len(op.operands) - 1])
    fill = constant_fill(start) if start is not None else None
    if fill is None or constant_of(fill.results[0]) != NONE:
        return None
    outer = defining_op(body.operations[len(body.operations) - 1].operands[0])
    if outer is None or outer.name != "arith.select" or outer.operands[2] != out:
        return None
    test, inner = (defining_op(value) for value in list(outer.operands)[:2])
    if test is None or test.name != "arith.cmpi" or ir.IntegerAttr(test.attributes["predicate"]).value != EQUAL:
        return None
    if test.operands[0] != out or constant_of(test.operands[1]) != NONE:
        return None
    if inner is None or inner.name != "arith.select" or inner.operands[2] != out or len(list(out.uses)) != 3:
        return None
    return inner.operands[0], inner.operands[1]


def _may_be_first(condition: ir.Value) -> ir.Value:
    """Whether an element is the maximum: it is equal to it (`condition`), or no number, and lies in the image."""
    compared = defining_op(condition)
    if compared is None or compared.name != "arith.cmpf":
        return condition
    read = next((made for v in compared.operands if (made := defining_op(v)) and made.name == "tensor.extract"), None)
    if read is None:
        return condition
    element, *places = read.results[0], *list(read.operands)[1:]
    found = arith.ori(condition, arith.cmpf(arith.CmpFPredicate.UNE, element, element))
    pad = defining_op(read.operands[0])
    if pad is None or pad.name != "tensor.pad":
        return found
    before, after = (list(ir.DenseI64ArrayAttr(pad.attributes[name])) for name in ("static_low", "static_high"))
    for place, low, high, extent in zip(places, before, after, ir.RankedTensorType(pad.operands[0].type).shape, strict=True):
        if low or high:  # without a sign, what is before the image is beyond it
            own = arith.subi(place, arith.constant(place.type, low))
            found = arith.andi(found, arith.cmpi(arith.CmpIPredicate.ult, own, arith.constant(place.type, extent)))
    return found


def _rewrite(op: ir.Operation, condition: ir.Value, place: ir.Value) -> None:
    body, type_ = op.regions[0].blocks[0], ir.RankedTensorType(op.results[0].type)
    word = type_.element_type
    start = linalg.fill(arith.constant(word, BEYOND), outs=[tensor.empty(list(type_.shape), word)])
    op.operands[len(op.operands) - 1] = start
    last = body.operations[len(body.operations) - 1].operation
    with ir.InsertionPoint(last):
        found = _may_be_first(condition)
        least = arith.minsi(body.arguments[len(op.operands) - 1], arith.select(found, place, arith.constant(word, BEYOND)))
        unread = [last.operands[0]]
        last.operands[0] = least
    while unread:
        maker = defining_op(unread.pop())
        if maker is not None and not any(list(result.uses) for result in maker.results):
            unread += maker.operands
            maker.erase()
    with ir.InsertionPoint.after(op):
        identity = ir.AffineMapAttr.get(ir.AffineMap.get_identity(type_.rank))
        attributes = {
            "indexing_maps": ir.ArrayAttr.get([identity, identity]),
            "iterator_types": ir.ArrayAttr.get([ir.Attribute.parse("#linalg.iterator_type<parallel>")] * type_.rank),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 1]),
        }
        empty = tensor.empty(list(type_.shape), word)
        named = ir.Operation.create("linalg.generic", [type_], [op.results[0], empty], attributes, regions=1)
        op.results[0].replace_all_uses_except(named.results[0], named)
        element = named.regions[0].blocks.append(word, word, arg_locs=[op.location] * 2)
        with ir.InsertionPoint(element):
            found = element.arguments[0]
            none = arith.cmpi(arith.CmpIPredicate.eq, found, arith.constant(word, BEYOND))
            ir.Operation.create("linalg.yield", [], [arith.select(none, arith.constant(word, NONE), found)])
