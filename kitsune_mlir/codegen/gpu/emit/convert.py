"""Conversions between f32 and packed 16-bit floats: two to a 32-bit register, the lower half first in memory."""

from __future__ import annotations

from collections.abc import Sequence

from torch_mlir import ir
from torch_mlir.dialects import nvvm

from kitsune_mlir.codegen.gpu.emit.value import Value, as_type, bitcast, cast, pack, unpack, wrap
from kitsune_mlir.dialects.sizes import HALF_TYPES

__all__ = ["pack_pair", "pack_values", "packed_source", "rounded_to_tf32", "unpack_pair", "unpack_values"]

_TF32, _HALF = 0xFFFFE000, 0x1000
"""The bits of an f32 number that a tf32 number has; half of the lowest of them, which rounds the magnitude to the nearest."""


def rounded_to_tf32(bits: Value) -> Value:
    """The bits (i32) of an f32 number, rounded to the nearest tf32 number. A NaN may become something else."""
    return (bits + _HALF) & _TF32


def pack_pair(low: Value, high: Value, dtype: str, relu: bool = False) -> Value:
    """Two numbers as one i32 of two bf16 or f16, by one instruction from f32; with `relu`, negative numbers become 0.

    NaN stays NaN, with `relu` too.

    Raises:
        ValueError: another type than bf16 and f16.
    """
    if dtype not in HALF_TYPES:
        raise ValueError(f"pairs are packed as bf16 or f16, not {dtype}")
    if str(low.type) == dtype and not relu:
        return pack(low, high)
    low, high = cast(low, "f32"), cast(high, "f32")
    convert = nvvm.convert_f32x2_to_bf16x2 if dtype == "bf16" else nvvm.convert_f32x2_to_f16x2
    rounding = ir.Attribute.parse("#nvvm.fp_rnd_mode<rn>")
    pair = convert(as_type(f"vector<2x{dtype}>"), high.ir, low.ir, rnd=rounding, relu=True if relu else None)
    return bitcast(wrap(pair), "i32")


def unpack_pair(pair: Value, dtype: str) -> tuple[Value, Value]:
    """The two numbers of an i32 of two bf16 or f16, as f32 (exact).

    Raises:
        ValueError: another type than bf16 and f16.
    """
    if dtype == "bf16":
        return bitcast(pair << 16, "f32"), bitcast(pair & 0xFFFF0000, "f32")
    if dtype == "f16":
        low, high = unpack(bitcast(pair, "vector<2xf16>"))
        return cast(low, "f32"), cast(high, "f32")
    raise ValueError(f"pairs are of bf16 or f16, not {dtype}")


def packed_source(low: Value, high: Value) -> Value | None:
    """The i32 of two bf16 that `unpack_pair` made these two values of; None if they are not such a pair."""
    words = []
    for value, name, number in ((low, "arith.shli", 16), (high, "arith.andi", -0x10000)):
        cast_op = value.ir.owner
        if isinstance(cast_op, ir.Block) or cast_op.name != "llvm.bitcast":
            return None
        maker = cast_op.operands[0].owner
        if isinstance(maker, ir.Block) or maker.name != name or isinstance(maker.operands[1].owner, ir.Block):
            return None
        constant_op = maker.operands[1].owner
        if constant_op.name != "arith.constant" or ir.IntegerAttr(constant_op.attributes["value"]).value != number:
            return None
        words.append(maker.operands[0])
    return wrap(words[0]) if words[0] == words[1] else None


def pack_values(values: Sequence[Value], dtype: str, relu: bool = False) -> list[Value]:
    """An even number of values as packed pairs, in order.

    Raises:
        ValueError: an odd number of values.
    """
    if len(values) % 2:
        raise ValueError(f"pairs need an even number of values, not {len(values)}")
    return [pack_pair(values[i], values[i + 1], dtype, relu) for i in range(0, len(values), 2)]


def unpack_values(pairs: Sequence[Value], dtype: str) -> list[Value]:
    """The f32 values of packed pairs, in order."""
    return [value for pair in pairs for value in unpack_pair(pair, dtype)]
