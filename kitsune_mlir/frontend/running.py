"""`kitsune::running`: running maxima and minima, an operator of our own that becomes a `tm_tensor.scan`.

torch-mlir has running sums and products.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch_mlir import ir
from torch_mlir.passmanager import PassManager

from kitsune_mlir.frontend.scatter_rows import DIALECTS, LIBRARY, builtin_tensor

__all__ = ["lower_running", "running"]

_NAME = "running"
LIBRARY.define(f"{_NAME}(Tensor x, int dim, str kind) -> Tensor")
torch.library.impl(LIBRARY, _NAME, "Meta")(lambda x, dim, kind: torch.empty_like(x))

_KINDS = {"max": ("arith.maximumf", "arith.maxsi"), "min": ("arith.minimumf", "arith.minsi")}


def running(x: Tensor, dim: int, kind: str) -> Tensor:
    """The largest element so far (`kind` "max") or the smallest ("min") along a dimension; NaN from the first NaN on.

    Args:
        x: of a signed type.
        dim: from 0 on.
    """
    return torch.ops.kitsune.running(x, dim, kind)


def lower_running(module: ir.Module) -> None:
    """Turn each `kitsune.running` of a module of the torch dialect into a `tm_tensor.scan`, in place."""
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
    x = builtin_tensor(op.operands[0])
    dim = ir.IntegerAttr(op.operands[1].owner.attributes["value"]).value
    kind = ir.StringAttr(op.operands[2].owner.attributes["value"]).value
    type = ir.RankedTensorType(x.type)
    element, shape = type.element_type, list(type.shape)
    last = ir.RankedTensorType.get([size for d, size in enumerate(shape) if d != dim], element)
    starts = [ir.Operation.create("tensor.empty", [t]).results[0] for t in (type, last)]
    attributes = {
        "dimension": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim),
        "inclusive": ir.BoolAttr.get(True),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 2]),
    }
    scan = ir.Operation.create("tm_tensor.scan", [type, last], [x, *starts], attributes, regions=1)
    block = scan.regions[0].blocks.append(element, element, arg_locs=[op.location] * 2)
    with ir.InsertionPoint(block):
        name = _KINDS[kind][isinstance(element, ir.IntegerType)]
        ir.Operation.create("tm_tensor.yield", [], [ir.Operation.create(name, [element], list(block.arguments)).results[0]])
    return ir.Operation.create("torch_c.from_builtin_tensor", [op.results[0].type], [scan.results[0]]).results[0]
