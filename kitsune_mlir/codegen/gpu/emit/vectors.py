"""Runs of neighbouring elements between memory and registers, converted on the way.

Elements are named by the type they have in memory: "bf16", "f16", "f32", "f64", "i1" (a byte, 0 or 1), "i8", "i16",
"i32", "i64". In registers they may have another type; bf16 and f16 are widened and narrowed in pairs.
"""

from __future__ import annotations

from collections.abc import Sequence

from kitsune_mlir.codegen.gpu.emit.convert import pack_values, unpack_values
from kitsune_mlir.codegen.gpu.emit.memory import Cache, load, offset, store
from kitsune_mlir.codegen.gpu.emit.value import Value, bitcast, cast, element_bits, unpack, vector
from kitsune_mlir.dialects.sizes import HALF_TYPES

__all__ = ["dtype_bytes", "load_elements", "store_elements"]


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element in memory."""
    return max(8, element_bits(dtype)) // 8


def load_elements(
    pointer: Value,
    dtype: str,
    count: int,
    register_dtype: str | None = None,
    align: int | None = None,
    constant: bool = False,
    cache: Cache = Cache.DEFAULT,
) -> list[Value]:
    """Load `count` neighbouring elements of `dtype` as values of `register_dtype` (default: `dtype`).

    Args:
        align: alignment of `pointer` in bytes; default: that of one element. Instructions are as wide as it allows, up to
            16 bytes.
    """
    register_dtype = register_dtype or dtype
    size = dtype_bytes(dtype)
    memory_dtype = "i8" if dtype == "i1" else dtype
    values: list[Value] = []
    for start, length in _pieces(count, size, align or size):
        place = offset(pointer, start * size)
        if length == 1:
            loaded = [load(place, memory_dtype, size, constant)]
        elif size == 2 and register_dtype == "f32" and dtype in HALF_TYPES:
            words = _load_words(place, length * 2 // 4, constant, cache)
            values += unpack_values(words, dtype)
            continue
        else:
            hint = cache if length * size >= 4 else Cache.DEFAULT
            loaded = unpack(load(place, f"vector<{length}x{memory_dtype}>", None, constant, hint))
        if dtype == "i1":
            loaded = [value != 0 for value in loaded]
        values += [cast(value, register_dtype) for value in loaded]
    return values


def _load_words(pointer: Value, count: int, constant: bool, cache: Cache) -> list[Value]:
    if count == 1:
        return [load(pointer, "i32", None, constant, cache)]
    return unpack(load(pointer, f"vector<{count}xi32>", None, constant, cache))


def store_elements(
    values: Sequence[Value],
    pointer: Value,
    dtype: str | None = None,
    align: int | None = None,
    cache: Cache = Cache.DEFAULT,
    relu: bool = False,
) -> None:
    """Store values side by side as elements of `dtype` (default: their own type); `align` as in `load_elements`.

    With `relu` (only to bf16 and f16), negative numbers become 0 on the way.

    Raises:
        ValueError: `relu` with another type.
    """
    dtype = dtype or str(values[0].type)
    size = dtype_bytes(dtype)
    for start, length in _pieces(len(values), size, align or size):
        place = offset(pointer, start * size)
        piece = values[start : start + length]
        if dtype in HALF_TYPES and length > 1:
            words = pack_values(piece, dtype, relu)
            store(words[0] if len(words) == 1 else vector(words), place, None, cache)
            continue
        if relu:
            if dtype not in HALF_TYPES:
                raise ValueError(f"relu is part of the conversion to bf16 or f16, not to {dtype}")
            words = pack_values([piece[0], piece[0]], dtype, relu)
            store(bitcast(cast(words[0], "i16"), dtype), place, size)
            continue
        if dtype == "i1":
            piece = [cast(value, "i8") for value in piece]
        else:
            piece = [cast(value, dtype) for value in piece]
        hint = cache if length * size in (4, 8, 16) else Cache.DEFAULT
        store(piece[0] if length == 1 else vector(piece), place, None, hint)


def _pieces(count: int, size: int, align: int) -> list[tuple[int, int]]:
    """(start, length) of the accesses for `count` elements of `size` bytes: powers of two, aligned, up to 16 bytes."""
    pieces, start = [], 0
    while start < count:
        place = start * size
        limit = min(16, align if not place else min(align, place & -place))
        length = max(1, min(limit // size, 1 << ((count - start).bit_length() - 1)))
        pieces.append((start, length))
        start += length
    return pieces
