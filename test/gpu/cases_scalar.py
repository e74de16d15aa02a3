"""Cases of one element per thread: math functions, conversions, integers, atomics, shuffles, cp.async, semaphores."""

from __future__ import annotations

from torch_mlir.dialects import arith, math

from kitsune_mlir.codegen.gpu.emit.control_flow import (
    ballot,
    block_id,
    if_,
    lane_id,
    shuffle,
    shuffle_xor,
    sync_block,
    thread_id,
)
from kitsune_mlir.codegen.gpu.emit.memory import (
    Cache,
    atomic,
    copy_async,
    copy_async_commit,
    copy_async_wait,
    load,
    offset,
    reduce_add,
    store,
)
from kitsune_mlir.codegen.gpu.emit.value import cast, constant, fma, i32, i64, maximum, minimum, select, unpack, vector, wrap
from kitsune_mlir.codegen.gpu.emit.vectors import load_elements, store_elements
from kitsune_mlir.codegen.gpu.interface.semaphores import post, wait_at_least
from kitsune_mlir.codegen.gpu.kernel.kernel import Kernel
from kitsune_mlir.codegen.gpu.sm90.tensor_map import ELEMENT_BYTES
from test.gpu.case import Case, finish, register, tensor
from test.gpu.kit.watchdog import Watchdog

COUNT = 4096
UNARY = {
    "exp": (-80, 80), "exp2": (-120, 120), "log": (1e-6, 1e6), "log2": (1e-6, 1e6), "log10": (1e-6, 1e6), "log1p": (-0.9, 1e4),
    "expm1": (-5, 20), "tanh": (-10, 10), "erf": (-4, 4), "sin": (-1000, 1000), "cos": (-1000, 1000), "tan": (-1.5, 1.5),
    "rsqrt": (1e-6, 1e6), "sqrt": (0, 1e6), "cbrt": (-1e3, 1e3), "atan": (-100, 100), "asin": (-1, 1), "acos": (-1, 1),
    "sinh": (-20, 20), "cosh": (-20, 20), "asinh": (-1e3, 1e3), "acosh": (1, 1e3), "atanh": (-0.99, 0.99), "erfc": (-3, 3),
    "ceil": (-100, 100), "floor": (-100, 100), "roundeven": (-100, 100), "round": (-100, 100), "trunc": (-100, 100),
    "absf": (-10, 10),
}  # fmt: skip
BINARY = {"powf": (0.1, 20), "atan2": (-5, 5), "remf": (-50, 50), "divf": (-50, 50), "copysign": (-5, 5)}


def elementwise(functions: dict, dtype: str, inputs: int, count: int = COUNT) -> Kernel:
    """out[f, i] = function f (x[f, i], ...), for a kernel of count/256 blocks of 256."""
    size = ELEMENT_BYTES[dtype]
    kernel = Kernel("elementwise", ["pointer"] * (inputs + 1), threads=256)
    with kernel.body() as pointers:
        index = block_id() * 256 + thread_id()
        for position, function in enumerate(functions.values()):
            at = (index + position * count) * size
            values = [load_elements(offset(pointer, at), dtype, 1)[0] for pointer in pointers[:inputs]]
            store_elements([cast(function(*values), dtype)], offset(pointers[-1], at), dtype)
    return kernel


def math_case(dtype: str, fastmath: str = "contract") -> Case:
    functions = {name: (lambda x, name=name: wrap(getattr(math, name)(x.ir))) for name in UNARY}
    kernel = elementwise(functions, dtype, 1)
    shape = [len(functions), COUNT]
    ranges = [UNARY[name] for name in functions]
    tensors = [tensor("X", dtype, shape, "ranges"), tensor("Y", dtype, shape, "nan")]
    tensors[0]["ranges"] = ranges
    return finish(kernel, tensors, "math", COUNT // 256, fastmath, functions=list(functions), fast="afn" in fastmath)


def binary_case(dtype: str) -> Case:
    functions = {
        name: (lambda x, y, name=name: wrap(getattr(math, name)(x.ir, y.ir))) for name in ("powf", "atan2", "copysign")
    }
    functions |= {name: (lambda x, y, name=name: wrap(getattr(arith, name)(x.ir, y.ir))) for name in ("remf", "divf")}
    kernel = elementwise(functions, dtype, 2)
    shape = [len(functions), COUNT]
    tensors = [tensor("X", dtype, shape, "ranges"), tensor("X2", dtype, shape, "ranges"), tensor("Y", dtype, shape, "nan")]
    tensors[0]["ranges"] = tensors[1]["ranges"] = [BINARY[name] for name in functions]
    return finish(kernel, tensors, "math", COUNT // 256, functions=list(functions), fast=False)


def integers(dtype: str) -> Case:
    functions = {
        "add": lambda a, b: a + b,
        "mul": lambda a, b: a * b,
        "div": lambda a, b: a.divide_signed(b),
        "rem": lambda a, b: a.remainder_signed(b),
        "floordiv": lambda a, b: wrap(arith.floordivsi(a.ir, b.ir)),
        "max": maximum,
        "min": minimum,
        "xor": lambda a, b: a ^ b,
        "shift": lambda a, b: a.shift_right_signed(b & 7),
        "less": lambda a, b: select(a < b, a, b * 2),
    }
    kernel = elementwise(functions, dtype, 2)
    shape = [len(functions), COUNT]
    tensors = [tensor("X", dtype, shape, "big"), tensor("X2", dtype, shape, "nonzero"), tensor("Y", dtype, shape, "zeros")]
    return finish(kernel, tensors, "integers", COUNT // 256, functions=list(functions))


def conversions() -> Case:
    """f32 to every type and back; the result is the f32 after the round trip."""
    types = ["bf16", "f16", "f64", "i32", "i64", "i16", "i8"]
    kernel = elementwise({name: (lambda x, name=name: cast(cast(x, name), "f32")) for name in types}, "f32", 1)
    shape = [len(types), COUNT]
    tensors = [tensor("X", "f32", shape, "ranges"), tensor("Y", "f32", shape, "nan")]
    tensors[0]["ranges"] = [(-100, 100)] * len(types)
    return finish(kernel, tensors, "conversions", COUNT // 256, types=types)


def arithmetic(dtype: str) -> Case:
    """+ - * / fma max min of 16-bit and 64-bit floats in their own type."""
    functions = {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "div": lambda a, b: a / b,
        "max": maximum,
        "min": minimum,
        "less": lambda a, b: select(a < b, a, b),
        "fma": lambda a, b: fma(a, b, a),
    }
    kernel = elementwise(functions, dtype, 2)
    shape = [len(functions), COUNT]
    tensors = [tensor("X", dtype, shape, "normal"), tensor("X2", dtype, shape, "normal"), tensor("Y", dtype, shape, "nan")]
    return finish(kernel, tensors, "arithmetic", COUNT // 256, fastmath="", functions=list(functions))


def atomics() -> Case:
    """Every atomic, by 8 blocks of 128 threads on the same places."""
    kernel = Kernel("atomics", ["pointer"] * 8, threads=128)
    with kernel.body() as (f32s, f64s, bf16s, f16s, i32s, i64s, misc, seen):
        thread = thread_id()
        one = constant(1.0, "f32")
        reduce_add(f32s, one)
        reduce_add(offset(f32s, 8), [one, one])
        reduce_add(offset(f32s, 16), [one, one, one, one])
        reduce_add(f64s, constant(1.0, "f64"))
        for pointer, dtype in ((bf16s, "bf16"), (f16s, "f16")):
            small = select(thread == 0, constant(1.0, dtype), 0.0)
            reduce_add(pointer, [small] * 2)
            reduce_add(offset(pointer, 8), [small] * 4)
            reduce_add(offset(pointer, 16), vector([small] * 8))
        reduce_add(i32s, i32(1))
        reduce_add(offset(i32s, 4), i32(-1), release=True)
        reduce_add(i64s, constant(1 << 40, "i64"))
        index = block_id() * 128 + thread
        for position, kind in enumerate(("max", "min", "or", "xor", "and")):
            atomic(kind, offset(misc, 4 * position), index, "acq_rel")
        old = atomic("add", offset(misc, 20), i32(1))
        store(i32(1), offset(seen, old * 4))
        atomic("add", offset(misc, 24), one)
        atomic("exch", offset(misc, 28), index)
    tensors = [
        tensor("f32", "f32", [8]), tensor("f64", "f64", [1]), tensor("bf16", "bf16", [16]), tensor("f16", "f16", [16]),
        tensor("i32", "i32", [2]), tensor("i64", "i64", [1]), tensor("misc", "i32", [8], [0, 5000, 0, 0, -1, 0, 0, -1]),
        tensor("seen", "i32", [1024]),
    ]  # fmt: skip
    return finish(kernel, tensors, "atomics", blocks=8)


def lanes() -> Case:
    """Shuffles of 16, 32 and 64 bits, ballot, cp.async with a predicate, cache hints."""
    kernel = Kernel("lanes", ["pointer"] * 3, threads=128)
    staging = kernel.arena.take("staging", 128 * 16, 16)
    with kernel.body() as (x, copies, out):
        thread = thread_id()
        value = load_elements(offset(x, thread * 4), "f32", 1)[0]
        results = [
            shuffle_xor(value, 5),
            cast(shuffle_xor(cast(value, "f64"), 3), "f32"),
            cast(shuffle_xor(cast(value, "bf16"), 16), "f32"),
            shuffle(value, (lane_id() + 1) & 31),
            cast(cast(ballot(value > 0.0), "i64", signed=False), "f32"),
        ]
        for position, result in enumerate(results):
            store_elements([result], offset(out, (thread + 128 * position) * 4))
        place = offset(kernel.shared(staging), thread * 16)
        copy_async(place, offset(x, i64(thread // 4 * 16)), 16, thread < 64)
        copy_async_commit()
        copy_async_wait(0)
        loaded = load(place, "vector<4xf32>")
        store(loaded, offset(copies, thread * 16), cache=Cache.STREAM)
        sync_block()
        again = load(offset(copies, thread * 16), "vector<4xf32>", cache=Cache.KEEP)
        total = sum(unpack(again), constant(0.0, "f32"))
        store_elements([total], offset(out, (thread + 128 * len(results)) * 4))
    tensors = [tensor("X", "f32", [128], "ints"), tensor("copies", "f32", [128, 4], "nan"), tensor("Y", "f32", [6, 128], "nan")]
    return finish(kernel, tensors, "lanes")


def relay(bounded: bool) -> Case:
    """A chain through all blocks: block b waits for b tickets, adds its number to what block b - 1 wrote, posts."""
    kernel = Kernel("relay", ["pointer"] * 3, threads=128)
    with kernel.body() as (semaphore, data, record):
        thread, block = thread_id(), block_id()
        watchdog = Watchdog(record, 5_000_000_000, task=block)
        if_(thread == 0, lambda: watchdog.wait_at_least(semaphore, block, 3) if bounded else wait_at_least(semaphore, block))
        sync_block()
        at = offset(data, (block * 128 + thread) * 4)
        before = load_elements(at, "i32", 1)[0]
        store(before + block, offset(at, 512))
        sync_block()
        if_(thread == 0, lambda: post(semaphore))
    tensors = [tensor("semaphore", "i32", [32]), tensor("data", "i32", [65 * 128]), tensor("record", "i32", [6])]
    return finish(kernel, tensors, "relay", blocks=64)


def starve() -> Case:
    """A wait that nobody answers: the watchdog must record it and stop the kernel."""
    kernel = Kernel("starve", ["pointer"] * 2, threads=32)
    with kernel.body() as (semaphore, record):
        watchdog = Watchdog(record, 20_000_000, task=7)
        if_(thread_id() == 0, lambda: watchdog.wait_at_least(semaphore, 5, 2))
    tensors = [tensor("semaphore", "i32", [32]), tensor("record", "i32", [6], "host")]
    return finish(kernel, tensors, "starve", record=[1, 0, 7, 2, 5, 0])


for dtype in ("f32", "f64", "bf16", "f16"):
    register(f"math_{dtype}", lambda dtype=dtype: math_case(dtype))
    register(f"arithmetic_{dtype}", lambda dtype=dtype: arithmetic(dtype))
register("math_f32_fast", lambda: math_case("f32", "contract,afn,arcp"))
for dtype in ("f32", "f64"):
    register(f"binary_{dtype}", lambda dtype=dtype: binary_case(dtype))
for dtype in ("i32", "i64"):
    register(f"integers_{dtype}", lambda dtype=dtype: integers(dtype))
register("conversions", conversions)
register("atomics", atomics)
register("lanes", lanes)
register("relay", lambda: relay(False))
register("relay_bounded", lambda: relay(True))
register("starve", starve)
