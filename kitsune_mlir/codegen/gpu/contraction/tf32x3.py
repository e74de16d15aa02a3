"""f32 products as exact as f32 arithmetic, on tensor cores: each operand as the sum of two tf32 numbers.

A tensor core reads the upper 19 bits of an f32 number as tf32. So a number x is its own upper half, x' , and the rest x - x'
is exact in f32 and has its upper half read in turn. Of the four products of halves, the three that matter are added:
a'b' + (a - a')b' + a'(b - b'); what is left out is about 2^-20 of each product. (Markidis et al., "NVIDIA Tensor Core
Programmability, Performance & Precision", 2018.) Infinite operands give NaN.
"""

from __future__ import annotations

from kitsune_mlir.codegen.gpu.emit.control_flow import for_
from kitsune_mlir.codegen.gpu.emit.memory import load, offset, store
from kitsune_mlir.codegen.gpu.emit.value import Value, bitcast, unpack, vector

__all__ = ["write_small_parts"]

_UPPER = 0xFFFFE000
"""The bits of an f32 number that tf32 has."""


_AT_A_TIME = 8
"""Vectors of 16 bytes that a thread has in flight."""


def write_small_parts(start: Value, bytes: int, thread: Value, count: int) -> None:
    """Put the rests of `bytes` bytes of f32 numbers in shared memory behind these, by `count` threads of which this is one."""
    place = thread * 16

    def some(at: Value) -> None:
        sources = [offset(start, at + number * 16 * count) for number in range(_AT_A_TIME)]
        for source, found in zip(sources, [load(source, "vector<4xf32>") for source in sources], strict=True):
            store(vector([_small_part(value) for value in unpack(found)]), offset(source, bytes))

    step = 16 * count * _AT_A_TIME
    whole = bytes // step * step
    for_(place, whole, step, some)

    def one(at: Value) -> None:
        source = offset(start, at)
        store(vector([_small_part(value) for value in unpack(load(source, "vector<4xf32>"))]), offset(source, bytes))

    if whole < bytes:
        for_(place + whole, bytes, 16 * count, one)


def _small_part(value: Value) -> Value:
    return value - bitcast(bitcast(value, "i32") & _UPPER, "f32")
