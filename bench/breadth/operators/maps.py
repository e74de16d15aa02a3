"""Operators on single elements: of one, two and three tensors, with broadcasting; comparisons, bits, integers, conversions."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from bench.breadth.operators.table import FLOATS, flags, numbers, positive, table
from bench.case import BenchCase

__all__ = ["maps"]

LARGE, SMALL = (8192, 4096), (63, 129)


def _of_one() -> list[BenchCase]:
    plain = {
        "abs": torch.abs,
        "exp": torch.exp,
        "sin": torch.sin,
        "cos": torch.cos,
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "erf": torch.erf,
        "expm1": torch.expm1,
        "atan": torch.atan,
        "sinh": torch.sinh,
        "round": torch.round,
        "sign": torch.sign,
        "square": torch.square,
        "relu": F.relu,
        "gelu": F.gelu,
        "silu": F.silu,
        "mish": F.mish,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "softplus": F.softplus,
        "elu": F.elu,
        "selu": F.selu,
        "celu": F.celu,
        "hardswish": F.hardswish,
        "leaky_relu": F.leaky_relu,
        "logsigmoid": F.logsigmoid,
        "hardshrink": F.hardshrink,
        "tanhshrink": F.tanhshrink,
        "clamp": lambda x: x.clamp(-0.5, 0.75),
        "cube": lambda x: x**3,
        "nan_to_num": torch.nan_to_num,
        "trunc": torch.trunc,
    }
    of_positive = {
        "log": torch.log,
        "sqrt": torch.sqrt,
        "rsqrt": torch.rsqrt,
        "log1p": torch.log1p,
        "log2": torch.log2,
        "reciprocal": torch.reciprocal,
        "power": lambda x: x**1.7,
    }
    return [*table("map", plain, LARGE, SMALL), *table("map", of_positive, [positive(*LARGE)], [positive(*SMALL)])]


def _of_several() -> list[BenchCase]:
    two = {
        "add": torch.add,
        "mul": torch.mul,
        "maximum": torch.maximum,
        "atan2": torch.atan2,
        "hypot": torch.hypot,
        "copysign": torch.copysign,
        "greater": torch.gt,
        "equal": torch.eq,
        "isclose": torch.isclose,
        "lerp_scalar": lambda x, y: torch.lerp(x, y, 0.3),
        "swiglu": lambda x, y: F.silu(x) * y,
    }
    divided = {
        "div": torch.div,
        "remainder": torch.remainder,
        "fmod": torch.fmod,
        "floor_divide": torch.floor_divide,
        "pow": lambda x, y: x.abs() ** y,
    }
    three = {
        "addcmul": torch.addcmul,
        "lerp": torch.lerp,
        "clamp_tensors": lambda x, a, b: torch.clamp(x, a.abs() - 1, b.abs()),
    }
    rows = {"add_row": torch.add, "prelu": lambda x, w: F.prelu(x, w)}
    columns = {"mul_column": torch.mul}
    outer = {"add_outer": torch.add}
    return [
        *table("map", two, [LARGE] * 2, [SMALL] * 2),
        *table("map", divided, [LARGE, positive(*LARGE)], [SMALL, positive(*SMALL)]),
        *table("map", three, [LARGE] * 3, [SMALL] * 3),
        *table("map", rows, [LARGE, LARGE[1:]], [SMALL, SMALL[1:]]),
        *table("map", columns, [LARGE, (LARGE[0], 1)], [SMALL, (SMALL[0], 1)]),
        *table("map", outer, [(LARGE[0], 1), (1, LARGE[1])], [(SMALL[0], 1), (1, SMALL[1])]),
        *table("map", {"where": torch.where}, [flags(*LARGE), LARGE, LARGE], [flags(*SMALL), SMALL, SMALL]),
        *table(
            "map",
            {"masked_fill": lambda x, mask: x.masked_fill(mask, -1.0)},
            [LARGE, flags(*LARGE)],
            [SMALL, flags(*SMALL)],
        ),
    ]


def _of_integers() -> list[BenchCase]:
    two = {
        "add": torch.add,
        "mul": torch.mul,
        "and": torch.bitwise_and,
        "xor": torch.bitwise_xor,
        "less": torch.lt,
        "maximum": torch.maximum,
        "shift": lambda x, y: (x << 3) | (y >> 2),
        "floor_divide": lambda x, y: x // (y + 1),
        "remainder": lambda x, y: x % (y + 1),
    }
    found = []
    for kind, dtype in (("i64", torch.int64), ("i32", torch.int32)):
        large, small = ([numbers(1000, *shape, dtype=dtype)] * 2 for shape in (LARGE, SMALL))
        found += table(f"map_{kind}", two, large, small, ["f32"])
    logic = {"logical_and": torch.logical_and, "xor": torch.logical_xor, "not_or": lambda a, b: ~(a | b)}
    return [*found, *table("map_bool", logic, [flags(*LARGE)] * 2, [flags(*SMALL)] * 2, ["f32"])]


def _conversions() -> list[BenchCase]:
    found = table("to", {"i32": lambda x: (8 * x).int(), "bool": lambda x: x > 0, "i64": lambda x: x.long()}, LARGE, SMALL)
    found += table("to", {"bf16_from_f32": lambda x: x.bfloat16()}, LARGE, SMALL, ["f32"])
    found += table("to", {"f32_from_bf16": lambda x: x.float()}, LARGE, SMALL, ["bf16"])
    return found + table("to", {"f32_from_i64": lambda x: x.float()}, [numbers(99, *LARGE)], [numbers(99, *SMALL)], FLOATS[1:])


def maps() -> list[BenchCase]:
    """All of them."""
    return [*_of_one(), *_of_several(), *_of_integers(), *_conversions()]
