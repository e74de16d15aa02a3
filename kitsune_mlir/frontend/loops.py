"""Loops over tensors, as torch-mlir makes them of recurrent operators of other frameworks: written out, turn by turn."""

from __future__ import annotations

from torch_mlir import ir
from torch_mlir.passmanager import PassManager

from kitsune_mlir.dialects.cloning import clone_with
from kitsune_mlir.errors import FrontendError
from kitsune_mlir.frontend.source import origin_of_location

__all__ = ["MOST_TURNS", "write_out_loops"]

MOST_TURNS = 64
"""Of one loop: each turn becomes stages of its own."""


def write_out_loops(module: ir.Module) -> None:
    """Replace the loops of the module's function by their turns, in place; what comes of their counters is folded.

    Raises:
        FrontendError: a loop has too many turns, or how many, or which of two branches runs, is known only at run time.
    """
    block = module.body.operations[0].regions[0].blocks[0]
    if not any(op.operation.name.startswith("scf.") for op in block.operations):
        return
    while op := next((o.operation for o in block.operations if o.operation.name.startswith("scf.")), None):
        _write_out(op)
    with module.context:
        PassManager.parse("builtin.module(func.func(canonicalize,cse))").run(module.operation)


def _write_out(op: ir.Operation) -> None:
    bounds = [_constant(value) for value in op.operands[:3]] if op.name == "scf.for" else [None]
    operator, location = origin_of_location(op.location)
    what = f"operator '{operator or op.name}'"
    if None in bounds:
        raise FrontendError(
            f"{what} is a loop or a branch that depends on values at run time; control flow must be static",
            operator=operator,
            location=location,
        )
    turns = range(*(bound for bound in bounds if bound is not None))
    if len(turns) > MOST_TURNS:
        problem = f"{what} is a loop of {len(turns)} turns; at most {MOST_TURNS} are written out"
        raise FrontendError(problem, operator=operator, location=location)
    body = op.regions[0].blocks[0]
    *inner, last = [one.operation for one in body.operations]
    values = list(op.operands[3:])
    with ir.InsertionPoint(op):
        for turn in turns:
            index = ir.IntegerAttr.get(body.arguments[0].type, turn)
            counter = ir.Operation.create("arith.constant", [index.type], attributes={"value": index}, loc=op.location)
            mapping = dict(zip(body.arguments, [counter.result, *values], strict=True))
            for one in inner:
                clone_with(one, mapping)
            values = [mapping.get(value, value) for value in last.operands]
    for result, value in zip(op.results, values, strict=True):
        result.replace_all_uses_with(value)
    op.erase()


def _constant(value: ir.Value) -> int | None:
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != "arith.constant":
        return None
    return ir.IntegerAttr(owner.attributes["value"]).value
