"""Tidies what torch-mlir leaves behind, so that later passes meet one form of each thing."""

from __future__ import annotations

from torch_mlir import ir
from torch_mlir.passmanager import PassManager

from kitsune_mlir.frontend.numerics import settle_numerics

__all__ = ["settle"]

# Rank-0 constants (`-inf` in a mask) become scalars of the bodies that read them.
_CANONICAL = "builtin.module(func.func(linalg-inline-scalar-operands,canonicalize,cse))"


def settle(module: ir.Module) -> None:
    """Rewrites `module` (linalg on tensors) in place: types of arithmetic, unused results, scalar operands.

    The result is canonical and verified.
    """
    with module.context, ir.Location.unknown():
        for function in module.body.operations:
            for region in function.regions:
                for block in region.blocks:
                    _drop_unused_results(block)
        PassManager.parse(_CANONICAL).run(module.operation)
        for function in module.body.operations:
            for region in function.regions:
                for block in region.blocks:
                    settle_numerics(block)
        PassManager.parse(_CANONICAL).run(module.operation)


def _drop_unused_results(block: ir.Block) -> None:
    """Maxima arrive with the index of the largest element whether or not it is asked for: removes such results."""
    for op in [o.operation for o in block.operations if o.operation.name == "linalg.generic"]:
        if len(op.results) < 2:
            continue
        kept = [i for i, result in enumerate(op.results) if list(result.uses)]
        if kept and len(kept) < len(op.results):
            _keep_results(op, kept)


def _keep_results(op: ir.Operation, kept: list[int]) -> None:
    """Replaces a `linalg.generic` by one with only the results `kept`, if those do not read the others' outputs."""
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

    places = [*range(inputs), *(inputs + i for i in kept)]
    attributes = {name: op.attributes[name] for name in op.attributes}
    attributes["indexing_maps"] = ir.ArrayAttr.get([op.attributes["indexing_maps"][i] for i in places])
    attributes["operandSegmentSizes"] = ir.DenseI32ArrayAttr.get([inputs, len(kept)])
    with ir.InsertionPoint(op):
        new = ir.Operation.create(
            "linalg.generic",
            results=[op.results[i].type for i in kept],
            operands=[op.operands[i] for i in places],
            attributes=attributes,
            regions=1,
            loc=op.location,
        )
    types = [arguments[i].type for i in places]
    block = ir.Block.create_at_start(new.regions[0], types, [arguments[i].location for i in places])
    values = {arguments[old]: block.arguments[at] for at, old in enumerate(places)}
    with ir.InsertionPoint(block):
        for inner in [o.operation for o in body.operations if o.operation in needed]:
            copy = inner.clone()
            for place, operand in enumerate(inner.operands):
                copy.operands[place] = values.get(operand, operand)
            values.update(zip(inner.results, copy.results, strict=True))
        results = [values.get(yielded.operands[i], yielded.operands[i]) for i in kept]
        ir.Operation.create("linalg.yield", operands=results, loc=yielded.location)
    for at, old in enumerate(kept):
        op.results[old].replace_all_uses_with(new.results[at])
    op.erase()
