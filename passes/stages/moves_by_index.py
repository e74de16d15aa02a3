"""Slices and concatenations along all that is wide in a tensor: read by index, so that they can be cut there into tiles."""

import math
from collections.abc import Sequence

from torch_mlir import ir
from torch_mlir.dialects import arith, tensor

from kitsune_mlir.dialects.access import access_of, dropped_dims, shape_of, static_ints
from kitsune_mlir.dialects.attribute_table import IN_PLACE
from kitsune_mlir.dialects.iteration import is_reshape
from kitsune_mlir.dialects.products import defining_op
from kitsune_mlir.dialects.sizes import element_bytes, tensor_bytes
from kitsune_mlir.passes.layouts.by_index import filled, parallel_generic, place_along
from kitsune_mlir.passes.tile_program.scatter import constant_start

__all__ = ["gather_moves", "slice_places"]

FEW_TILES = 32
"""Fewer elements along the dimensions that a movement leaves alone are too few to share out."""
WHOLE_TILES = 512
"""So many tiles that have all of what is joined are enough."""
LINE = 128
"""Bytes that lie side by side for each element along what is joined, from which vectors do not cross from piece to piece."""
ONE_BLOCK_BYTES = 32 << 10
"""Made by one block as fast as by many."""


def gather_moves(block: ir.Block) -> None:
    """Write each such `tensor.extract_slice` and `tensor.concat` of some size as a generic that reads its sources by index."""
    for op in reversed([o.operation for o in block.operations]):  # what reads slices first: it reads what they are of
        if op.name not in _ELEMENTS or access_of(op) is None or IN_PLACE in op.attributes:
            continue
        if not list(op.results[0].uses):
            op.erase()
            continue
        if op.name == "tensor.concat":
            _fill_pieces(op)
        shape = shape_of(op.results[0])
        if tensor_bytes(op.results[0].type) < ONE_BLOCK_BYTES:
            continue
        if math.prod(shape[d] for d in _kept(op)) >= FEW_TILES and not _is_torn(op):
            continue
        with ir.InsertionPoint(op), op.location:
            made, body = parallel_generic(shape, ir.ShapedType(op.results[0].type).element_type)
            with ir.InsertionPoint(body):
                found = _ELEMENTS[op.name](op, [place_along(dim) for dim in range(len(shape))])
                ir.Operation.create("linalg.yield", [], [found])
        op.results[0].replace_all_uses_with(made.results[0])
        op.erase()


def _fill_pieces(concat: ir.Operation) -> None:
    """Let pieces that are constants be filled."""
    for number, piece in enumerate(concat.operands):
        maker = defining_op(piece)
        value = constant_start(maker) if maker is not None and maker.name == "arith.constant" else None
        if value is not None:
            with ir.InsertionPoint(concat), concat.location:
                concat.operands[number] = filled(shape_of(piece), value)


def _is_torn(op: ir.Operation) -> bool:
    """Whether a tile of a result, which has all of what is joined, would be pieces of memory far from each other.

    Not where a piece is made by another stage, which may join this one, or where the result is read by another, which may not
    need it in memory.
    """
    if op.name != "tensor.concat":
        return False
    shape, dim = shape_of(op.results[0]), ir.IntegerAttr(op.attributes["dim"]).value
    if math.prod(shape[:dim]) >= WHOLE_TILES or math.prod(shape[dim + 1 :]) * element_bytes(op.results[0].type) < LINE:
        return False
    return _is_returned(op.results[0]) and all(map(_is_given, op.operands))


def _is_returned(value: ir.Value) -> bool:
    """Whether a tensor is read by nobody but the caller, perhaps through views."""
    users = [use.owner.operation for use in value.uses]
    return all(user.name == "func.return" or (is_reshape(user) and _is_returned(user.results[0])) for user in users)


def _is_given(value: ir.Value) -> bool:
    """Whether a tensor is an argument, or a part or a view of one."""
    maker = defining_op(value)
    return maker is None or (maker.name in _VIEWS and len(maker.operands) == 1 and _is_given(maker.operands[0]))


def _kept(op: ir.Operation) -> list[int]:
    """The dimensions of a movement's result that it takes in full, as do the slices that it is of."""
    access = access_of(op)
    assert access is not None
    maker = defining_op(op.operands[0])
    sliced = maker is not None and op.name == maker.name == "tensor.extract_slice"
    whole = _kept(maker) if sliced else range(len(access.operands[0]))
    loops = {along.loop for dim in whole if (along := access.operands[0][dim]).plain}
    return [dim for dim, along in enumerate(access.results[0]) if along.loop in loops]


def _element(source: ir.Value, places: list[ir.Value]) -> ir.Value:
    """The element of a tensor at some place; of a slice, that of what it is a slice of."""
    maker = defining_op(source)
    if maker is not None and maker.name == "tensor.extract_slice" and len(maker.operands) == 1:
        return _of_slice(maker, places)
    return tensor.extract(source, places)


def slice_places(op: ir.Operation, places: Sequence[ir.Value]) -> list[ir.Value]:
    """Where an element of a slice is in what it is a slice of."""
    dropped, left = dropped_dims(op), list(places)
    found = []
    for dim, (start, stride) in enumerate(
        zip(static_ints(op, "static_offsets"), static_ints(op, "static_strides"), strict=True)
    ):
        if dim in dropped:
            found.append(_number(start))
            continue
        place = left.pop(0)
        place = place if stride == 1 else arith.muli(place, _number(stride))
        found.append(arith.addi(place, _number(start)) if start else place)
    return found


def _of_slice(op: ir.Operation, places: list[ir.Value]) -> ir.Value:
    return _element(op.operands[0], slice_places(op, places))


def _of_concat(op: ir.Operation, places: list[ir.Value]) -> ir.Value:
    """The piece that an element is in is chosen; every piece is read within its bounds."""
    dim = ir.IntegerAttr(op.attributes["dim"]).value
    sizes = [shape_of(piece)[dim] for piece in op.operands]
    found, start = None, 0
    for piece, size in zip(op.operands, sizes, strict=True):
        place = places[dim] if not start else arith.subi(places[dim], _number(start))
        place = arith.minsi(arith.maxsi(place, _number(0)), _number(size - 1))
        value = _element(piece, [*places[:dim], place, *places[dim + 1 :]])
        if found is not None:
            before = arith.cmpi(arith.CmpIPredicate.ult, places[dim], _number(start))
            value = arith.select(before, found, value)
        found, start = value, start + size
    assert found is not None
    return found


def _number(value: int) -> ir.Value:
    return arith.constant(ir.IndexType.get(), value)


_VIEWS = ("tensor.extract_slice", "tensor.expand_shape", "tensor.collapse_shape")
_ELEMENTS = {"tensor.extract_slice": _of_slice, "tensor.concat": _of_concat}
"""By name of the movement: the element of its result at some place."""
