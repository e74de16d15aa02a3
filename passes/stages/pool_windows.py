"""Pooling reads its padded, widened or cheaply computed image where it lies, so that images can be cut along all dimensions."""

from __future__ import annotations

from torch_mlir import ir
from torch_mlir.dialects import arith, tensor

from kitsune_mlir.dialects.access import affine_maps, iterator_kinds, reassociation, shape_of, static_ints
from kitsune_mlir.dialects.attribute_table import HALO
from kitsune_mlir.dialects.iteration import is_trivial_reshape
from kitsune_mlir.dialects.products import body_of, defining_op, is_generic, yield_of
from kitsune_mlir.passes.stages.cheap_maps import reads_as_much
from kitsune_mlir.passes.stages.read_through import affine_place

__all__ = ["is_pooling", "read_windows"]


def is_pooling(op: ir.Operation) -> bool:
    """Whether an operation reduces the windows of one tensor; a second operand, which nobody reads, has the window's shape."""
    if not is_generic(op) or len(op.operands) != 3 or "reduction" not in iterator_kinds(op):
        return False
    moving = any(not isinstance(expression, ir.AffineDimExpr) for expression in affine_maps(op)[0].results)
    window = defining_op(op.operands[1])
    unread = not list(op.regions[0].blocks[0].arguments[1].uses)
    return moving and unread and window is not None and window.name == "tensor.empty"


def read_windows(block: ir.Block) -> None:
    """Let every pooling of a block read through what only pads with a constant or widens its image.

    Each element is then padded or widened for every window that it is in, which costs less than a pass over memory.
    """
    for op in [o.operation for o in block.operations]:
        if is_pooling(op) and (_is_cast(defining_op(op.operands[0])) or _is_pad(defining_op(op.operands[0]))):
            with op.location:
                _read_through(op)


def _is_pad(op: ir.Operation | None) -> bool:
    """A pad by one constant that is not left to convolutions."""
    if op is None or op.name != "tensor.pad" or len(op.operands) != 1 or HALO in op.attributes:
        return False
    maker = defining_op(_padding(op))
    return maker is not None and maker.name == "arith.constant"


def _padding(pad: ir.Operation) -> ir.Value:
    return list(pad.regions[0].blocks[0].operations)[-1].operation.operands[0]


def _is_cast(op: ir.Operation | None) -> bool:
    """A generic that only widens each element."""
    if op is None or not is_generic(op) or len(op.operands) != 2 or [o.name for o in body_of(op)] != ["arith.extf"]:
        return False
    return all(map_ == ir.AffineMap.get_identity(map_.n_dims) for map_ in affine_maps(op))


def _is_map(op: ir.Operation | None) -> bool:
    """A cheap map of one tensor, an argument: it would be a pass over memory of its own."""
    if op is None or not is_generic(op) or len(op.operands) != 2 or not reads_as_much([op]):
        return False
    return defining_op(op.operands[0]) is None and all(
        map_ == ir.AffineMap.get_identity(map_.n_dims) for map_ in affine_maps(op)
    )


def _is_view(op: ir.Operation | None) -> bool:
    """More dimensions of one element for what such a map makes."""
    return (
        op is not None and op.name == "tensor.expand_shape" and is_trivial_reshape(op) and _is_map(defining_op(op.operands[0]))
    )


def _is_step(op: ir.Operation | None) -> bool:
    return _is_cast(op) or _is_pad(op) or _is_map(op) or _is_view(op)


def _read_through(op: ir.Operation) -> None:
    image, padded = op.operands[0], False
    while _is_cast(maker := defining_op(image)) or _is_pad(maker):
        assert maker is not None
        padded, image = padded or maker.name == "tensor.pad", maker.operands[0]
    maps = affine_maps(op)
    # What is read by index is no operand: a padded image is not cut into windows.
    operands = [*op.operands[1:]] if padded else [image, *op.operands[1:]]
    with ir.InsertionPoint(op):
        new = ir.Operation.create(
            "linalg.generic",
            [op.results[0].type],
            operands,
            {
                "indexing_maps": ir.ArrayAttr.get([ir.AffineMapAttr.get(map_) for map_ in maps[len(maps) - len(operands) :]]),
                "iterator_types": op.attributes["iterator_types"],
                "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(operands) - 1, 1]),
            },
            regions=1,
        )
    elements = [ir.ShapedType(value.type).element_type for value in operands]
    body = new.regions[0].blocks.append(*elements, arg_locs=[op.location] * len(elements))
    old = op.regions[0].blocks[0]
    with ir.InsertionPoint(body):
        if padded:
            element = _element(op.operands[0], [affine_place(expression) for expression in maps[0].results])
        else:
            element = arith.extf(old.arguments[0].type, body.arguments[0])
        mapping = dict(zip(list(old.arguments)[1:], list(body.arguments)[len(operands) - 2 :], strict=True))
        mapping[old.arguments[0]] = element
        for inner in old.operations:
            copy = inner.operation.clone()
            for number, value in enumerate(inner.operation.operands):
                copy.operands[number] = mapping.get(value, value)
            mapping.update(zip(inner.operation.results, copy.results, strict=True))
    op.results[0].replace_all_uses_with(new.results[0])
    unread = op.operands[0]
    op.erase()
    while (maker := defining_op(unread)) is not None and not list(unread.uses) and _is_step(maker):
        unread = maker.operands[0]
        maker.erase()


def _element(value: ir.Value, places: list[ir.Value]) -> ir.Value:
    """An element of a tensor as its own image has it: computed, padded and widened here."""
    changes: list[tuple[ir.Operation, ir.Value | None]] = []  # the outermost first; of a padding whether it is inside
    while (maker := defining_op(value)) is not None and _is_step(maker):
        inside = None
        if _is_pad(maker):
            places, inside = _unpadded(maker, places)
        elif _is_view(maker):
            wide = shape_of(maker.results[0])
            places = [places[next((d for d in group if wide[d] != 1), group[0])] for group in reassociation(maker)]
        changes.append((maker, inside))
        value = maker.operands[0]
    element = tensor.extract(value, places)
    for maker, inside in reversed(changes):
        if is_generic(maker):
            element = _mapped(maker, element)
        elif inside is not None:
            element = arith.select(inside, element, _padding(maker))
    return element


def _mapped(maker: ir.Operation, element: ir.Value) -> ir.Value:
    """What a map of one tensor makes of an element."""
    mapping = {maker.regions[0].blocks[0].arguments[0]: element}
    for inner in body_of(maker):
        copy = inner.clone()
        for number, value in enumerate(inner.operands):
            copy.operands[number] = mapping.get(value, value)
        mapping.update(zip(inner.results, copy.operation.results, strict=True))
    return mapping[yield_of(maker).operands[0]]


def _unpadded(maker: ir.Operation, places: list[ir.Value]) -> tuple[list[ir.Value], ir.Value | None]:
    """The nearest place in what is padded, and whether the element is there; None where nothing is padded."""
    index, extents, inside = ir.IndexType.get(), shape_of(maker.operands[0]), None
    sides = zip(static_ints(maker, "static_low"), static_ints(maker, "static_high"), strict=True)
    found = list(places)
    for dim, (low, high) in enumerate(sides):
        if low or high:
            place = arith.subi(places[dim], arith.constant(index, low))
            # Unsigned: what lies before the first element is beyond the last.
            here = arith.cmpi(arith.CmpIPredicate.ult, place, arith.constant(index, extents[dim]))
            inside = here if inside is None else arith.andi(inside, here)
            place = arith.maxsi(place, arith.constant(index, 0))
            found[dim] = arith.minsi(place, arith.constant(index, extents[dim] - 1))
    return found, inside
