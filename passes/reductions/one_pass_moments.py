"""A mean and the squares of what differs from it, of columns of 16-bit numbers: one reduction, and memory is read once.

Of two sums one after the other, of x and of (x - mean)^2, both read all of x. Both are made of the sums of x - k and of its
square, whatever k is: S = A + n k, and B - A A / n. Where k is one of the column's own numbers, it is about as far from
the mean as the others are, so B is about twice as large as the difference (less than twice the squares of all that is lost in
16 bits where k lies far out), and a column of equal numbers has squares of exactly 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch_mlir import ir
from torch_mlir.dialects import arith, tensor

from kitsune_mlir.dialects.access import affine_maps, iterator_kinds, loop_sizes, plain_loops, shape_of
from kitsune_mlir.dialects.products import body_of, defining_op, is_generic, yield_of
from kitsune_mlir.dialects.sizes import element_bytes

from .associative import generic
from .sibling_sums import sums_columns

__all__ = ["moments_in_one_pass"]


def moments_in_one_pass(ops: Sequence[ir.Operation]) -> list[ir.Operation]:
    """Join each such pair of sums of a block; the ops that are left, with the new ones.

    Args:
        ops: of one block, in order.
    """
    left = list(ops)
    for op in ops:
        first = _sum_of_mean(op)
        if first is None or first not in left:
            continue
        made = _join(first, op)
        left[left.index(op) : left.index(op) + 1] = made
        left.remove(first)
        for one in (op, first):
            one.erase()
    return left


def _sum_of_mean(op: ir.Operation) -> ir.Operation | None:
    """The sum whose mean the terms of another sum are the squared distances from, where both are of one 16-bit tensor."""
    if not sums_columns(op) or len(op.operands) != 3 or len(op.results) != 1:
        return None
    x, mean, _ = op.operands
    maps, block = affine_maps(op), op.regions[0].blocks[0]
    names = [inner.name for inner in body_of(op)]
    if element_bytes(x.type) != 2 or maps[1] != maps[2] or names != ["arith.extf", "arith.subf", "arith.mulf", "arith.addf"]:
        return None
    wide, apart, square, added = body_of(op)
    if not (
        wide.operands[0] == block.arguments[0]
        and list(apart.operands) == [wide.results[0], block.arguments[1]]
        and list(square.operands) == [apart.results[0], apart.results[0]]
        and {*added.operands} == {square.results[0], block.arguments[2]}
        and yield_of(op).operands[0] == added.results[0]
    ):
        return None
    first = _divided_by(mean, _terms(op))
    return first if first is not None and _is_sum(first, op) else None


def _terms(op: ir.Operation) -> int:
    """How many terms each result has."""
    return math.prod(size for size, kind in zip(loop_sizes(op), iterator_kinds(op), strict=True) if kind == "reduction")


def _divided_by(value: ir.Value, count: int) -> ir.Operation | None:
    """What makes the numbers of which a value is the `count`-th part."""
    op = defining_op(value)
    if op is None or not is_generic(op) or len(op.operands) != 2 or len({*affine_maps(op)}) != 1:
        return None
    names = [inner.name for inner in body_of(op)]
    if names != ["arith.divf"] or body_of(op)[0].operands[0] != op.regions[0].blocks[0].arguments[0]:
        return None
    by = defining_op(body_of(op)[0].operands[1])
    if by is None or by.name != "arith.constant" or ir.FloatAttr(by.attributes["value"]).value != count:
        return None
    return defining_op(op.operands[0])


def _is_sum(first: ir.Operation | None, op: ir.Operation) -> bool:
    """Whether an op is the sum of the first operand of another over the same loops."""
    if first is None or not sums_columns(first) or len(first.operands) != 2 or first.operands[0] != op.operands[0]:
        return False
    maps = affine_maps(op)
    if affine_maps(first) != [maps[0], maps[2]] or iterator_kinds(first) != iterator_kinds(op):
        return False
    body, block = body_of(first), first.regions[0].blocks[0]
    return (
        [inner.name for inner in body] == ["arith.extf", "arith.addf"]
        and {*body[1].operands} == {body[0].results[0], block.arguments[1]}
        and first.operands[1] == op.operands[2]
    )


def _join(first: ir.Operation, last: ir.Operation) -> list[ir.Operation]:
    """Put one reduction in the place of two; what reads them reads what is made of its results then.

    Gives the reduction, and what is made of it.
    """
    x, start = first.operands
    maps, count = affine_maps(last), _terms(last)
    with ir.InsertionPoint(first), first.location:
        k = _first_numbers(x, maps[0], maps[2])
        sums, block = generic([x, k], [start, start], [maps[0], maps[2], maps[2], maps[2]], iterator_kinds(last))
        with ir.InsertionPoint(block):
            number, origin, total, squares = block.arguments
            apart = arith.subf(arith.extf(total.type, number), arith.extf(total.type, origin))
            ends = [arith.addf(apart, total), arith.addf(arith.mulf(apart, apart), squares)]
            ir.Operation.create("linalg.yield", [], ends)
        ends = [_of_column([sums.results[0], k], count, _whole_sum), _of_column([*sums.results], count, _centred)]
    for old, new in zip((first, last), ends, strict=True):
        old.results[0].replace_all_uses_with(new.results[0])
    return [sums, *ends]


def _first_numbers(x: ir.Value, walked: ir.AffineMap, results: ir.AffineMap) -> ir.Value:
    """The numbers of a tensor at place 0 of all loops that its sums are over."""
    kept = plain_loops(results)
    shape, loops = shape_of(x), plain_loops(walked)
    sizes = [size if loop in kept else 1 for size, loop in zip(shape, loops, strict=True)]
    element = ir.ShapedType(x.type).element_type
    static = {
        "static_offsets": ir.DenseI64ArrayAttr.get([0] * len(sizes)),
        "static_sizes": ir.DenseI64ArrayAttr.get(sizes),
        "static_strides": ir.DenseI64ArrayAttr.get([1] * len(sizes)),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 0, 0, 0]),
    }
    type_ = ir.RankedTensorType.get([size for size, loop in zip(sizes, loops, strict=True) if loop in kept], element)
    return ir.Operation.create("tensor.extract_slice", [type_], [x], static).results[0]


def _of_column(inputs: Sequence[ir.Value], count: int, body) -> ir.Operation:
    """A map of vectors, in f32."""
    type_ = ir.RankedTensorType(inputs[0].type)
    identity = ir.AffineMap.get_identity(type_.rank)
    out = tensor.empty(type_.shape, type_.element_type)
    op, block = generic(inputs, [out], [identity] * (len(inputs) + 1), ["parallel"] * type_.rank)
    with ir.InsertionPoint(block):
        value = body(*list(block.arguments)[:-1], arith.constant(type_.element_type, float(count)))
        ir.Operation.create("linalg.yield", [], [value])
    return op


def _whole_sum(total: ir.Value, origin: ir.Value, count: ir.Value) -> ir.Value:
    return arith.addf(total, arith.mulf(arith.extf(total.type, origin), count))


def _centred(total: ir.Value, squares: ir.Value, count: ir.Value) -> ir.Value:
    found = arith.subf(squares, arith.mulf(total, arith.divf(total, count)))
    return arith.maximumf(found, arith.constant(total.type, 0.0))
