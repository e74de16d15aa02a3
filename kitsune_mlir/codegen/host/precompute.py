"""Takes computations on one side of a product out of its loops.

Upstream's fusion moves element-wise work into the products that use it: widening casts, an activation, the gate of a gated
layer. Inside the loops that work is repeated for every column (or row) of the other side. Where a side is used often enough it
is computed once, into a temporary, and the product reads that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch_mlir import ir
from torch_mlir.dialects import linalg

from kitsune_mlir.codegen.host import ops
from kitsune_mlir.codegen.host.combiner import combiner_of
from kitsune_mlir.codegen.host.machine import Machine
from kitsune_mlir.codegen.host.nest import Nest, loop_extents, read_nest
from kitsune_mlir.dialects.cloning import clone_with
from kitsune_mlir.dialects.sizes import element_bytes

__all__ = ["precompute_sides"]

MIN_REUSE = 8
"""How often each element of a side must be used to be worth a temporary."""

MAX_BYTES = 1 << 20
"""Largest temporary: it should stay in the cache between its making and its use."""


@dataclass(frozen=True)
class Side:
    """One factor of a product: its value, the operations that compute it, the inputs they read, the dimensions of those.

    `window` is set where the one input is read through a window (a convolution's image): it is computed in its own shape then.
    """

    value: ir.Value
    operations: list[ir.Operation]
    inputs: list[int]
    dimensions: list[int]
    window: tuple[int, ...] | None

    def shape(self, extents: list[int]) -> tuple[int, ...]:
        """Shape of the temporary that holds the value."""
        return self.window or tuple(extents[d] for d in self.dimensions)


def precompute_sides(op: ir.Operation, machine: Machine) -> ir.Operation:
    """Split a `linalg.generic` on memrefs that sums products; returns what is left of it (`op` itself if nothing was split)."""
    nest = read_nest(op)
    if nest is None or not nest.reductions or len(nest.outputs) != 1:
        return op
    combiner = combiner_of(nest, 0)
    if combiner is None or isinstance(combiner.term.owner, ir.Block):
        return op
    term = combiner.term.owner.operation
    if term.name not in ("arith.mulf", "arith.muli") or term.block != nest.block:
        return op
    sides = [_side(nest, v) for v in term.operands]
    if any(s is None for s in sides) or sides[0] is None or sides[1] is None or sides[0].dimensions == sides[1].dimensions:
        return op
    extents = loop_extents(op)
    chosen = []
    for side in sides:
        assert side is not None
        size = math.prod(side.shape(extents))
        reuse = math.prod(extents) // max(1, size)
        if (side.operations or _is_crosswise(nest, side, machine)) and reuse >= MIN_REUSE:
            if size * element_bytes(side.value.type) <= MAX_BYTES:
                chosen.append(side)
    return _split(op, chosen, extents) if chosen else op


def _is_crosswise(nest: Nest, side: Side, machine: Machine) -> bool:
    """Whether a plain operand should be transposed: with very few columns, products are fast along the reduction only."""
    columns = [d for d in nest.parallel if nest.outputs[0].coefficients[d] == 1 and nest.extents[d] > 1]
    if len(nest.reductions) != 1 or not columns or nest.extents[columns[-1]] * 4 > machine.vector_bytes // 4:
        return False
    (reduction,) = nest.reductions
    if nest.extents[reduction] < machine.vector_bytes // 4:
        return False
    return any(nest.inputs[i].coefficients[reduction] > 1 for i in side.inputs)


def _maps(op: ir.Operation) -> list[ir.AffineMap]:
    return [attribute.value for attribute in op.attributes["indexing_maps"]]


def _side(nest: Nest, value: ir.Value) -> Side | None:
    """The computation of `value`; None if it reads previous results, counters or memory, or an operand through a window."""
    block = nest.block
    arguments = list(block.arguments)
    needed: set[ir.Value] = {value}
    operations: list[ir.Operation] = []
    for o in reversed([o.operation for o in block.operations]):
        if not any(r in needed for r in o.results):
            continue
        if not o.name.startswith(("arith.", "math.")):
            return None
        operations.insert(0, o)
        needed.update(o.operands)
    inputs = [i for i, a in enumerate(arguments) if a in needed]
    if not inputs or any(i >= len(nest.inputs) for i in inputs):
        return None
    maps = _maps(nest.op)
    dimensions = {d for i in inputs for d, c in enumerate(_dimensions(maps[i])) if c}
    window = None
    if not all(isinstance(e, (ir.AffineDimExpr, ir.AffineConstantExpr)) for i in inputs for e in maps[i].results):
        memrefs = [i for i in inputs if isinstance(nest.op.operands[i].type, ir.MemRefType)]
        if len(inputs) != 1 or not memrefs:
            return None
        window = tuple(nest.op.operands[inputs[0]].type.shape)
    parallel = [d for d in sorted(dimensions) if "parallel" in str(list(nest.op.attributes["iterator_types"])[d])]
    return Side(value, operations, inputs, parallel + [d for d in sorted(dimensions) if d not in parallel], window)


def _dimensions(affine_map: ir.AffineMap) -> list[bool]:
    """For each dimension of a map whether some result uses it."""
    used = [False] * affine_map.n_dims

    def visit(expression: ir.AffineExpr) -> None:
        if isinstance(expression, ir.AffineDimExpr):
            used[expression.position] = True
        elif isinstance(expression, ir.AffineBinaryExpr):
            visit(expression.lhs)
            visit(expression.rhs)

    for result in affine_map.results:
        visit(result)
    return used


def _split(op: ir.Operation, sides: list[Side], extents: list[int]) -> ir.Operation:
    """Emit a generic for each side before `op`, and `op` again without their operations."""
    maps, operands = _maps(op), list(op.operands)
    with ir.InsertionPoint(op), op.location:
        made = [_compute(op, side, maps, operands, extents) for side in sides]
        block = op.regions[0].blocks[0]
        replaced = {side.value for side in sides}
        kept_operations = _needed(block, replaced)
        used = {v for o in kept_operations for v in o.operands} - replaced
        last = len(operands) - 1
        kept = [i for i in range(last) if block.arguments[i] in used]
        dims = [ir.AffineExpr.get_dim(d) for d in range(len(extents))]
        side_maps = [
            maps[side.inputs[0]] if side.window else ir.AffineMap.get(len(extents), 0, [dims[d] for d in side.dimensions])
            for side in sides
        ]
        new_maps = [maps[i] for i in kept] + side_maps + [maps[last]]
        new = linalg.GenericOp(
            [],
            [operands[i] for i in kept] + made,
            [operands[last]],
            ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in new_maps]),
            op.attributes["iterator_types"],
        ).operation
        types = [block.arguments[i].type for i in kept] + [s.value.type for s in sides] + [block.arguments[last].type]
        body = ir.Block.create_at_start(new.regions[0], types)
        sources = [block.arguments[i] for i in kept] + [s.value for s in sides] + [block.arguments[last]]
        mapping: dict[ir.Value, ir.Value] = dict(zip(sources, body.arguments, strict=True))
        with ir.InsertionPoint(body):
            for o in kept_operations:
                clone_with(o, mapping)
    op.erase()
    return new


def _needed(block: ir.Block, known: set[ir.Value]) -> list[ir.Operation]:
    """The operations that the body's result needs when the values `known` are given."""
    *body, end = [o.operation for o in block.operations]
    needed, kept = set(end.operands), [end]
    for o in reversed(body):
        if any(r in needed and r not in known for r in o.results):
            kept.insert(0, o)
            needed.update(o.operands)
    return kept


def _compute(op: ir.Operation, side: Side, maps: list[ir.AffineMap], operands: list[ir.Value], extents: list[int]) -> ir.Value:
    """Emit the generic that computes one side into a temporary, and return that."""
    shape = side.shape(extents)
    target = ops.scratch(op, shape, side.value.type)
    place = {d: i for i, d in enumerate(side.dimensions)}
    rank = len(shape)

    def moved(affine_map: ir.AffineMap) -> ir.AffineMapAttr:
        results = [
            ir.AffineExpr.get_dim(place[e.position]) if isinstance(e, ir.AffineDimExpr) else e for e in affine_map.results
        ]
        return ir.AffineMapAttr.get(ir.AffineMap.get(rank, 0, results))

    identity = ir.AffineMapAttr.get(ir.AffineMap.get_identity(rank))
    indexing = [identity if side.window else moved(maps[i]) for i in side.inputs] + [identity]
    parallel = ir.Attribute.parse("#linalg.iterator_type<parallel>")
    made = linalg.GenericOp(
        [], [operands[i] for i in side.inputs], [target], ir.ArrayAttr.get(indexing), ir.ArrayAttr.get([parallel] * rank)
    ).operation
    arguments = op.regions[0].blocks[0].arguments
    block = ir.Block.create_at_start(made.regions[0], [arguments[i].type for i in side.inputs] + [side.value.type])
    mapping: dict[ir.Value, ir.Value] = {arguments[i]: block.arguments[n] for n, i in enumerate(side.inputs)}
    with ir.InsertionPoint(block):
        for o in side.operations:
            clone_with(o, mapping)
        linalg.YieldOp([mapping[side.value]])
    return target
