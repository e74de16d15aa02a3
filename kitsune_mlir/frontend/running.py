"""`kitsune::running`: running maxima and minima, an operator of our own that becomes a `tm_tensor.scan`.

torch-mlir has running sums and products.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch_mlir import ir

from kitsune_mlir.frontend.own_operators import define, implement, lowering

__all__ = ["running"]

define("running(Tensor x, int dim, str kind) -> Tensor", lambda x, dim, kind: torch.empty_like(x))
implement("running", lambda x, dim, kind: (torch.cummax if kind == "max" else torch.cummin)(x, dim).values)

_KINDS = {"max": ("arith.maximumf", "arith.maxsi"), "min": ("arith.minimumf", "arith.minsi")}


def running(x: Tensor, dim: int, kind: str) -> Tensor:
    """The largest element so far (`kind` "max") or the smallest ("min") along a dimension; NaN from the first NaN on.

    Args:
        x: of a signed type.
        dim: from 0 on.
    """
    return torch.ops.kitsune.running(x, dim, kind)


@lowering("running")
def _lowered(op: ir.Operation, tensors: list[ir.Value]) -> ir.Value:
    (x,) = tensors
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
    return scan.results[0]
