"""Reductions: what combines two values, and combining over registers and the lanes of a warp."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from kitsune_mlir.codegen.gpu.emit.control_flow import shuffle_xor
from kitsune_mlir.codegen.gpu.emit.value import TypeLike, Value, as_type, constant, element_bits, is_float, maximum, minimum

__all__ = ["COMBINING", "KINDS", "combine", "identity", "over_lanes", "over_registers", "tree"]

_COMBINE: dict[str, Callable[[Value, Value], Value]] = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "max": maximum,
    "min": minimum,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
}
COMBINING = {
    "arith.addf": "add",
    "arith.addi": "add",
    "arith.mulf": "mul",
    "arith.muli": "mul",
    "arith.maximumf": "max",
    "arith.maxsi": "max",
    "arith.minimumf": "min",
    "arith.minsi": "min",
}
"""The reduction of an operation's name."""
KINDS = tuple(_COMBINE)
"""Names of the reductions. "max" and "min" give NaN if any value is NaN and take integers as signed."""


def combine(kind: str, a: Value, b: Value) -> Value:
    """Two values combined by the reduction `kind`."""
    return _COMBINE[kind](a, b)


def identity(kind: str, type: TypeLike) -> Value:
    """The value that changes nothing."""
    type = as_type(type)
    if is_float(type):
        return constant({"add": 0.0, "mul": 1.0, "max": -math.inf, "min": math.inf}[kind], type)
    bits = element_bits(type)
    lowest, highest = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return constant({"add": 0, "mul": 1, "max": lowest, "min": highest, "and": -1, "or": 0}[kind], type)


def over_registers(kind: str, values: Sequence[Value]) -> Value:
    """All values of one thread combined as a tree: short chains of dependences, errors that grow with the logarithm."""
    return tree(lambda a, b: combine(kind, a, b), values)


def tree(combine: Callable[[Value, Value], Value], values: Sequence[Value]) -> Value:
    """As `over_registers`, by any associative function."""
    level = list(values)
    if not level:
        raise ValueError("nothing to reduce")
    while len(level) > 1:
        pairs = [combine(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        level = pairs + level[len(level) - len(level) % 2 :]
    return level[0]


def over_lanes(kind: str, value: Value, masks: Sequence[int]) -> Value:
    """`value` combined over the lanes that the xor `masks` reach; all of them get the result, bit for bit the same."""
    for mask in masks:
        value = combine(kind, value, shuffle_xor(value, mask))
    return value
