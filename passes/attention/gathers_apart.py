"""What bodies on the way from scores to probabilities gather from other tensors, as tensors of their own.

A mask that is looked up by index (a padding mask at the keys' places) ends up in the body that masks scores, which is read as
arithmetic only.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch_mlir import ir
from torch_mlir.dialects import tensor

from kitsune_mlir.dialects.access import affine_maps, is_tensor, iterator_kinds, loop_sizes
from kitsune_mlir.dialects.cloning import clone_with
from kitsune_mlir.dialects.iteration import is_reshape
from kitsune_mlir.dialects.products import body_of, defining_op, is_contraction, is_generic, yield_of
from kitsune_mlir.passes.reductions.associative import generic

__all__ = ["take_gathers_out"]

MOST = 64
"""Operations between the two products of an attention."""


def take_gathers_out(weighted: ir.Operation) -> bool:
    """Rewrite the element-wise operations in front of a product that are computed from another product; whether any was."""
    on_the_way, changed = _behind_products(weighted), False
    for op in on_the_way:
        gathers = [inner for inner in body_of(op) if inner.name == "tensor.extract"]
        scored = {n for n, operand in enumerate(op.operands) if _is_scored(operand, 0)}
        made = [_gather(op, inner, scored) for inner in gathers]
        if gathers and len(op.results) == 1 and all(one is not None for one in made):
            _replace(op, gathers, [one for one in made if one is not None])
            changed = True
    return changed


def _behind_products(weighted: ir.Operation) -> list[ir.Operation]:
    """Element-wise generics that a product's factors are computed from and that come behind other products."""
    found: dict[int, ir.Operation] = {}
    pending = list(weighted.operands)[:2]
    while pending and len(found) < MOST:
        op = defining_op(pending.pop())
        if op is None or hash(op) in found or not (is_generic(op) or is_reshape(op)) or is_contraction(op):
            continue
        found[hash(op)] = op
        pending += [v for v in op.operands if is_tensor(v)]
    return [
        op
        for op in found.values()
        if is_generic(op) and set(iterator_kinds(op)) == {"parallel"} and _is_scored(op.results[0], 0)
    ]


def _is_scored(value: ir.Value, depth: int) -> bool:
    """Whether a value is computed from a product by element-wise operations and reductions."""
    op = defining_op(value)
    if op is None or depth > MOST // 4 or not (is_generic(op) or is_reshape(op)):
        return False
    return is_contraction(op) or any(_is_scored(v, depth + 1) for v in op.operands if is_tensor(v))


def _gather(op: ir.Operation, extract: ir.Operation, scored: set[int]) -> tuple[ir.Value, list[int]] | None:
    """What a body gathers, as a tensor over the loops that decide it; None where scores do, or nothing."""
    block = op.regions[0].blocks[0]
    arguments = {argument: n for n, argument in enumerate(block.arguments)}
    inside = {hash(inner) for inner in body_of(op)}
    needed, operands, loops = set[int](), set[int](), set[int]()
    maps, pending = affine_maps(op), list(extract.operands)[1:]
    while pending:
        value = pending.pop()
        maker = defining_op(value)
        if value in arguments:
            operands.add(arguments[value])
            for expression in maps[arguments[value]].results:
                if isinstance(expression, ir.AffineDimExpr):
                    loops.add(expression.position)
                elif not isinstance(expression, ir.AffineConstantExpr):
                    return None
        elif maker is not None and hash(maker) in inside and hash(maker) not in needed:
            needed.add(hash(maker))
            if maker.name == "linalg.index":
                loops.add(ir.IntegerAttr(maker.attributes["dim"]).value)
            pending += list(maker.operands)
    inputs = len(op.operands) - len(op.results)
    if not loops or operands & scored or any(n >= inputs for n in operands):
        return None
    own, numbers = sorted(loops), sorted(operands)
    with ir.InsertionPoint(op), op.location:
        body = [inner for inner in body_of(op) if hash(inner) in needed] + [extract]
        given = [op.operands[n] for n in numbers]
        placed = [_over(maps[n], own) for n in numbers]
        sizes = [loop_sizes(op)[loop] for loop in own]
        made, new = _generic(given, placed, sizes, extract.results[0].type)
        mapping: dict[ir.Value, ir.Value] = {block.arguments[n]: new.arguments[at] for at, n in enumerate(numbers)}
        with ir.InsertionPoint(new):
            for inner in body:
                copy = clone_with(inner, mapping)
                if inner.name == "linalg.index":
                    loop = own.index(ir.IntegerAttr(inner.attributes["dim"]).value)
                    copy.attributes["dim"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), loop)
            ir.Operation.create("linalg.yield", [], [mapping[extract.results[0]]])
    return made.results[0], own


def _over(map_: ir.AffineMap, loops: Sequence[int]) -> ir.AffineMap:
    """A map of some of the loops as one of these loops alone."""
    results = [
        ir.AffineDimExpr.get(loops.index(one.position)) if isinstance(one, ir.AffineDimExpr) else one for one in map_.results
    ]
    return ir.AffineMap.get(len(loops), 0, results)


def _generic(
    inputs: Sequence[ir.Value], maps: Sequence[ir.AffineMap], sizes: Sequence[int], element: ir.Type
) -> tuple[ir.Operation, ir.Block]:
    """An element-wise generic without a body yet, and its block."""
    every = [*maps, ir.AffineMap.get_identity(len(sizes))]
    return generic(inputs, [tensor.empty(list(sizes), element)], every, ["parallel"] * len(sizes))


def _replace(op: ir.Operation, gathers: Sequence[ir.Operation], made: Sequence[tuple[ir.Value, list[int]]]) -> None:
    """Put an operation that reads what was gathered in the place of one that gathers."""
    maps, kinds = affine_maps(op), iterator_kinds(op)
    read = [ir.AffineMap.get(len(kinds), 0, [ir.AffineDimExpr.get(loop) for loop in loops]) for _, loops in made]
    block = op.regions[0].blocks[0]
    with ir.InsertionPoint(op), op.location:
        *inputs, start = op.operands
        new, body = generic([*inputs, *(value for value, _ in made)], [start], [*maps[:-1], *read, maps[-1]], kinds)
        before = [*list(body.arguments)[: len(inputs)], body.arguments[len(body.arguments) - 1]]
        mapping: dict[ir.Value, ir.Value] = dict(zip(block.arguments, before, strict=True))
        mapping.update((one.results[0], body.arguments[len(maps) - 1 + at]) for at, one in enumerate(gathers))
        taken = {hash(one) for one in gathers}
        with ir.InsertionPoint(body):
            for inner in body_of(op):
                if hash(inner) not in taken:
                    clone_with(inner, mapping)
            last = yield_of(op).operands[0]
            ir.Operation.create("linalg.yield", [], [mapping.get(last, last)])
    op.results[0].replace_all_uses_with(new.results[0])
    op.erase()
