"""`kitsune::polynomial`: a polynomial of each element, an operator of our own instead of two of PyTorch's a coefficient.

Approximations of special functions are made of them: as operations on tensors, each would be traced and lowered by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch_mlir import ir
from torch_mlir.dialects import arith, tensor

from kitsune_mlir.frontend.own_operators import define, implement, lowering

__all__ = ["polynomial"]


def _horner(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    found = torch.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        found = found * x + coefficient
    return found


define(
    "polynomial(Tensor x, float[] coefficients) -> Tensor",
    lambda x, coefficients: torch.empty_like(x),
    tags=(torch.Tag.pointwise,),
)
implement("polynomial", _horner)


def polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """c[0] + c[1]·x + c[2]·x² + ..., by Horner's rule in the type of `x`.

    Args:
        x: f32 or f64.
        coefficients: from that of 1 on; one at least.
    """
    return torch.ops.kitsune.polynomial(x, list(coefficients))


@lowering("polynomial")
def _lowered(op: ir.Operation, tensors: list[ir.Value]) -> ir.Value:
    (x,) = tensors
    type = ir.RankedTensorType(x.type)
    element, rank = type.element_type, len(type.shape)
    coefficients = [ir.FloatAttr(one.owner.attributes["value"]).value for one in op.operands[1].owner.operands]
    each = ir.AffineMapAttr.get(ir.AffineMap.get_identity(rank))
    attributes = {
        "indexing_maps": ir.ArrayAttr.get([each, each]),
        "iterator_types": ir.ArrayAttr.get([ir.Attribute.parse("#linalg.iterator_type<parallel>")] * rank),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 1]),
    }
    out = tensor.empty(list(type.shape), element)
    made = ir.Operation.create("linalg.generic", [type], [x, out], attributes, regions=1)
    block = made.regions[0].blocks.append(element, element, arg_locs=[op.location] * 2)
    with ir.InsertionPoint(block):
        found = arith.constant(element, coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            found = arith.addf(arith.mulf(found, block.arguments[0]), arith.constant(element, coefficient))
        ir.Operation.create("linalg.yield", [], [found])
    return made.results[0]
