"""Odd columns of a product, such as scores over a vocabulary, become wider for all that reads them in a step of training.

Rows of 30,522 numbers of 16 bits begin at no multiples of 16 bytes: results of tensor cores go there element by element, a
softmax of them loads two at a time, and both products that read the gradient want a copy of it, one of them transposed. So the
factor that makes the columns gets rows of zeros, and what is made of them is as wide. Sums along them leave the new ones out,
and what has the axis at the end is cut.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch_mlir import ir
from torch_mlir.dialects import arith, tensor

from kitsune_mlir.dialects.access import affine_maps, iterator_kinds, loop_sizes, plain_loops, shape_of
from kitsune_mlir.dialects.attribute_table import NO_FUSION
from kitsune_mlir.dialects.cloning import clone_with
from kitsune_mlir.dialects.contraction import subscripts
from kitsune_mlir.dialects.products import (
    constant_fill,
    defining_op,
    is_contraction,
    is_generic,
    is_projected_product,
    yield_of,
)
from kitsune_mlir.dialects.sizes import HALF_TYPES, tensor_bytes
from kitsune_mlir.dialects.verify import captures
from kitsune_mlir.passes.layouts.by_index import filled, padded_by_index, place_along
from kitsune_mlir.passes.reductions.associative import NEUTRAL, constant_like, reduction_of
from kitsune_mlir.passes.remarks import remark
from kitsune_mlir.passes.tile_program.tiling import extract_slice

__all__ = ["widen_axis"]

ROW = 8
"""Numbers of 16 bits that a row has a multiple of."""
LEAST = 1024
"""Columns: of fewer, copies are soon made."""
SMALL = 64
"""Times smaller than the product is a tensor that is widened by a copy, such as a bias."""


@dataclass
class _Axis:
    """Which tensors walk a product's columns: by value the dimension, by operation (in order) the loop.

    Attributes:
        product: what makes the columns.
        size, wide: of these, as they are and as they become.
    """

    product: ir.Operation
    size: int
    wide: int
    dims: dict[ir.Value, int]
    loops: dict[ir.Operation, int]


def widen_axis(op: ir.Operation) -> bool:
    """Widen the columns of a product, if they are odd and another product reads them; whether that is so."""
    if (
        subscripts(op) not in ("mk,nk->mn", "mk,kn->mn")
        or str(ir.ShapedType(op.operands[1].type).element_type) not in HALF_TYPES
    ):
        return False
    size = shape_of(op.results[0])[1]
    if any(name.startswith("kitsune.") for name in op.attributes):
        return False
    if size % ROW == 0 or size < LEAST or shape_of(op.operands[0])[0] < LEAST:
        return False
    axis = _axis(op, size)
    if not any(is_contraction(one) for one in axis.loops if one != op):
        return False
    _rewrite(op, axis)
    remark(op, f"{size} columns become {axis.wide}, so that rows begin at multiples of {2 * ROW} bytes")
    return True


def _axis(product: ir.Operation, size: int) -> _Axis:
    """What walks a product's columns, as far as that can be widened."""
    last = plain_loops(affine_maps(product)[-1])[1]
    assert last is not None
    axis = _Axis(product, size, -(-size // ROW) * ROW, {product.results[0]: 1}, {product: last})
    small = tensor_bytes(product.results[0].type) // SMALL
    block = [one.operation for one in product.block.operations]
    known = 0
    while known < len(axis.loops):  # what is taken in beside something may have readers before it
        known = len(axis.loops)
        for op in block:
            if op in axis.loops or not is_generic(op) or len(op.results) != 1 or not any(v in axis.dims for v in op.operands):
                continue
            loop = _loop(op, axis)
            if loop is not None and (found := _taken(op, loop, axis, small)) is not None:
                axis.loops.update(found)
                kept = ((one, _kept(one, number, product)) for one, number in found.items())
                axis.dims.update((one.results[0], dim) for one, dim in kept if dim is not None)
    axis.loops = {op: axis.loops[op] for op in block if op in axis.loops}
    return axis


def _kept(op: ir.Operation, loop: int, product: ir.Operation) -> int | None:
    """The dimension of an operation's result that a loop walks, if its readers are to have it wide: a gradient of the factor
    goes as far as its rounding, one of a bias ends where it is summed."""
    made = plain_loops(affine_maps(op)[-1])
    if loop not in made or len(made) < 2:
        return None
    makers = [defining_op(value) for value in list(op.operands)[:-1]]
    ends = any(maker is not None and maker != product and is_contraction(maker) for maker in makers)
    return None if ends else made.index(loop)


def _loop(op: ir.Operation, axis: _Axis) -> int | None:
    """The loop of an operation that walks the axis of all tensors that have it; None where there is none, or more than one."""
    maps = affine_maps(op)
    found = {plain_loops(maps[n])[axis.dims[value]] for n, value in enumerate(op.operands) if value in axis.dims}
    return found.pop() if len(found) == 1 else None


def _taken(op: ir.Operation, loop: int, axis: _Axis, small: int) -> dict[ir.Operation, int] | None:
    """An operation and its loop, with maps that only it can have wide, if it can walk the wider axis: its other operands along
    it are small, and it can leave out what is new. None if it cannot."""
    if loop_sizes(op)[loop] != axis.size or any(name.startswith("kitsune.") for name in op.attributes):
        return None
    if any(value in axis.dims for value in captures(op)):
        return None
    maps, starts, found = affine_maps(op), len(op.operands) - len(op.results), {op: loop}
    for n, value in enumerate(op.operands):
        walked = plain_loops(maps[n])
        if value in axis.dims or loop not in walked or (is_contraction(op) and n < 2):
            continue
        maker = defining_op(value)
        if n >= starts:
            if maker is None or (maker.name != "tensor.empty" and constant_fill(maker) is None):
                return None
        elif tensor_bytes(value.type) > small:
            if maker is None or not is_generic(maker) or len(maker.results) != 1 or {*iterator_kinds(maker)} != {"parallel"}:
                return None
            own = plain_loops(affine_maps(maker)[-1])[walked.index(loop)]
            more = None if own is None else _taken(maker, own, axis, small)
            if more is None:
                return None
            found.update(more)
    return found if _leaves_out(op, loop) else None


def _leaves_out(op: ir.Operation, loop: int) -> bool:
    """Whether an operation can go without some of what it walks."""
    if is_contraction(op):
        return is_projected_product(op)
    if iterator_kinds(op)[loop] == "reduction":
        found = reduction_of(op)
        return found is not None and not isinstance(found, str)
    return loop in plain_loops(affine_maps(op)[-1])


def _rewrite(product: ir.Operation, axis: _Axis) -> None:
    """Make every operation of an axis again, wider; who else reads its results reads a part of them."""
    wide: dict[ir.Value, ir.Value] = {}
    padded: dict[tuple[ir.Value, int], ir.Value] = {}
    for op, loop in axis.loops.items():
        with op.location:
            new = _wider(op, loop, axis, wide, padded)
            if loop in plain_loops(affine_maps(op)[-1]):
                wide[op.results[0]] = new.results[0]
            else:
                op.results[0].replace_all_uses_with(new.results[0])
    for op in reversed(list(axis.loops)):
        old = op.results[0]
        if list(old.uses):
            found = wide[old]
            with ir.InsertionPoint.after(found.owner), op.location:
                part = extract_slice(found, [0] * len(shape_of(old)), shape_of(old))
            old.replace_all_uses_with(part)
        op.erase()


def _wider(
    op: ir.Operation,
    loop: int,
    axis: _Axis,
    wide: dict[ir.Value, ir.Value],
    padded: dict[tuple[ir.Value, int], ir.Value],
) -> ir.Operation:
    """A wider copy of an operation, before it."""
    maps, results = affine_maps(op), len(op.results)
    made = plain_loops(maps[-1])
    shape = [axis.wide if found == loop else size for found, size in zip(made, shape_of(op.results[0]), strict=True)]
    type_ = ir.RankedTensorType.get(shape, ir.ShapedType(op.results[0].type).element_type)
    with ir.InsertionPoint(op):
        operands = []
        for n, value in enumerate(op.operands):
            walked = plain_loops(maps[n])
            if value in wide:
                operands.append(wide[value])
            elif loop not in walked:
                operands.append(value)
            elif n >= len(op.operands) - results:
                operands.append(_start(value, shape))
            else:
                key = value, walked.index(loop)
                if key not in padded:
                    padded[key] = _padded(value, walked.index(loop), axis)
                operands.append(padded[key])
        attributes = {name: op.attributes[name] for name in op.attributes}
        new = ir.Operation.create("linalg.generic", [type_], operands, attributes, regions=1)
    old = op.regions[0].blocks[0]
    body = new.regions[0].blocks.append(*(a.type for a in old.arguments), arg_locs=[op.location] * len(old.arguments))
    local = dict(zip(old.arguments, body.arguments, strict=True))
    with ir.InsertionPoint(body):
        for inner in old.operations:
            clone_with(inner.operation, local)
    if is_contraction(op):
        return new
    if iterator_kinds(op)[loop] == "reduction":
        _leave_out(new, loop, axis)
    elif any(is_contraction(use.owner.operation) and _is_summed(use, axis) for use in op.results[0].uses):
        _zero(new, loop, axis)
    return new


def _is_summed(use: ir.OpOperand, axis: _Axis) -> bool:
    """Whether a product of the axis sums along it."""
    op = use.owner.operation
    return op in axis.loops and iterator_kinds(op)[axis.loops[op]] == "reduction"


def _start(value: ir.Value, shape: list[int]) -> ir.Value:
    """What a wider result begins with: as it was, an empty tensor or one number everywhere."""
    constant = constant_fill(defining_op(value))
    element = ir.ShapedType(value.type).element_type
    return tensor.empty(shape, element) if constant is None else filled(shape, constant.attributes["value"])


def _padded(value: ir.Value, dim: int, axis: _Axis) -> ir.Value:
    """A tensor with zeros after the axis."""
    shape, element = shape_of(value), ir.ShapedType(value.type).element_type
    more = [axis.wide - axis.size if d == dim else 0 for d in range(len(shape))]
    found = padded_by_index(value, [0] * len(shape), more, constant_like(element, 0))
    found.owner.attributes[NO_FUSION] = ir.UnitAttr.get()  # what adds a bias goes into the product, the bias does not
    return found


def _inside(loop: int, axis: _Axis) -> ir.Value:
    """Whether an element is one of those that the axis had."""
    return arith.cmpi(arith.CmpIPredicate.ult, place_along(loop), arith.constant(ir.IndexType.get(), axis.size))


def _leave_out(op: ir.Operation, loop: int, axis: _Axis) -> None:
    """Let a reduction along the axis take what changes nothing for terms that are new."""
    starts = list(op.regions[0].blocks[0].arguments)[-len(op.results) :]
    for start, made in zip(starts, list(yield_of(op).operands), strict=True):
        combiner = made.owner.operation
        number = next(n for n, value in enumerate(combiner.operands) if value != start)
        with ir.InsertionPoint(combiner):
            neutral = constant_like(made.type, NEUTRAL[combiner.name])
            combiner.operands[number] = arith.select(_inside(loop, axis), combiner.operands[number], neutral)


def _zero(op: ir.Operation, loop: int, axis: _Axis) -> None:
    """Let a map make zeros where the axis is new."""
    last = yield_of(op)
    with ir.InsertionPoint(last):
        zero = constant_like(last.operands[0].type, 0)
        last.operands[0] = arith.select(_inside(loop, axis), last.operands[0], zero)
