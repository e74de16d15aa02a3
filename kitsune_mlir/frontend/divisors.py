"""The greatest common divisor, `kitsune::gcd`, and the least common multiple of integers, element by element.

Euclid's algorithm, with as many steps as two numbers of a type can take: those of neighbours in Fibonacci's sequence (Lamé).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_mlir import ir
from torch_mlir.dialects import arith, tensor

from kitsune_mlir.frontend.own_operators import define, implement, lowering

__all__ = ["DIVISORS"]

aten = torch.ops.aten

define("gcd(Tensor a, Tensor b) -> Tensor", lambda a, b: torch.empty_like(a), tags=(torch.Tag.pointwise,))
implement("gcd", torch.gcd)


def steps_of(bits: int) -> int:
    """Divisions that two numbers of so many bits, the sign among them, take at most, if the smaller one comes first too."""
    least, next_, count = 1, 2, 2
    while next_ < 1 << (bits - 1):
        least, next_, count = next_, least + next_, count + 1
    return count + 1


@lowering("gcd")
def _lowered(op: ir.Operation, tensors: list[ir.Value]) -> ir.Value:
    type = ir.RankedTensorType(tensors[0].type)
    element, rank = type.element_type, len(type.shape)
    each = ir.AffineMapAttr.get(ir.AffineMap.get_identity(rank))
    attributes = {
        "indexing_maps": ir.ArrayAttr.get([each, each, each]),
        "iterator_types": ir.ArrayAttr.get([ir.Attribute.parse("#linalg.iterator_type<parallel>")] * rank),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([2, 1]),
    }
    out = tensor.empty(list(type.shape), element)
    made = ir.Operation.create("linalg.generic", [type], [*tensors, out], attributes, regions=1)
    block = made.regions[0].blocks.append(element, element, element, arg_locs=[op.location] * 3)
    with ir.InsertionPoint(block):
        zero, one = arith.constant(element, 0), arith.constant(element, 1)
        divisor, found = block.arguments[:2]
        for _ in range(steps_of(element.width)):
            done = arith.cmpi(arith.CmpIPredicate.eq, divisor, zero)
            rest = arith.remsi(found, arith.select(done, one, divisor))  # 0 when it is done
            found, divisor = arith.select(done, found, divisor), rest
        ir.Operation.create("linalg.yield", [], [found])
    return made.results[0]


def _wide(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, torch.dtype]:
    """Numbers in 32 or 64 bits, and their type."""
    dtype = torch.result_type(a, b)
    wide = dtype if dtype in (torch.int32, torch.int64) else torch.int32
    a, b = (v.to(dtype).to(wide) for v in torch.broadcast_tensors(a, b))
    return a, b, dtype


def _divisor(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """Of wide numbers; the least number of a type stays negative, as in PyTorch."""
    return torch.ops.kitsune.gcd(a.abs().to(dtype).to(a.dtype), b.abs().to(dtype).to(b.dtype))


def _gcd(a: Tensor, b: Tensor) -> Tensor:
    a, b, dtype = _wide(a, b)
    return _divisor(a, b, dtype).to(dtype)


def _lcm(a: Tensor, b: Tensor) -> Tensor:
    a, b, dtype = _wide(a, b)
    divisor = _divisor(a, b, dtype)
    quotient = torch.div(a, torch.where(divisor == 0, 1, divisor), rounding_mode="trunc")
    return (quotient * b).abs().to(dtype)


DIVISORS: dict[Any, Callable[..., Any]] = {aten.gcd.default: _gcd, aten.lcm.default: _lcm}
"""Operator → decomposition."""
