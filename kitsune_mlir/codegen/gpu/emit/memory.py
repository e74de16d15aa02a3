"""Pointers, loads, stores, atomics and `cp.async`, as functions on `Value`.

Pointers are `!llvm.ptr<1>` (global memory) and `!llvm.ptr<3>` (shared memory); offsets are bytes. A scalar or vector
is moved by one instruction if it has 1, 2, 4, 8 or 16 bytes and its address is a multiple of that: `align` says what
is known, and the default is the natural alignment of the whole access.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from torch_mlir import ir
from torch_mlir.dialects import llvm, nvvm

from kitsune_mlir.codegen.gpu.emit.inline_ptx import inline_ptx
from kitsune_mlir.codegen.gpu.emit.value import (
    TypeLike,
    Value,
    as_type,
    bitcast,
    constant,
    element_bits,
    i64,
    select,
    unpack,
    vector,
    wrap,
)
from kitsune_mlir.dialects.sizes import HALF_TYPES

__all__ = [
    "GLOBAL",
    "SHARED",
    "Cache",
    "atomic",
    "byte_count",
    "compare_and_swap",
    "copy_async",
    "copy_async_commit",
    "copy_async_wait",
    "load",
    "load_acquire",
    "load_relaxed",
    "offset",
    "prefetch",
    "reduce_add",
    "reduce_extreme",
    "shared_address",
    "store",
    "store_relaxed",
    "store_release",
]

GLOBAL = "!llvm.ptr<1>"
SHARED = "!llvm.ptr<3>"

_DYNAMIC = -(1 << 31)  # the marker of a run-time index in llvm.getelementptr


class Cache(enum.Enum):
    """What to do with a cache line of global memory. The numbers are L2 policies, as `createpolicy` makes them."""

    DEFAULT = 0
    STREAM = 0x12F0000000000000
    """Evict first: read or written once."""
    KEEP = 0x14F0000000000000
    """Evict last: rings and weights that other blocks read again."""


def byte_count(type: TypeLike) -> int:
    """Bytes of a scalar or vector type in memory."""
    type = as_type(type)
    count = type.shape[0] if isinstance(type, ir.VectorType) else 1
    return max(8, element_bits(type)) * count // 8


def offset(pointer: Value, bytes: Value | int) -> Value:
    """`pointer` moved by `bytes`; an i32 offset is signed, so i64 is needed from 2 GiB on."""
    if isinstance(bytes, int):
        if bytes == 0:
            return pointer
        if not -(1 << 31) < bytes < 1 << 31:
            bytes = constant(bytes, "i64")
    zero = ir.IntegerAttr.get(as_type("i32"), 0)
    if isinstance(bytes, int):
        return wrap(llvm.getelementptr(pointer.type, pointer.ir, [], [bytes], as_type("i8"), zero))
    return wrap(llvm.getelementptr(pointer.type, pointer.ir, [bytes.ir], [_DYNAMIC], as_type("i8"), zero))


def shared_address(pointer: Value) -> Value:
    """The 32-bit address of a pointer to shared memory, as inline PTX takes it."""
    return wrap(llvm.ptrtoint(as_type("i32"), pointer.ir))


def _is_global(pointer: Value) -> bool:
    return str(pointer.type) == GLOBAL


def load(
    pointer: Value, type: TypeLike, align: int | None = None, constant: bool = False, cache: Cache = Cache.DEFAULT
) -> Value:
    """Load a scalar or vector.

    Args:
        align: alignment of the address in bytes; default: the size of the access (at most 16).
        constant: nobody writes there while the kernel runs: goes through the read-only cache (`ld.global.nc`).
        cache: only for global memory, on accesses of 4, 8 or 16 bytes.
    """
    type = as_type(type)
    size = byte_count(type)
    if cache is Cache.DEFAULT:
        align = align or _natural(size)
        return wrap(llvm.load(type, pointer.ir, alignment=align, invariant=True if constant else None))
    words = _hinted_words(pointer, size)
    results = ", ".join(f"${index}" for index in range(words))
    code = f"ld.global{'.nc' if constant else ''}.L2::cache_hint{_VECTOR[words]}.b32 {{{results}}}, [${words}], ${words + 1};"
    loaded = inline_ptx(code, [pointer, i64(cache.value)], ["i32"] * words, memory=not constant, pure=constant)
    return bitcast(loaded[0] if words == 1 else vector(loaded), type)


def store(value: Value, pointer: Value, align: int | None = None, cache: Cache = Cache.DEFAULT) -> None:
    """Store a scalar or vector; arguments as in `load`."""
    size = byte_count(value.type)
    if cache is Cache.DEFAULT:
        llvm.store(value.ir, pointer.ir, alignment=align or _natural(size))
        return
    words = _hinted_words(pointer, size)
    stored = [bitcast(value, "i32")] if words == 1 else unpack(bitcast(value, f"vector<{words}xi32>"))
    operands = ", ".join(f"${index + 1}" for index in range(words))
    code = f"st.global.L2::cache_hint{_VECTOR[words]}.b32 [$0], {{{operands}}}, ${words + 1};"
    inline_ptx(code, [pointer, *stored, i64(cache.value)], memory=True)


_VECTOR = {1: "", 2: ".v2", 4: ".v4"}


def _natural(size: int) -> int:
    """The largest power of two that divides `size`, at most 16."""
    return min(16, size & -size)


def _hinted_words(pointer: Value, size: int) -> int:
    if not _is_global(pointer) or size not in (4, 8, 16):
        raise ValueError(f"cache hints need global memory and 4, 8 or 16 bytes, not {size} at {pointer.type}")
    return size // 4


def prefetch(pointer: Value) -> None:
    """Ask for the 32 bytes of global memory around `pointer` to be brought to L2; nothing waits for them."""
    nvvm.prefetch(pointer.ir, cache_level=ir.Attribute.parse("#nvvm<prefetch_cache_level L2>"))


# --- atomics
# -------------------------------------------------------------------------------------------------------------

_PTX_ATOMIC_TYPE = {"i32": "u32", "i64": "u64", "f32": "f32", "f64": "f64"}


def load_acquire(pointer: Value) -> Value:
    """`ld.acquire.gpu` of an i32: what the other side wrote before its release is visible after this."""
    acquire = ir.Attribute.parse("4 : i64")
    return wrap(llvm.load(as_type("i32"), pointer.ir, alignment=4, ordering=acquire, syncscope="device"))


def store_release(value: Value, pointer: Value) -> None:
    """`st.release.gpu`: what this thread wrote or saw before is visible to who acquires this value."""
    release = ir.Attribute.parse("5 : i64")
    llvm.store(value.ir, pointer.ir, alignment=byte_count(value.type), ordering=release, syncscope="device")


def load_relaxed(pointer: Value, bits: int) -> list[Value]:
    """`ld.relaxed.gpu` of 16 bytes, in pieces of 32 or 64 bits: each is as one `store_relaxed` wrote it; four i32."""
    if bits == 32:
        return inline_ptx("ld.relaxed.gpu.global.v4.b32 {$0, $1, $2, $3}, [$4];", [pointer], ["i32"] * 4, memory=True)
    words = inline_ptx("ld.relaxed.gpu.global.v2.b64 {$0, $1}, [$2];", [pointer], ["i64", "i64"], memory=True)
    return [part for word in words for part in unpack(bitcast(word, "vector<2xi32>"))]


def store_relaxed(value: Value, pointer: Value) -> None:
    """`st.relaxed.gpu` of an i32 or i64: who reads it with `load_relaxed` sees all of it or nothing."""
    inline_ptx(f"st.relaxed.gpu.global.b{element_bits(value.type)} [$0], $1;", [pointer, value], memory=True)


def reduce_add(pointer: Value, values: Value | Sequence[Value], release: bool = False) -> None:
    """Add to global memory without reading back (`red.gpu`): one instruction for up to 16 adjacent bytes.

    Args:
        pointer: aligned to the whole access.
        values: one i32, i64, f32 or f64; or 1, 2 or 4 f32; or 1, 2, 4 or 8 bf16 or f16, or as many in a vector value.
        release: order earlier writes of this thread before it (only i32 and i64).

    16-bit floats are added pairwise without flushing denormals; the order of additions, and so the rounding, is not
    fixed.

    Raises:
        ValueError: a number of values, or a type, that no instruction adds.
    """
    items = [values] if isinstance(values, Value) else list(values)
    if len(items) == 1 and isinstance(items[0].type, ir.VectorType):
        items = unpack(items[0])
    name = str(items[0].type)
    order = "release" if release else "relaxed"
    if release and name not in ("i32", "i64"):
        raise ValueError(f"red.release adds integers, not {name}")
    if name in HALF_TYPES:
        if len(items) not in (1, 2, 4, 8):
            raise ValueError(f"a reduction adds 1, 2, 4 or 8 {name}, not {len(items)}")
        if len(items) == 1:
            words, suffix = [bitcast(items[0], "i16")], f"noftz.{name}"
        else:
            words = unpack(bitcast(vector(items), f"vector<{len(items) // 2}xi32>"))
            suffix = f"noftz{_VECTOR[len(words)]}.{name}x2"
    elif name in _PTX_ATOMIC_TYPE and (len(items) == 1 or (name == "f32" and len(items) in (2, 4))):
        words = items
        suffix = f"{_VECTOR[len(words)]}.{_PTX_ATOMIC_TYPE[name]}".lstrip(".")
    else:
        raise ValueError(f"no reduction adds {len(items)} values of {name}")
    operands = ", ".join(f"${index + 1}" for index in range(len(words)))
    braces = operands if len(words) == 1 else f"{{{operands}}}"
    inline_ptx(f"red.{order}.gpu.global.add.{suffix} [$0], {braces};", [pointer, *words], memory=True)


def reduce_extreme(pointer: Value, value: Value, largest: bool, signed: bool = True) -> None:
    """Keep the larger (or smaller) of an i32 or i64 in global memory and `value`, without reading back (`red.gpu`)."""
    kind, sign = "max" if largest else "min", "s" if signed else "u"
    inline_ptx(f"red.relaxed.gpu.global.{kind}.{sign}{element_bits(value.type)} [$0], $1;", [pointer, value], memory=True)


def compare_and_swap(pointer: Value, expected: Value, value: Value) -> Value:
    """`atom.cas.gpu` on global memory: store an i16, i32 or i64 where `expected` is; returns what was there."""
    code = f"atom.relaxed.gpu.global.cas.b{element_bits(value.type)} $0, [$1], $2, $3;"
    return inline_ptx(code, [pointer, expected, value], [value.type], memory=True)[0]


def atomic(kind: str, pointer: Value, value: Value, order: str = "relaxed") -> Value:
    """`atom.gpu` on global memory; returns the value before.

    Args:
        kind: "add" (i32, i64, f32, f64), "max", "min" (signed i32, i64), "and", "or", "xor", "exch" (i32, i64).
        order: "relaxed", "acquire", "release" or "acq_rel".

    Raises:
        ValueError: a kind that does not exist, or not for this type.
    """
    name = str(value.type)
    if kind in ("max", "min"):
        types = {"i32": "s32", "i64": "s64"}
    elif kind in ("and", "or", "xor", "exch"):
        types = {"i32": "b32", "i64": "b64"}
    elif kind == "add":
        types = _PTX_ATOMIC_TYPE
    else:
        raise ValueError(f"no atomic '{kind}'")
    if name not in types:
        raise ValueError(f"no atomic {kind} on {name}")
    code = f"atom.{order}.gpu.global.{kind}.{types[name]} $0, [$1], $2;"
    return inline_ptx(code, [pointer, value], [name], memory=True)[0]


# --- cp.async: copies from global to shared memory that bypass registers
# ---------------------------------------------------


def copy_async(
    target: Value, source: Value, bytes: int = 16, predicate: Value | None = None, read: Value | None = None
) -> None:
    """Start a copy of 4, 8 or 16 bytes from global to shared memory by this thread.

    With a false `predicate` zeros are written, and zeros after the first `read` bytes (i32), of which there may be none.

    Raises:
        ValueError: another number of bytes.
    """
    if bytes not in (4, 8, 16):
        raise ValueError(f"cp.async copies 4, 8 or 16 bytes, not {bytes}")
    level = "cg" if bytes == 16 else "ca"
    operands = [shared_address(target), source]
    if predicate is not None:
        operands.append(select(predicate, constant(bytes, "i32") if read is None else read, 0))
    elif read is not None:
        operands.append(read)
    written = ", $2" if len(operands) > 2 else ""
    inline_ptx(f"cp.async.{level}.shared.global [$0], [$1], {bytes}{written};", operands, memory=True)


def copy_async_commit() -> None:
    """Close the group of this thread's copies started since the last commit."""
    nvvm.cp_async_commit_group()


def copy_async_wait(pending: int) -> None:
    """Wait until at most `pending` of this thread's groups are unfinished."""
    nvvm.cp_async_wait_group(pending)
