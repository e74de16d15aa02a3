"""Replaces math operations on f32 (scalars and vectors) by inline arithmetic; what is left goes to LLVM's intrinsics and libm.

A call into libm computes one number at a time; inline code works on all lanes and lets LLVM vectorise plain loops. In f64 only
e^x - 1 is replaced, of which upstream's lowering has no digits near 0.
"""

from __future__ import annotations

from collections.abc import Callable

from torch_mlir import ir

from kitsune_mlir.codegen.host import math_exp, math_pow, math_trig
from kitsune_mlir.codegen.host.number import Number
from kitsune_mlir.dialects.verify import operations_named

__all__ = ["expand_math"]

_UNARY: dict[str, Callable[[Number], Number]] = {
    "math.exp": math_exp.exp,
    "math.exp2": math_exp.exp2,
    "math.expm1": math_exp.expm1,
    "math.log": math_exp.log,
    "math.log2": math_exp.log2,
    "math.log10": math_exp.log10,
    "math.log1p": math_exp.log1p,
    "math.tanh": math_exp.tanh,
    "math.erf": math_exp.erf,
    "math.atan": math_trig.atan,
}
_REDUCED: dict[str, Callable[[Number, math_trig.Libm], Number]] = {
    "math.sin": math_trig.sin,
    "math.cos": math_trig.cos,
    "math.tan": math_trig.tan,
}
_OTHERS = ("math.fpowi", "math.powf", "math.rsqrt", "math.atan2")


def expand_math(root: ir.Operation) -> None:
    """Expand every operation under `root` that has inline code."""
    for op in operations_named(root, *_UNARY, *_REDUCED, *_OTHERS):
        with ir.InsertionPoint(op), op.location:
            result = _expansion(op)
        if result is not None:
            op.results[0].replace_all_uses_with(result.value)
            op.erase()


def _expansion(op: ir.Operation) -> Number | None:
    x = Number(op.operands[0])
    if op.name == "math.fpowi":
        exponent = _constant(op.operands[1])
        return None if exponent is None else math_pow.power_constant(x, exponent)
    if op.name == "math.powf":
        exponent = _constant(op.operands[1])
        quick = None if exponent is None else math_pow.power_constant(x, exponent)
        if quick is not None:
            return quick
    if op.name == "math.rsqrt":
        return 1.0 / Number(ir.Operation.create("math.sqrt", [x.value.type], [x.value]).results[0])
    if op.name == "math.expm1" and isinstance(x.element, ir.F64Type):
        return math_exp.expm1_of_double(x)
    if not isinstance(x.element, ir.F32Type):
        return None
    if op.name in _UNARY:
        return _UNARY[op.name](x)
    if op.name in _REDUCED:
        return _REDUCED[op.name](x, lambda value: ir.Operation.create(op.name, [value.type], [value]).results[0])
    if op.name == "math.powf":
        return math_pow.power(x, Number(op.operands[1]))
    if op.name == "math.atan2":
        return math_trig.atan2(x, Number(op.operands[1]))
    return None


def _constant(value: ir.Value) -> float | None:
    """The number of a constant (of all lanes, in a vector), or None."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return None
    if owner.operation.name == "vector.broadcast":
        return _constant(owner.operation.operands[0])
    if owner.operation.name != "arith.constant":
        return None
    attribute = owner.operation.attributes["value"]
    if isinstance(attribute, ir.DenseElementsAttr):
        if not attribute.is_splat:
            return None
        attribute = attribute.get_splat_value()
    if not isinstance(attribute, (ir.FloatAttr, ir.IntegerAttr)):
        return None
    number = float(attribute.value)
    return number if abs(number) < 1e9 else None
