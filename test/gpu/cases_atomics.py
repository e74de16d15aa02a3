"""Tile programs that accumulate into shared places by atomics, of the kinds that hardware has and of those it has not."""

from __future__ import annotations

from test.gpu.tile_text import Case, fill, post, program, semaphore, store, task, wait_all

__all__ = ["ATOMIC_CASES", "scatter_text"]


def scatter_text(update: str, dtype: str, n: int, width: int, loop: str = "parallel") -> str:
    """For each of this tile's `n` elements of %x0: update element %x1[...] of %y0, which has `width`, by %v."""
    head = {
        "parallel": "scf.parallel (%r) = (%lo) to (%count) step (%one) {",
        "for": "scf.for %r = %lo to %count step %one {",
    }[loop]
    return f"""    %lo = arith.constant 0 : index
    %one = arith.constant 1 : index
    %count = arith.constant {n} : index
    %base = arith.muli %i, %count : index
    {head}
      %at = arith.addi %base, %r : index
      %v = memref.load %x0[%at] : memref<4096x{dtype}>
      %j = memref.load %x1[%at] : memref<4096xi64>
      %t = arith.index_cast %j : i64 to index
      {update.replace("Y", f"memref<{width}x{dtype}>").replace("T", dtype)}
    }}
"""


def atomic(name: str, update: str, dtype: str, start: str, reference, loop: str = "parallel", tolerance: float = 1e-5) -> Case:
    """4,096 updates of 61 places from 16 tiles, after one task has written `start` there."""
    width, tiles = 61, 16
    inputs = (((4096,), dtype, "small"), ((4096,), "i64", f"index {width}"))
    results = (((width,), dtype),)
    body = semaphore("s", 1)
    body += task("start", [1], fill("z", start, (width,), dtype) + store("z", "y0", (width,), dtype) + post("s", "i"))
    body += task("update", [tiles], wait_all("s", 1) + scatter_text(update, dtype, 4096 // tiles, width, loop))
    name = f"atomic_{name}_{dtype}"
    return Case(name, program(name, inputs, results, body), inputs, results, reference, tolerance)


def added(torch, x, at):
    return (torch.zeros(61, dtype=torch.float64, device=x.device).index_add(0, at, x.double()),)


def added_whole(torch, x, at):
    return (torch.zeros(61, dtype=x.dtype, device=x.device).index_add(0, at, x),)


def largest(torch, x, at):
    start = torch.full((61,), -100.0, dtype=torch.float64, device=x.device)
    return (start.scatter_reduce(0, at, x.double(), "amax"),)


def signs(torch, x, at):
    """The product of 1 or -1."""
    sign = 1 - 2 * (x.double() < 0).double()
    return (torch.ones(61, dtype=torch.float64, device=x.device).scatter_reduce(0, at, sign, "prod"),)


ADD = "%o = memref.atomic_rmw addf %v, %y0[%t] : (T, Y) -> T"
ADD_INTEGER = ADD.replace("addf", "addi")
GENERIC_ADD = """%o = memref.generic_atomic_rmw %y0[%t] : Y {
      ^bb0(%now: T):
        %n = arith.addf %now, %v : T
        memref.atomic_yield %n : T
      }"""
MAX = "%o = memref.atomic_rmw maximumf %v, %y0[%t] : (T, Y) -> T"
SIGN = """%zero = arith.constant 0.0 : T
      %plus = arith.constant 1.0 : T
      %minus = arith.constant -1.0 : T
      %below = arith.cmpf olt, %v, %zero : T
      %sign = arith.select %below, %minus, %plus : T
      %o = memref.atomic_rmw mulf %sign, %y0[%t] : (T, Y) -> T"""

ATOMIC_CASES = (
    lambda: atomic("add", ADD, "f32", "0.0", added, "for"),
    lambda: atomic("add", ADD, "f64", "0.0", added),
    lambda: atomic("add", ADD, "bf16", "0.0", added, tolerance=5e-2),
    lambda: atomic("add", ADD, "f16", "0.0", added, tolerance=1e-2),
    lambda: atomic("add", ADD_INTEGER, "i64", "0", added_whole),
    lambda: atomic("add", ADD_INTEGER, "i32", "0", added_whole, "for"),
    lambda: atomic("add", ADD_INTEGER, "i8", "0", added_whole),
    lambda: atomic("swap", GENERIC_ADD, "f32", "0.0", added),
    lambda: atomic("swap", GENERIC_ADD, "f16", "0.0", added, "for", 1e-2),
    lambda: atomic("max", MAX, "f32", "-100.0", largest),
    lambda: atomic("max", MAX, "bf16", "-100.0", largest, "for"),
    lambda: atomic("product", SIGN, "f32", "1.0", signs),
)
