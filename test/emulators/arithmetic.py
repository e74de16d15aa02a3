"""What operations on numbers compute, in lockstep: arrays with one element a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch_mlir import ir

__all__ = ["DTYPES", "quick", "unsigned"]

DTYPES = {
    "f32": np.float32,
    "f64": np.float64,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "i1": np.bool_,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "index": np.int64,
}


def unsigned(x):
    """Integers as unsigned ones of the same bits."""
    return x.view(getattr(np, f"uint{8 * x.dtype.itemsize}")) if x.dtype != np.bool_ else x


def _through_double(function):
    return lambda x: function(torch.from_numpy(np.asarray(x, np.float64))).numpy().astype(x.dtype)


UNARY = {
    f"math.{name}": _through_double(getattr(torch, function))
    for name, function in {
        **{
            n: n for n in ("exp", "log", "sqrt", "rsqrt", "tanh", "erf", "sin", "cos", "atan", "log1p", "expm1", "exp2", "log2")
        },
        **{"absf": "abs", "ceil": "ceil", "floor": "floor", "trunc": "trunc", "roundeven": "round"},
    }.items()
} | {"arith.negf": np.negative}
BINARY: dict[str, Callable] = {
    **{"arith.addf": np.add, "arith.subf": np.subtract, "arith.mulf": np.multiply, "arith.divf": np.divide},
    **{"arith.addi": np.add, "arith.subi": np.subtract, "arith.muli": np.multiply},
    **{"arith.andi": np.bitwise_and, "arith.ori": np.bitwise_or, "arith.xori": np.bitwise_xor, "arith.shli": np.left_shift},
    **{"arith.maximumf": np.maximum, "arith.minimumf": np.minimum, "arith.maxnumf": np.fmax, "arith.minnumf": np.fmin},
    **{"arith.maxsi": np.maximum, "arith.minsi": np.minimum, "arith.floordivsi": np.floor_divide, "arith.remsi": np.fmod},
    "arith.divsi": lambda a, b: np.trunc(a / b).astype(a.dtype),
    "arith.divui": lambda a, b: (unsigned(a) // unsigned(b)).view(a.dtype),
    "arith.remui": lambda a, b: (unsigned(a) % unsigned(b)).view(a.dtype),
    "arith.minui": lambda a, b: np.minimum(unsigned(a), unsigned(b)).view(a.dtype),
    **{"arith.remf": np.fmod, "arith.shrsi": np.right_shift, "math.copysign": np.copysign, "math.atan2": np.arctan2},
    "arith.shrui": lambda a, b: (unsigned(a) >> unsigned(b)).view(a.dtype),
    "arith.maxui": lambda a, b: np.maximum(unsigned(a), unsigned(b)).view(a.dtype),
    "arith.ceildivsi": lambda a, b: -(-a // b),
    "math.powf": lambda a, b: np.power(a.astype(np.float64), b.astype(np.float64)).astype(a.dtype),
}
COMPARE_INT = ["eq", "ne", "lt", "le", "gt", "ge", "ult", "ule", "ugt", "uge"]
COMPARE_FLOAT = [None, "eq", "gt", "ge", "lt", "le", "one", "ord", "ueq", "ugt", "uge", "ult", "ule", "ne"]
OPERATORS = {
    **{"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal},
    **{"gt": np.greater, "ge": np.greater_equal},
}
CASTS = {"arith." + n for n in ("extf", "truncf", "extsi", "trunci", "sitofp", "fptosi", "index_cast")}
UNSIGNED_CASTS = ("arith.extui", "arith.index_castui", "arith.uitofp")


def quick(op: Any) -> Callable[..., np.ndarray] | None:
    """What an operation on numbers does for all threads at once, given how many there are and its operands.

    None of operations of another kind, and of vectors and pointers.
    """
    name, dtype = op.name, op.dtype
    if dtype is None:
        return None
    if name == "arith.constant":
        return _constant(op.attributes["value"], dtype)
    if name in UNARY:
        function = UNARY[name]
        return lambda threads, x: function(x)
    if name in BINARY:
        function = BINARY[name]
        return lambda threads, a, b: np.asarray(function(a, b)).astype(dtype, copy=False)
    if name in CASTS:
        return lambda threads, x: x.astype(dtype)
    if name in UNSIGNED_CASTS:
        return lambda threads, x: unsigned(x).astype(dtype)
    if name == "arith.select":
        return lambda threads, which, a, b: np.where(which, a, b).astype(dtype, copy=False)
    if name == "arith.cmpi":
        return _compare_int(COMPARE_INT[ir.IntegerAttr(op.attributes["predicate"]).value])
    if name == "arith.cmpf":
        return _compare_float(COMPARE_FLOAT[ir.IntegerAttr(op.attributes["predicate"]).value])
    return None


def _constant(attribute: ir.Attribute, dtype: type) -> Callable[[int], np.ndarray]:
    number = ir.FloatAttr(attribute).value if isinstance(attribute, ir.FloatAttr) else _integer(attribute)
    made: dict[int, np.ndarray] = {}

    def constant(threads: int) -> np.ndarray:
        if threads not in made:
            made[threads] = np.full(threads, number).astype(dtype)
            made[threads].flags.writeable = False  # all executions share it
        return made[threads]

    return constant


def _integer(attribute):
    return ir.BoolAttr(attribute).value if str(attribute) in ("true", "false") else ir.IntegerAttr(attribute).value


def _compare_int(predicate: str) -> Callable[..., np.ndarray]:
    if predicate.startswith("u"):
        function = OPERATORS[predicate[1:]]
        return lambda threads, a, b: function(unsigned(a), unsigned(b))
    function = OPERATORS[predicate]
    return lambda threads, a, b: function(a, b)


def _compare_float(predicate: str | None) -> Callable[..., np.ndarray]:
    if predicate in OPERATORS:
        function = OPERATORS[predicate]
        return lambda threads, a, b: function(a, b)

    def unordered(threads: int, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        nan = np.isnan(a) | np.isnan(b)
        if predicate == "ord":
            return ~nan
        if predicate == "one":
            return ~nan & (a != b)
        return nan | OPERATORS[predicate[1:]](a, b)

    return unordered
