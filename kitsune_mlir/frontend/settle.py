"""Tidies what torch-mlir leaves behind, so that later passes meet one form of each thing."""

from __future__ import annotations

from torch_mlir import ir
from torch_mlir.passmanager import PassManager

from kitsune_mlir.frontend.first_places import find_least_places
from kitsune_mlir.frontend.numerics import settle_numerics
from kitsune_mlir.frontend.shifts import settle_shifts
from kitsune_mlir.frontend.sort_order import settle_sorts

__all__ = ["settle"]

_CANONICAL = "builtin.module(func.func(canonicalize,cse))"


def settle(module: ir.Module) -> list[int]:
    """Rewrites `module` (linalg on tensors) in place: types of arithmetic, unused results, constant operands.

    The result is canonical and verified. `main` returns each value once.

    Returns:
        For each result that `main` had, its place among those it has now.
    """
    main = module.body.operations[0]
    block = main.regions[0].blocks[0]
    with module.context, ir.Location.unknown():
        # First, so that what is about to be rewritten has no duplicates.
        PassManager.parse(_CANONICAL).run(module.operation)
        _drop_unused_results(block)
        _inline_constants(block)
        settle_numerics(block)
        find_least_places(block)
        settle_shifts(block)
        settle_sorts(block)
        PassManager.parse(_CANONICAL).run(module.operation)
        return _return_once(main)


def _return_once(main: ir.OpView) -> list[int]:
    block = main.regions[0].blocks[0]
    last = block.operations[len(block.operations) - 1].operation
    returned = list(last.operands)
    values = list(dict.fromkeys(returned))
    if len(values) < len(returned):
        with ir.InsertionPoint(last):
            ir.Operation.create("func.return", operands=values, loc=last.location)
        last.erase()
        inputs = [a.type for a in block.arguments]
        main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, [v.type for v in values]))
    return [values.index(value) for value in returned]


def _drop_unused_results(block: ir.Block) -> None:
    """Maxima arrive with the index of the largest element whether or not it is asked for: removes such results."""
    for op in [o.operation for o in block.operations if o.operation.name == "linalg.generic"]:
        if len(op.results) < 2:
            continue
        kept = [i for i, result in enumerate(op.results) if list(result.uses)]
        if kept and len(kept) < len(op.results):
            _keep_results(op, kept)


def _keep_results(op: ir.Operation, kept: list[int]) -> None:
    """Replaces a `linalg.generic` by one with only the results `kept`, unless those read the others' outputs."""
    outputs = len(op.results)
    inputs = len(op.operands) - outputs
    body = op.regions[0].blocks[0]
    arguments = list(body.arguments)
    yielded = body.operations[len(body.operations) - 1].operation

    needed: list[ir.Operation] = []
    pending = [yielded.operands[i] for i in kept]
    read: set[ir.Value] = set()
    while pending:
        value = pending.pop()
        owner = value.owner
        if isinstance(owner, ir.Block):
            read.add(value)
        elif owner.operation.block == body and owner.operation not in needed:
            needed.append(owner.operation)
            pending.extend(owner.operands)
    if any(arguments[inputs + i] in read for i in range(outputs) if i not in kept):
        return

    _rebuild(op, [*range(inputs), *(inputs + i for i in kept)], {})


def _inline_constants(block: ir.Block) -> None:
    """Constants that arrive as tensors of one value (`-inf` in a mask) become scalars of the bodies that read them."""
    for op in [o.operation for o in block.operations if o.operation.name == "linalg.generic"]:
        inputs = len(op.operands) - len(op.results)
        scalars = {i: s for i in range(inputs) if (s := _uniform(op.operands[i])) is not None}
        places = [i for i in range(len(op.operands)) if i not in scalars]
        if scalars and _bound(op, places):
            _rebuild(op, places, scalars)


def _bound(op: ir.Operation, places: list[int]) -> bool:
    """Whether the shapes of the operands at `places` alone give every loop its bound."""
    maps = [op.attributes["indexing_maps"][p].value for p in places]
    dims = {ir.AffineDimExpr(e).position for m in maps for e in m.results if isinstance(e, ir.AffineDimExpr)}
    return len(dims) == len(op.attributes["iterator_types"])


def _uniform(value: ir.Value) -> ir.Attribute | None:
    """The one element of a constant tensor that holds nothing else."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != "arith.constant":
        return None
    attribute = owner.attributes["value"]
    if not isinstance(attribute, ir.DenseElementsAttr) or not attribute.is_splat:
        return None
    return attribute.get_splat_value()


def _rebuild(op: ir.Operation, places: list[int], scalars: dict[int, ir.Attribute]) -> None:
    """Replaces a `linalg.generic` by one with only the operands at `places`.

    Inputs that are left out have their scalar in `scalars`; outputs that are left out have no use.
    """
    outputs = len(op.results)
    inputs = len(op.operands) - outputs
    body = op.regions[0].blocks[0]
    arguments = list(body.arguments)
    kept = [p - inputs for p in places if p >= inputs]
    attributes = {name: op.attributes[name] for name in op.attributes}
    attributes["indexing_maps"] = ir.ArrayAttr.get([op.attributes["indexing_maps"][p] for p in places])
    attributes["operandSegmentSizes"] = ir.DenseI32ArrayAttr.get([len(places) - len(kept), len(kept)])
    with ir.InsertionPoint(op):
        new = ir.Operation.create(
            "linalg.generic",
            results=[op.results[i].type for i in kept],
            operands=[op.operands[p] for p in places],
            attributes=attributes,
            regions=1,
            loc=op.location,
        )
        values = {
            arguments[p]: ir.Operation.create(
                "arith.constant", results=[arguments[p].type], attributes={"value": scalar}, loc=op.location
            ).result
            for p, scalar in scalars.items()
        }
    types = [arguments[p].type for p in places]
    block = ir.Block.create_at_start(new.regions[0], types, [arguments[p].location for p in places])
    values.update({arguments[old]: block.arguments[at] for at, old in enumerate(places)})
    left_out = [argument for argument in arguments if argument not in values]
    with ir.InsertionPoint(block):
        for inner in [o.operation for o in body.operations]:
            if inner.name == "linalg.yield":
                results = [values.get(inner.operands[i], inner.operands[i]) for i in kept]
                ir.Operation.create("linalg.yield", operands=results, loc=inner.location)
                continue
            if any(operand in left_out for operand in inner.operands):
                left_out.extend(inner.results)  # it computes a result that is left out
                continue
            copy = inner.clone()
            for place, operand in enumerate(inner.operands):
                copy.operands[place] = values.get(operand, operand)
            values.update(zip(inner.results, copy.results, strict=True))
    for at, old in enumerate(kept):
        op.results[old].replace_all_uses_with(new.results[at])
    op.erase()
