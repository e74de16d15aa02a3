"""The bits of floats as integers and back, `kitsune::reinterpreted`, and what is made of them: signs, neighbours, exponents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_mlir import ir
from torch_mlir.dialects import arith, tensor

from kitsune_mlir.frontend.dtypes import widened
from kitsune_mlir.frontend.own_operators import define, implement, lowering

__all__ = ["BITS"]

aten = torch.ops.aten

_INTEGER = {torch.float32: torch.int32, torch.float64: torch.int64}
"""Of as many bits."""
_FRACTION = {torch.float32: 23, torch.float64: 52, torch.bfloat16: 7}
"""Bits behind the exponent's."""

define(
    "reinterpreted(Tensor x, ScalarType dtype) -> Tensor",
    lambda x, dtype: torch.empty_like(x, dtype=dtype),
    tags=(torch.Tag.pointwise,),
)
implement("reinterpreted", lambda x, dtype: x.view(dtype).clone())


@lowering("reinterpreted")
def _lowered(op: ir.Operation, tensors: list[ir.Value]) -> ir.Value:
    (x,) = tensors
    type = ir.RankedTensorType(x.type)
    float_type = {"i32": ir.F32Type, "i64": ir.F64Type}.get(str(type.element_type))
    to = float_type.get() if float_type else ir.IntegerType.get_signless(type.element_type.width)
    each = ir.AffineMapAttr.get(ir.AffineMap.get_identity(len(type.shape)))
    attributes = {
        "indexing_maps": ir.ArrayAttr.get([each, each]),
        "iterator_types": ir.ArrayAttr.get([ir.Attribute.parse("#linalg.iterator_type<parallel>")] * len(type.shape)),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 1]),
    }
    out = tensor.empty(list(type.shape), to)
    made = ir.Operation.create("linalg.generic", [out.type], [x, out], attributes, regions=1)
    block = made.regions[0].blocks.append(type.element_type, to, arg_locs=[op.location] * 2)
    with ir.InsertionPoint(block):
        ir.Operation.create("linalg.yield", [], [arith.bitcast(to, block.arguments[0])])
    return made.results[0]


def _bits(x: Tensor) -> Tensor:
    """Of f32 or f64."""
    return torch.ops.kitsune.reinterpreted(x, _INTEGER[x.dtype])


def _signbit(x: Tensor) -> Tensor:
    """Of zeros and NaN too."""
    if x.dtype == torch.bool or not x.dtype.is_floating_point:
        return torch.zeros_like(x, dtype=torch.bool) if x.dtype in (torch.bool, torch.uint8) else x < 0
    return _bits(widened(x)) < 0


def _nextafter(x: Tensor, y: Tensor) -> Tensor:
    """The next number from `x` towards `y`: its bits and 1 more, or less. Those of bf16 are the upper half of f32's."""
    dtype = torch.result_type(x, y)
    if dtype not in _FRACTION:
        return NotImplemented
    x, y = (widened(v.to(dtype)) for v in torch.broadcast_tensors(x, y))
    bits = _bits(x)
    one = 1 << (_FRACTION[x.dtype] - _FRACTION[dtype])
    lowest = torch.iinfo(bits.dtype).min
    moved = torch.where((y > x) == (x > 0), bits + one, bits - one)
    moved = torch.where(x == 0, torch.where(y > 0, one, lowest + one).to(bits.dtype), moved)
    found = torch.ops.kitsune.reinterpreted(moved, x.dtype)
    return torch.where(x != x, x, torch.where((x == y) | (y != y), y, found)).to(dtype)


def _frexp(x: Tensor) -> tuple[Tensor, Tensor]:
    """x = m·2ᵉ with 1/2 ≤ |m| < 1; zeros, infinities and NaN are m themselves, with 0."""
    if not x.dtype.is_floating_point:
        return NotImplemented
    wide = widened(x)
    fraction, info = _FRACTION[wide.dtype], torch.finfo(wide.dtype)
    small = wide.abs() < info.tiny
    bits = _bits(torch.where(small, wide * 2.0**fraction, wide))
    bias = (1 << (torch.iinfo(bits.dtype).bits - 2 - fraction)) - 2
    exponent = ((bits >> fraction) & (2 * bias + 3)) - bias - torch.where(small, fraction, 0)
    kept = bits & ~((2 * bias + 3) << fraction)
    mantissa = torch.ops.kitsune.reinterpreted(kept + (bias << fraction), wide.dtype)
    itself = (wide == 0) | ((wide - wide) != 0)
    return torch.where(itself, wide, mantissa).to(x.dtype), torch.where(itself, 0, exponent).to(torch.int32)


def _beside_a_number(op: Any) -> Callable[..., Any]:
    return lambda x, y: op(x, torch.full((), y, dtype=torch.result_type(x, y), device=x.device))


BITS: dict[Any, Callable[..., Any]] = {
    aten.signbit.default: _signbit,
    aten.nextafter.default: _nextafter,
    aten.frexp.Tensor: _frexp,
    aten.bitwise_or.Scalar: _beside_a_number(aten.bitwise_or.Tensor),
    aten.bitwise_xor.Scalar: _beside_a_number(aten.bitwise_xor.Tensor),
}
"""Operator → decomposition."""
