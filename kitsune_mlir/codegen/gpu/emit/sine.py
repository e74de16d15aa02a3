"""Sine and cosine of any f32 number without a branch, for results that are rounded to 16 bits.

libdevice's functions branch for every element: large numbers take another way, and no element's work overlaps the next one's.
Here a number m 2^e becomes a part of a turn by one product of integers: a table has 2^e / 2 pi, its whole turns left out,
for every exponent. (After Payne and Hanek, "Radian reduction for trigonometric functions", 1983.) About twenty operations;
errors are below 3e-6 of the value, or 1e-9 where that is more. Infinite numbers give NaN.
"""

from __future__ import annotations

from torch_mlir import ir
from torch_mlir.dialects import llvm

from kitsune_mlir.codegen.gpu.emit.memory import GLOBAL, load, offset
from kitsune_mlir.codegen.gpu.emit.value import Value, as_type, bitcast, cast, constant, fma, select, wrap

__all__ = ["cosine", "sine"]

_SYMBOL = "kitsune_turns"
_INVERSE, _BITS = 0x28BE60DB9391054A7F09D5F47D4D377036D8A5664F10E410, 192
"""1 / 2 pi, times 2^192."""

_SINE = (1.57079485, -0.64592098, 0.07948766, -0.00436247)
"""sin(pi g / 2) is g p(g^2) for -1 <= g <= 1, p with these coefficients of rising powers: fitted for the least largest relative
error, 9.4e-7 (`test_sine.py`)."""

_SIGN, _MANTISSA, _ONE = -(1 << 31), 0x7FFFFF, 0x800000
_QUARTER = 1 << 30
"""Of a turn, which is 2^32."""

_SMALL = 2.0**-8
"""Below that a number is its own sine, to 3e-6."""


def sine(x: Value) -> Value:
    """The sine of an f32 number in radians."""
    bits = bitcast(x, "i32")
    value = bitcast(_sine_of_turn(_turn(bits), x), "i32") ^ (bits & _SIGN)
    return select(bitcast(bits & ~_SIGN, "f32") < _SMALL, x, bitcast(value, "f32"))


def cosine(x: Value) -> Value:
    """The cosine of an f32 number in radians."""
    return _sine_of_turn(_turn(bitcast(x, "i32")) + _QUARTER, x)


def turn_table() -> list[int]:
    """For each exponent of an f32 number, what the lowest bit of its mantissa is in turns, times 2^64, without whole turns."""
    first = _BITS - 64 + 127 + 23
    return [(_INVERSE >> (first - exponent)) % 2**64 for exponent in range(255)] + [0]


def _turn(bits: Value) -> Value:
    """The number's magnitude in turns, times 2^32, without whole turns."""
    mantissa = (bits & _MANTISSA) | _ONE
    entry = load(offset(_table(), ((bits >> 23) & 255) * 8), "i64")
    return cast((cast(mantissa, "i64", signed=False) * entry) >> 32, "i32")


def _sine_of_turn(turn: Value, x: Value) -> Value:
    """The sine of a part of a turn, times 2^32; NaN where x is infinite or NaN."""
    beyond = (turn ^ (turn << 1)) < 0  # more than a quarter from 0
    turn = select(beyond, _SIGN - turn, turn)
    g = cast(turn, "f32") * 2.0**-30
    square = g * g
    *terms, value = (constant(number, "f32") for number in _SINE)
    for number in reversed(terms):
        value = fma(square, value, number)
    return fma(g, value, x * 0.0)


def _table() -> Value:
    """The table's address; it is put into the module that is being written, if it is not there."""
    function = ir.InsertionPoint.current.block.owner
    while not isinstance(function.parent, ir.Operation | ir.OpView) or not function.parent.operation.name.endswith("module"):
        function = function.parent
    module = function.parent.operation.regions[0].blocks[0]
    if not any(_is_table(op.operation) for op in module.operations):
        words = turn_table()
        listed = ", ".join(str(word - 2**64 if word >= 2**63 else word) for word in words)
        text = (
            f"llvm.mlir.global internal constant @{_SYMBOL}(dense<[{listed}]> : tensor<{len(words)}xi64>) "
            f"{{addr_space = 1 : i32, alignment = 128 : i64}} : !llvm.array<{len(words)} x i64>"
        )
        ir.InsertionPoint.at_block_begin(module).insert(ir.Operation.parse(text))
    return wrap(llvm.mlir_addressof(as_type(GLOBAL), _SYMBOL))


def _is_table(op: ir.Operation) -> bool:
    return op.name == "llvm.mlir.global" and ir.StringAttr(op.attributes["sym_name"]).value == _SYMBOL
