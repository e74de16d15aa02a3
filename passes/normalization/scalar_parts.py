"""What an element-wise op computes of numbers alone, the same for every element, is computed once.

Upstream's fuser takes what makes a number into each op that reads it. Of an optimizer's update these are powers, roots and
quotients in f64 (Adam's bias corrections), and every element of every weight would have them again.
"""

from __future__ import annotations

from torch_mlir import ir
from torch_mlir.dialects import tensor

from kitsune_mlir.dialects.access import affine_maps, iterator_kinds, loop_sizes
from kitsune_mlir.dialects.cloning import clone_with
from kitsune_mlir.dialects.products import body_of, is_generic, yield_of
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.passes.reductions.associative import generic

__all__ = ["part_scalars"]

LEAST_WORK = 16
"""Of arithmetic that is parted, in additions of f32: a number that another stage makes has to be waited for."""
_WORK = {"arith.divf": 4, "math.sqrt": 4, "math.rsqrt": 4, "math.absf": 1}
_FUNCTION = 16
"""Of any other function of `math`."""
_DOUBLE = 4
"""Times slower than f32 is what computes in f64 or converts it."""


def part_scalars(module: ir.Operation) -> None:
    """Give each generic numbers that its body would make of numbers, where that is much work for an element."""
    for op in [op for op in walk(module) if is_generic(op) and any(size > 1 for size in loop_sizes(op))]:
        if found := _ends(op):
            _part(op, found)


def _ends(op: ir.Operation) -> dict[ir.Value, list[ir.Operation]]:
    """Values of a body that are made of numbers alone and read by what is not, each with the ops that make it, in order."""
    block, inputs = op.regions[0].blocks[0], _inputs(op)
    read = zip(list(block.arguments)[:inputs], affine_maps(op)[:inputs], strict=True)
    needed: dict[ir.Value, list[ir.Operation]] = {argument: [] for argument, map_ in read if not map_.results}
    if not needed:
        return {}
    single: set[ir.Operation] = set()
    for inner in body_of(op):
        of_numbers = all(value in needed or _block_of(value) != block for value in inner.operands)
        if inner.name.startswith(("arith.", "math.")) and len(inner.results) == 1 and of_numbers:
            before = {one: None for value in inner.operands for one in needed.get(value, ())}
            needed[inner.results[0]] = [*before, inner]
            single.add(inner)
    return {
        value: ops
        for value, ops in needed.items()
        if sum(map(_work, ops)) >= LEAST_WORK and any(use.owner.operation not in single for use in value.uses)
    }


def _inputs(op: ir.Operation) -> int:
    return ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])[0]


def _block_of(value: ir.Value) -> ir.Block:
    return value.owner if isinstance(value.owner, ir.Block) else value.owner.operation.block


def _work(op: ir.Operation) -> int:
    types = [value.type for value in (*op.operands, *op.results)]
    if op.name == "arith.constant":
        return 0
    work = _WORK.get(op.name, _FUNCTION if op.name.startswith("math.") else 1)
    return work * _DOUBLE if any(isinstance(type_, ir.F64Type) for type_ in types) else work


def _part(op: ir.Operation, ends: dict[ir.Value, list[ir.Operation]]) -> None:
    """Rebuild a generic with an input for each of these values, and without what they alone are made of."""
    inputs, block = _inputs(op), op.regions[0].blocks[0]
    arguments, operands, maps = list(block.arguments), list(op.operands), affine_maps(op)
    given = dict(zip(arguments[:inputs], operands[:inputs], strict=True))
    gone = _gone(op, ends)
    kept = [n for n in range(inputs) if any(use.owner.operation not in gone for use in arguments[n].uses)]
    starts = range(inputs, len(operands))
    nothing = ir.AffineMap.get(len(loop_sizes(op)), 0, [])
    with ir.InsertionPoint(op), op.location:
        numbers = [_number(value, ops, given) for value, ops in ends.items()]
        new, body = generic(
            [*(operands[n] for n in kept), *numbers],
            [operands[n] for n in starts],
            [*(maps[n] for n in kept), *[nothing] * len(numbers), *(maps[n] for n in starts)],
            iterator_kinds(op),
        )
    for name in op.attributes:
        if name not in new.attributes:
            new.attributes[name] = op.attributes[name]
    old = [*(arguments[n] for n in kept), *ends, *(arguments[n] for n in starts)]
    mapping: dict[ir.Value, ir.Value] = dict(zip(old, body.arguments, strict=True))
    with ir.InsertionPoint(body):
        for inner in (*body_of(op), yield_of(op)):
            if inner not in gone:
                clone_with(inner, mapping)
    for before, after in zip(op.results, new.results, strict=True):
        before.replace_all_uses_with(after)
    op.erase()


def _gone(op: ir.Operation, ends: dict[ir.Value, list[ir.Operation]]) -> set[ir.Operation]:
    """Ops of a body that are of no use where these values are given."""
    gone: set[ir.Operation] = set()
    for inner in reversed(body_of(op)):
        if not inner.name.startswith(("arith.", "math.")):
            continue
        if all(value in ends or all(use.owner.operation in gone for use in value.uses) for value in inner.results):
            gone.add(inner)
    return gone


def _number(value: ir.Value, ops: list[ir.Operation], given: dict[ir.Value, ir.Value]) -> ir.Value:
    """A tensor without dimensions that holds a value of a body."""
    read = list(dict.fromkeys(v for op in ops for v in op.operands if v in given))
    point = ir.AffineMap.get(0, 0, [])
    made, block = generic([given[v] for v in read], [tensor.empty([], value.type)], [point] * (len(read) + 1), [])
    mapping: dict[ir.Value, ir.Value] = dict(zip(read, list(block.arguments)[: len(read)], strict=True))
    with ir.InsertionPoint(block):
        for op in ops:
            clone_with(op, mapping)
        ir.Operation.create("linalg.yield", [], [mapping[value]])
    return made.results[0]
