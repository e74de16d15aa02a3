"""Convolutions with the channels of their results as vectors.

A convolution's window is contiguous along no row of pixels for long: maps are narrow, strides skip, and vectors along pixels
would be cut at each row's end. Its channels are many. So the sums are made in a temporary whose last dimension is the channels
of the result: the weights' panels are vectors along them, each pixel of the image is one number for all of them, wherever it
lies, and the temporary is transposed once into the result.
"""

from __future__ import annotations

from torch_mlir import ir
from torch_mlir.dialects import linalg

from kitsune_mlir.codegen.host import ops
from kitsune_mlir.codegen.host.combiner import combiner_of
from kitsune_mlir.codegen.host.elementwise import lane_of
from kitsune_mlir.codegen.host.fusion import HARMLESS, VIEWS
from kitsune_mlir.codegen.host.machine import Machine
from kitsune_mlir.codegen.host.nest import Nest, loop_extents, read_nest
from kitsune_mlir.dialects.access import affine_maps
from kitsune_mlir.dialects.cloning import clone_with
from kitsune_mlir.dialects.sizes import element_bytes

__all__ = ["channels_last"]

LEAST_TERMS = 16
"""Of each sum: with fewer, the transposition costs more than the products."""


def channels_last(op: ir.Operation, machine: Machine) -> ir.Operation:
    """Replace a convolution on memrefs whose results lie along a row of pixels by one whose results lie along channels.

    Returns what does the sums: the new op, between copies into and out of its temporary; `op` itself if it stays.
    """
    nest = read_nest(op)
    channel = None if nest is None else _channel_of(nest, machine)
    if channel is None:
        return op
    result = list(op.operands)[-1]
    whole, dims = _unexpanded(op, result)
    position = [affine_maps(op)[-1].results[d].position for d in dims].index(channel)
    order = [d for d in range(len(dims)) if d != position] + [position]
    seen = {whole: order, result: [dims[d] for d in order]}
    start, end = _start(op, seen), _end(op, seen)
    with ir.InsertionPoint(op), op.location:
        sums = ops.scratch(op, [whole.type.shape[d] for d in order], whole.type.element_type)
        identity = ir.AffineMap.get_identity(len(order))
        if start is None:
            inside = ir.AffineMap.get(len(order), 0, [ir.AffineExpr.get_dim(order.index(d)) for d in range(len(order))])
            _copy(whole, inside, sums, identity)
        else:
            _redirect(start, seen, sums)
        new = clone_with(op, {})
        _redirect(new, seen, sums)
        if end is None:
            outside = ir.AffineMap.get(len(order), 0, [ir.AffineExpr.get_dim(d) for d in order])
            _copy(sums, outside, whole, identity)
        else:
            _redirect(end, seen, sums)
    op.erase()
    return new


Seen = dict[ir.Value, list[int]]
"""A result as it is seen: for each dimension of the temporary, which of the value's it is."""


def _unexpanded(op: ir.Operation, result: ir.Value) -> tuple[ir.Value, list[int]]:
    """What a result is before loops of one iteration were added to it, and which dimensions of the result its own are."""
    every = list(range(len(result.type.shape)))
    owner = result.owner
    if isinstance(owner, ir.Block) or owner.operation.name != "memref.expand_shape":
        return result, every
    dims = []
    for group in ir.ArrayAttr(owner.operation.attributes["reassociation"]):
        members = [ir.IntegerAttr(d).value for d in ir.ArrayAttr(group)]
        dims.append(next((d for d in members if result.type.shape[d] != 1), members[0]))
    *read, written = affine_maps(op)
    dropped = [written.results[d] for d in every if d not in dims]
    known = [e for m in read for e in m.results]
    if any(result.type.shape[d] != 1 for d in every if d not in dims) or not all(e in known for e in dropped):
        return result, every
    return owner.operation.operands[0], dims


def _redirect(op: ir.Operation, seen: Seen, sums: ir.Value) -> None:
    """Let an op use `sums` for what it uses of `seen`."""
    maps = affine_maps(op)
    for i, value in enumerate(op.operands):
        if value in seen:
            op.operands[i] = sums
            maps[i] = ir.AffineMap.get(maps[i].n_dims, 0, [maps[i].results[d] for d in seen[value]])
    op.attributes["indexing_maps"] = ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps])


def _channel_of(nest: Nest, machine: Machine) -> int | None:
    """The loop over the result's channels; None where sums are better made along the pixels."""
    lane = lane_of(nest)
    if lane is None or len(nest.inputs) != 2 or len(nest.outputs) != 1 or not nest.reductions:
        return None
    combiner = combiner_of(nest, 0)
    if combiner is None or combiner.name != "arith.addf" or any(a.memref is None for a in nest.inputs):
        return None
    images = [a for a in nest.inputs if a.coefficients[lane] != 0]
    weights = [a for a in nest.inputs if a.coefficients[lane] == 0]
    if len(images) != 1 or len(weights) != 1:
        return None
    if not all(isinstance(e, ir.AffineDimExpr) for e in affine_maps(nest.op)[-1].results):
        return None
    (image,), (weight,) = images, weights
    if len(nest.reductions) == 1 and image.coefficients[lane] == 1:
        return None  # a product, with its columns side by side
    lanes = machine.lanes(element_bytes(nest.outputs[0].element))
    extents = loop_extents(nest.op)
    terms = 1
    for d in nest.reductions:
        terms *= nest.extents[d]
    own = [d for d in nest.parallel if weight.coefficients[d] and not image.coefficients[d] and nest.extents[d] >= lanes]
    own = [d for d in own if nest.extents[d] == extents[d]]  # and is no several loops
    return own[-1] if own and terms >= LEAST_TERMS else None


def _start(op: ir.Operation, seen: Seen) -> ir.Operation | None:
    """The op before a convolution that fills all of its result: it can fill the temporary instead."""
    every = [o.operation for o in op.block.operations]
    start = next((o for o in reversed(every[: every.index(op)]) if o.name not in HARMLESS), None)
    if start is None or start.name != "linalg.generic":
        return None
    *read, written = start.operands
    argument = start.regions[0].blocks[0].arguments[len(read)]
    whole = affine_maps(start)[-1].is_permutation and not any(True for _ in argument.uses)
    return start if written in seen and not any(value in seen for value in read) and whole else None


def _end(op: ir.Operation, seen: Seen) -> ir.Operation | None:
    """The only op that reads a convolution's result, element by element: it can read the temporary instead."""
    whole = next(iter(seen))
    if isinstance(whole.owner, ir.Block) or whole.owner.operation.name != "memref.alloc":
        return None
    every = [o.operation for o in op.block.operations]
    place = every.index(op)
    end = next((o for o in every[place + 1 :] if o.name not in HARMLESS), None)
    if end is None or end.name != "linalg.generic" or any("reduction" in str(k) for k in end.attributes["iterator_types"]):
        return None
    for value in seen:
        for user in (use.owner.operation for use in value.uses):
            view = user.name in VIEWS and not any(r in seen for r in user.results)
            if view or (user not in every[: place + 1] and user != end):
                return None
    maps = affine_maps(end)
    read = [m for value, m in zip(end.operands, maps, strict=True) if value in seen]
    return end if end.operands[len(maps) - 1] not in seen and read and all(m.is_permutation for m in read) else None


def _copy(source: ir.Value, read: ir.AffineMap, target: ir.Value, written: ir.AffineMap) -> None:
    maps = ir.ArrayAttr.get([ir.AffineMapAttr.get(read), ir.AffineMapAttr.get(written)])
    kinds = ir.ArrayAttr.get([ir.Attribute.parse("#linalg.iterator_type<parallel>")] * written.n_dims)
    made = linalg.GenericOp([], [source], [target], maps, kinds).operation
    element = source.type.element_type
    block = ir.Block.create_at_start(made.regions[0], [element, element])
    with ir.InsertionPoint(block):
        linalg.YieldOp([block.arguments[0]])
