"""Reductions: what combines two values, and combining over registers, the lanes of a warp, and warps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from kitsune_mlir.codegen.gpu.emit.control_flow import if_, lane_id, shuffle_xor
from kitsune_mlir.codegen.gpu.emit.memory import byte_count, load, offset, store
from kitsune_mlir.codegen.gpu.emit.value import TypeLike, Value, as_type, constant, element_bits, is_float, maximum, minimum

__all__ = ["KINDS", "Exchange", "combine", "identity", "over_lanes", "over_registers", "over_warps"]

_COMBINE: dict[str, Callable[[Value, Value], Value]] = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "max": maximum,
    "min": minimum,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
}
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
    level = list(values)
    if not level:
        raise ValueError("nothing to reduce")
    while len(level) > 1:
        pairs = [combine(kind, level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        level = pairs + level[len(level) - len(level) % 2 :]
    return level[0]


def over_lanes(kind: str, value: Value, masks: Sequence[int]) -> Value:
    """`value` combined over the lanes that the xor `masks` reach; all of them get the result, bit for bit the same."""
    for mask in masks:
        value = combine(kind, value, shuffle_xor(value, mask))
    return value


@dataclasses.dataclass(frozen=True)
class Exchange:
    """Shared memory through which warps hand values to each other.

    Attributes:
        pointer: scratch, aligned to 16, of the size that the user of it names.
        sync: a barrier over all threads that take part; called before the scratch is read and before it may be reused.
    """

    pointer: Value
    sync: Callable[[], None]


def over_warps(kind: str, values: Sequence[Value], thread: Value, warps: int, exchange: Exchange) -> list[Value]:
    """Each value (equal over the lanes of its warp) combined over groups of `warps` neighbouring warps, for all threads.

    The scratch holds one value per warp and item: len(values) * (number of warps) * bytes of the type.
    """
    size = byte_count(values[0].type)
    items = len(values)
    warp = thread // 32
    group = warp // warps

    def publish() -> None:
        for index, value in enumerate(values):
            place = (group * items + index) * warps + warp % warps
            store(value, offset(exchange.pointer, place * size))

    if_(lane_id(thread) == 0, publish)
    exchange.sync()
    results = []
    for index in range(items):
        start = offset(exchange.pointer, (group * items + index) * (warps * size))
        parts = [load(offset(start, other * size), values[0].type) for other in range(warps)]
        results.append(over_registers(kind, parts))
    exchange.sync()
    return results
