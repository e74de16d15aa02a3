"""Elements as integers that are in the same order: NaN is above every number, and zeros are equal, as torch sorts."""

from __future__ import annotations

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.value import Value, bitcast, cast, constant, element_bits, i64, is_float, select

__all__ = ["radix_key", "word_types", "words"]


def word_types(type: ir.Type) -> tuple[str, ...]:
    """Types of an item's words: key and place in one where the key has 32 bits at most."""
    return ("i64",) if element_bits(type) <= 32 else ("i64", "i32")


def words(value: Value, place: Value, exists: Value, descending: bool, signed: bool) -> tuple[Value, ...]:
    """An item: an element and its place (i32). Where it does not `exist` it comes after all others."""
    bits = 32 if element_bits(value.type) <= 32 else 64
    key = _key(value, bits, signed)
    if descending:
        key = ~key
    if bits == 64:
        last = constant((1 << 63) - 1, "i64")
        return select(exists, key, last), select(exists, place, (1 << 31) - 1)
    item = (cast(key, "i64") << 32) | i64(place)
    return (select(exists, item, (1 << 63) - 1),)


def _key(value: Value, bits: int, signed: bool) -> Value:
    name = f"i{bits}"
    if not is_float(value.type):
        return cast(value, name, signed=signed)
    wide = cast(value, f"f{bits}")
    word = bitcast(wide, name)
    # Negative numbers are in the opposite order of their bits.
    ordered = word ^ (word.shift_right_signed(bits - 1) & ((1 << (bits - 1)) - 1))
    ordered = select(wide == 0.0, 0, ordered)
    return select(wide != wide, (1 << (bits - 1)) - 1, ordered)


def radix_key(value: Value, descending: bool, signed: bool) -> Value:
    """An element as an unsigned number of its width (i32, or i64) in the same order; with `descending` in the opposite one."""
    bits = element_bits(value.type)
    word = "i64" if bits == 64 else "i32"
    ones = -1 if bits >= 32 else (1 << bits) - 1
    sign = -(1 << bits - 1) if bits >= 32 else 1 << bits - 1
    if is_float(value.type):
        raw = cast(bitcast(value, f"i{bits}"), word, signed=False)
        key = select((raw & sign) == 0, raw | sign, raw ^ ones)
        key = select((raw & (1 << bits - 1) - 1) == 0, sign, key)
        wide = cast(value, "f64" if bits == 64 else "f32")
        key = select(wide != wide, ones, key)
    else:
        key = cast(value, word, signed=False)
        key = key ^ sign if signed else key
    return key ^ ones if descending else key
