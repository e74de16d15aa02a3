"""`kitsune::running`: running maxima, minima and sums of exponents, an operator of our own that becomes a `tm_tensor.scan`.

torch-mlir has running sums and products. A body that is more than one operation has an attribute beside it that names the
number which changes nothing: an engine can then scan with any body that is associative.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch_mlir import ir
from torch_mlir.dialects import arith, math

from kitsune_mlir.dialects.attribute_table import NEUTRAL
from kitsune_mlir.frontend.own_operators import define, implement, lowering

__all__ = ["running"]

define("running(Tensor x, int dim, str kind) -> Tensor", lambda x, dim, kind: torch.empty_like(x))
implement(
    "running",
    lambda x, dim, kind: (
        torch.logcumsumexp(x, dim) if kind == "logaddexp" else (torch.cummax if kind == "max" else torch.cummin)(x, dim).values
    ),
)

_KINDS = {"max": ("arith.maximumf", "arith.maxsi"), "min": ("arith.minimumf", "arith.minsi")}


def running(x: Tensor, dim: int, kind: str) -> Tensor:
    """The largest element so far (`kind` "max") or the smallest ("min") along a dimension; NaN from the first NaN on.

    With kind "logaddexp": the logarithm of the sum of all elements' exponentials so far.

    Args:
        x: of a signed type; for "logaddexp" f32 or f64.
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
    if kind == "logaddexp":
        attributes[NEUTRAL] = ir.FloatAttr.get(element, float("-inf"))
    scan = ir.Operation.create("tm_tensor.scan", [type, last], [x, *starts], attributes, regions=1)
    block = scan.regions[0].blocks.append(element, element, arg_locs=[op.location] * 2)
    with ir.InsertionPoint(block):
        if kind == "logaddexp":
            combined = _logaddexp(*block.arguments)
        else:
            name = _KINDS[kind][isinstance(element, ir.IntegerType)]
            combined = ir.Operation.create(name, [element], list(block.arguments)).results[0]
        ir.Operation.create("tm_tensor.yield", [], [combined])
    return scan.results[0]


def _logaddexp(a: ir.Value, b: ir.Value) -> ir.Value:
    """log(exp(a) + exp(b)): the larger one, and what the smaller one adds to it. Equal infinities have no difference."""
    most = arith.maximumf(a, b)
    apart = arith.subf(arith.minimumf(a, b), most)
    zero = arith.constant(a.type, 0.0)
    equal = arith.cmpf(arith.CmpFPredicate.OEQ, a, b)
    return arith.addf(most, math.log1p(math.exp(arith.select(equal, zero, apart))))
