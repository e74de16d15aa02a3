"""Operators of our own, in the namespace `kitsune`: what torch-mlir has no operator for, and their lowering before its own.

The decompositions write them into the graph, torch-mlir imports them as `torch.operator`, and here they become operations of
other dialects between casts of their tensors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import torch
from torch_mlir import ir
from torch_mlir.passmanager import PassManager

__all__ = ["define", "implement", "lower_own_operators", "lowering"]

Lowering = Callable[[ir.Operation, list[ir.Value]], ir.Value | Sequence[ir.Value]]

_LIBRARY = torch.library.Library("kitsune", "FRAGMENT")
_DIALECTS = "builtin.module(func.func(convert-torch-to-tmtensor),torch-func-backend-type-conversion)"
_TENSOR = re.compile(r"!torch\.vtensor<\[([\d,]*)\],([a-z]+)(\d+)>|!torch\.vtensor<\[([\d,]*)\],complex<f(\d+)>>")
_LOWERINGS: dict[str, Lowering] = {}


def define(schema: str, shaped: Callable[..., torch.Tensor | tuple[torch.Tensor, ...]], tags: Sequence[torch.Tag] = ()) -> None:
    """Define an operator.

    Args:
        schema: `name(Tensor x, Tensor[] more, ...) -> Tensor`.
        shaped: results of the right shapes and types, from arguments without values.
        tags: what PyTorch says of operators, such as that each element of the result is made of the operands' alone.
    """
    _LIBRARY.define(schema, tags=tuple(tags))
    torch.library.impl(_LIBRARY, schema.partition("(")[0], "Meta")(shaped)


def implement(name: str, computed: Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]) -> None:
    """What PyTorch does for an operator, in its own operators, where a graph with it is not compiled."""
    torch.library.impl(_LIBRARY, name, "CompositeExplicitAutograd")(computed)


def lowering(name: str) -> Callable[[Lowering], None]:
    """Makes a function the lowering of an operator.

    It is given the `torch.operator` and its tensors, those in lists too, as MLIR's own, with an insertion point before it, and
    returns the result or results.
    """

    def register(lower: Lowering) -> None:
        _LOWERINGS[f"torch.kitsune.{name}"] = lower

    return register


def lower_own_operators(module: ir.Module) -> None:
    """Lower all of them in a module of the torch dialect, in place."""
    every = [op.operation for op in module.body.operations[0].regions[0].blocks[0].operations]
    found = [(op, _LOWERINGS[name]) for op in every if (name := _name(op)) in _LOWERINGS]
    if not found:
        return
    with module.context, ir.Location.unknown():
        PassManager.parse(_DIALECTS).run(ir.Module.create().operation)  # loads the dialects that are written here
    for op, lower in found:
        with module.context, ir.InsertionPoint(op), op.location:
            made = lower(op, [_builtin(value) for operand in op.operands for value in _tensors(operand)])
            for result, value in zip(op.results, [made] if isinstance(made, ir.Value) else made, strict=True):
                cast = ir.Operation.create("torch_c.from_builtin_tensor", [result.type], [value])
                result.replace_all_uses_with(cast.results[0])
        op.erase()


def _name(op: ir.Operation) -> str:
    return ir.StringAttr(op.attributes["name"]).value if op.name == "torch.operator" else ""


def _tensors(operand: ir.Value) -> list[ir.Value]:
    """The tensors of an operand: itself, those of a list, none."""
    if str(operand.type).startswith("!torch.list<vtensor"):
        return list(operand.owner.operands)
    return [operand] if "vtensor" in str(operand.type) else []


def _builtin(value: ir.Value) -> ir.Value:
    """A tensor of torch's type as one of MLIR's."""
    match = _TENSOR.fullmatch(str(value.type))
    assert match is not None, f"{value.type} has a shape and a type"
    sizes, kind, bits, *_ = match.groups() if match[2] else (match[4], "complex", match[5])
    names = {"si": f"i{bits}", "ui": f"i{bits}", "i": f"i{bits}", "complex": f"complex<f{bits}>"}
    name = names.get(kind, f"{kind}{bits}")
    type_ = ir.RankedTensorType.get([int(size) for size in sizes.split(",") if size], ir.Type.parse(name))
    return ir.Operation.create("torch_c.to_builtin_tensor", [type_], [value]).results[0]
