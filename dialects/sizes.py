"""Bytes that tensors and their elements take in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch_mlir import ir

from kitsune_mlir.errors import UnsupportedError

__all__ = ["HALF_TYPES", "element_bytes", "tensor_bytes", "wide_dims"]

HALF_TYPES = ("bf16", "f16")
"""Floating-point types of 16 bits."""


def element_bytes(type_: ir.Type) -> int:
    """Bytes of a number, or of an element of a tensor or memref type: an i1 takes a byte, as in torch, an index eight.

    Raises:
        UnsupportedError: elements that are no numbers, or vectors of numbers.
    """
    if isinstance(type_, ir.RankedTensorType | ir.MemRefType):
        type_ = type_.element_type
    if isinstance(type_, ir.IndexType):
        return 8
    if isinstance(type_, ir.ComplexType):
        return 2 * element_bytes(type_.element_type)
    if isinstance(type_, ir.VectorType):
        return math.prod(type_.shape) * element_bytes(type_.element_type)
    if not isinstance(type_, ir.IntegerType | ir.FloatType):
        raise UnsupportedError("kitsune.task", "elements are integers, floats, complex numbers or index", str(type_))
    return -(-type_.width // 8)


def tensor_bytes(type_: ir.Type, shape: Sequence[int] | None = None) -> int:
    """Bytes of a static tensor or memref type; with `shape`, of a part of it."""
    return math.prod(ir.ShapedType(type_).shape if shape is None else shape) * element_bytes(type_)


def wide_dims(shape: Sequence[int]) -> list[int]:
    """The dimensions of a shape whose extent is not 1."""
    return [dim for dim, extent in enumerate(shape) if extent != 1]
