"""`kitsune::scatter_rows`: an operator of our own that scatters become, and its lowering to `tm_tensor.scatter`.

torch-mlir has one index for each row only where rows are assigned or added; all other kinds come with an index for each
element. So its lowering stands here, before torch-mlir's.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor
from torch_mlir import ir
from torch_mlir.passmanager import PassManager

from kitsune_mlir.dialects.scatter_kinds import ASSIGN, COMBINING

__all__ = ["DIALECTS", "LIBRARY", "builtin_tensor", "lower_scatter_rows", "scatter_rows"]

_NAME = "scatter_rows"
LIBRARY = torch.library.Library("kitsune", "FRAGMENT")
"""The namespace of our own operators."""
LIBRARY.define(f"{_NAME}(Tensor x, Tensor index, Tensor source, str reduce) -> Tensor")
torch.library.impl(LIBRARY, _NAME, "Meta")(lambda x, index, source, reduce: torch.empty_like(x))

_KINDS = {
    "sum": ("addf", "addi"),
    "prod": ("mulf", "muli"),
    "amax": ("maximumf", "maxs"),
    "amin": ("minimumf", "mins"),
    "set": (ASSIGN, ASSIGN),
}
"""Kinds of floats and of integers, by `reduce`."""
_TENSOR = re.compile(r"!torch\.vtensor<\[([\d,]*)\],([a-z]+)(\d+)>|!torch\.vtensor<\[([\d,]*)\],complex<f(\d+)>>")
DIALECTS = "builtin.module(func.func(convert-torch-to-tmtensor),torch-func-backend-type-conversion)"


def scatter_rows(x: Tensor, index: Tensor, source: Tensor, reduce: str) -> Tensor:
    """Rows put into others: result[index[e]] = result[index[e]] ∘ source[e], which starts as `x`.

    Args:
        x: [N, ...].
        index: [E], integers in [0, N).
        source: [E, ...] of x's type.
        reduce: `sum`, `prod`, `amax`, `amin` (of floats, i32 and i64), or `set` of any type.
    """
    return torch.ops.kitsune.scatter_rows(x, index, source, reduce)


def lower_scatter_rows(module: ir.Module) -> None:
    """Turn each `kitsune.scatter_rows` of a module of the torch dialect into a `tm_tensor.scatter`, in place."""
    found = [op.operation for op in module.body.operations[0].regions[0].blocks[0].operations if _is_ours(op.operation)]
    if not found:
        return
    with module.context, ir.Location.unknown():
        PassManager.parse(DIALECTS).run(ir.Module.create().operation)  # loads the dialects that are written here
    for op in found:
        with module.context, ir.InsertionPoint(op), op.location:
            op.results[0].replace_all_uses_with(_lowered(op))
        op.erase()


def _is_ours(op: ir.Operation) -> bool:
    return op.name == "torch.operator" and ir.StringAttr(op.attributes["name"]).value == f"torch.kitsune.{_NAME}"


def _lowered(op: ir.Operation) -> ir.Value:
    x, index, source = (builtin_tensor(value) for value in list(op.operands)[:3])
    reduce = ir.StringAttr(op.operands[3].owner.attributes["value"]).value
    element = ir.RankedTensorType(x.type).element_type
    rows, *window = list(ir.RankedTensorType(source.type).shape)
    kind = _KINDS[reduce][isinstance(element, ir.IntegerType)]
    attributes = {
        "dimension_map": ir.DenseI64ArrayAttr.get([0]),
        "unique_indices": ir.BoolAttr.get(False),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([2, 1]),
    }
    operands = [_with_one(source, [rows, 1, *window]), _with_one(index, [rows, 1]), x]
    scatter = ir.Operation.create("tm_tensor.scatter", [x.type], operands, attributes, regions=1)
    block = scatter.regions[0].blocks.append(element, element, arg_locs=[op.location] * 2)
    with ir.InsertionPoint(block):
        new, old = block.arguments
        value = new if kind == ASSIGN else ir.Operation.create(COMBINING[kind], [element], [old, new]).results[0]
        ir.Operation.create("tm_tensor.yield", [], [value])
    return ir.Operation.create("torch_c.from_builtin_tensor", [op.results[0].type], [scatter.results[0]]).results[0]


def builtin_tensor(value: ir.Value) -> ir.Value:
    """A tensor of torch's type as one of MLIR's."""
    match = _TENSOR.fullmatch(str(value.type))
    assert match is not None, f"{value.type} has a shape and a type"
    sizes, kind, bits, *_ = match.groups() if match[2] else (match[4], "complex", match[5])
    names = {"si": f"i{bits}", "ui": f"i{bits}", "i": f"i{bits}", "complex": f"complex<f{bits}>"}
    name = names.get(kind, f"{kind}{bits}")
    type_ = ir.RankedTensorType.get([int(size) for size in sizes.split(",") if size], ir.Type.parse(name))
    return ir.Operation.create("torch_c.to_builtin_tensor", [type_], [value]).results[0]


def _with_one(value: ir.Value, shape: list[int]) -> ir.Value:
    """A tensor with a dimension of one behind its first."""
    type_ = ir.RankedTensorType.get(shape, ir.RankedTensorType(value.type).element_type)
    groups = [[0, 1], *[[n] for n in range(2, len(shape))]]
    attributes = {
        "reassociation": ir.ArrayAttr.get([ir.ArrayAttr.get([_i64(n) for n in group]) for group in groups]),
        "static_output_shape": ir.DenseI64ArrayAttr.get(shape),
    }
    return ir.Operation.create("tensor.expand_shape", [type_], [value], attributes).results[0]


def _i64(value: int) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
