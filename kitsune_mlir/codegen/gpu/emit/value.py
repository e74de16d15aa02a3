"""Typed expressions over the MLIR bindings: `Value` gives an SSA value Python's operators.

Integers are MLIR's signless ones. Indices on the GPU are not negative, and unsigned division by a constant is
cheaper, so `//`, `%` and `>>` are **unsigned**; comparisons (`<`, `<=`, ...) are **signed**. The other meaning has a
name of its own: `divide_signed`, `remainder_signed`, `shift_right_signed`, `below` (unsigned `<`).

Everything works on vectors of the same element types too. Floating-point operations carry no fastmath flags here:
`to_llvm.finalize` sets those of a whole module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch_mlir import ir
from torch_mlir.dialects import arith, llvm, math
from torch_mlir.dialects import vector as vector_dialect

__all__ = [
    "Scalar",
    "TypeLike",
    "Value",
    "as_type",
    "as_value",
    "bitcast",
    "cast",
    "constant",
    "element_bits",
    "f32",
    "fma",
    "i1",
    "i16",
    "i32",
    "i64",
    "is_float",
    "maximum",
    "minimum",
    "pack",
    "select",
    "undefined",
    "unpack",
    "vector",
    "wrap",
]

Scalar = int | float | bool
TypeLike = str | ir.Type

_BITS = {ir.BF16Type: 16, ir.F16Type: 16, ir.F32Type: 32, ir.F64Type: 64}
_GETTERS: dict[str, Callable[[], ir.Type]] = {
    "f32": ir.F32Type.get,
    "f64": ir.F64Type.get,
    "bf16": ir.BF16Type.get,
    "f16": ir.F16Type.get,
    **{f"i{bits}": (lambda bits=bits: ir.IntegerType.get_signless(bits)) for bits in (1, 8, 16, 32, 64)},
}


def as_type(type: TypeLike) -> ir.Type:
    """The MLIR type that `type` names ("f32", "vector<4xf32>", "!llvm.ptr<3>", ...), or `type` itself."""
    if isinstance(type, str):
        return _GETTERS[type]() if type in _GETTERS else ir.Type.parse(type)
    return type


class Value:
    """An SSA value with operators; build one with `wrap`, `constant`, `i32`, ...

    The operators accept Python numbers.
    """

    __slots__ = ("ir",)
    __hash__ = None  # type: ignore[assignment]  # `==` makes a comparison operation

    def __init__(self, value: ir.Value):
        self.ir = value

    @property
    def type(self) -> ir.Type:
        return self.ir.type

    def __repr__(self) -> str:
        return f"Value({self.ir})"

    def __bool__(self) -> bool:
        raise TypeError("a Value is only known when the kernel runs: use select or if_")

    def _apply(self, other: Value | Scalar, integer: str | None, floating: str | None) -> Value:
        type = self.ir.type
        operation = floating if is_float(type) else integer
        if operation is None:
            raise TypeError(f"no such operation on {type}")
        return _operation(operation, type, [self.ir, other.ir if isinstance(other, Value) else constant(other, type).ir])

    def __add__(self, other: Value | Scalar) -> Value:
        if isinstance(other, int) and other == 0 and not is_float(self.type):
            return self
        return self._apply(other, "arith.addi", "arith.addf")

    def __sub__(self, other: Value | Scalar) -> Value:
        return self._apply(other, "arith.subi", "arith.subf")

    def __rsub__(self, other: Scalar) -> Value:
        return constant(other, self.type) - self

    def __mul__(self, other: Value | Scalar) -> Value:
        return self._apply(other, "arith.muli", "arith.mulf")

    __radd__ = __add__
    __rmul__ = __mul__

    def __truediv__(self, other: Value | Scalar) -> Value:
        return self._apply(other, None, "arith.divf")

    def __rtruediv__(self, other: Scalar) -> Value:
        return constant(other, self.type) / self

    def __neg__(self) -> Value:
        return wrap(arith.negf(self.ir)) if is_float(self.type) else 0 - self

    def __floordiv__(self, other: Value | Scalar) -> Value:
        """Unsigned division."""
        return self._apply(other, "arith.divui", None)

    def __mod__(self, other: Value | Scalar) -> Value:
        """Unsigned remainder."""
        return self._apply(other, "arith.remui", None)

    def divide_signed(self, other: Value | Scalar) -> Value:
        """Division rounding towards zero."""
        return self._apply(other, "arith.divsi", None)

    def remainder_signed(self, other: Value | Scalar) -> Value:
        return self._apply(other, "arith.remsi", None)

    def __and__(self, other: Value | Scalar) -> Value:
        return self._apply(other, "arith.andi", None)

    def __or__(self, other: Value | Scalar) -> Value:
        return self._apply(other, "arith.ori", None)

    def __xor__(self, other: Value | Scalar) -> Value:
        return self._apply(other, "arith.xori", None)

    __rand__ = __and__
    __ror__ = __or__
    __rxor__ = __xor__

    def __invert__(self) -> Value:
        return self ^ -1

    def __lshift__(self, other: Value | Scalar) -> Value:
        return self._apply(other, "arith.shli", None)

    def __rshift__(self, other: Value | Scalar) -> Value:
        """Shift that fills with zeros."""
        return self._apply(other, "arith.shrui", None)

    def shift_right_signed(self, other: Value | Scalar) -> Value:
        return self._apply(other, "arith.shrsi", None)

    def _compare(self, other: Value | Scalar, integer: arith.CmpIPredicate, floating: arith.CmpFPredicate) -> Value:
        type = self.ir.type
        operation, predicate = ("arith.cmpf", floating) if is_float(type) else ("arith.cmpi", integer)
        bit: ir.Type = ir.IntegerType.get_signless(1)
        if isinstance(type, ir.VectorType):
            bit = ir.VectorType.get(type.shape, bit)
        attribute = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), predicate)
        operands = [self.ir, other.ir if isinstance(other, Value) else constant(other, type).ir]
        return _operation(operation, bit, operands, {"predicate": attribute})

    def __eq__(self, other: Value | Scalar) -> Value:  # type: ignore[override]
        return self._compare(other, arith.CmpIPredicate.eq, arith.CmpFPredicate.OEQ)

    def __ne__(self, other: Value | Scalar) -> Value:  # type: ignore[override]
        return self._compare(other, arith.CmpIPredicate.ne, arith.CmpFPredicate.UNE)

    def __lt__(self, other: Value | Scalar) -> Value:
        return self._compare(other, arith.CmpIPredicate.slt, arith.CmpFPredicate.OLT)

    def __le__(self, other: Value | Scalar) -> Value:
        return self._compare(other, arith.CmpIPredicate.sle, arith.CmpFPredicate.OLE)

    def __gt__(self, other: Value | Scalar) -> Value:
        return self._compare(other, arith.CmpIPredicate.sgt, arith.CmpFPredicate.OGT)

    def __ge__(self, other: Value | Scalar) -> Value:
        return self._compare(other, arith.CmpIPredicate.sge, arith.CmpFPredicate.OGE)

    def below(self, other: Value | Scalar) -> Value:
        """Unsigned `<` (one comparison for 0 <= self < other)."""
        return self._compare(other, arith.CmpIPredicate.ult, arith.CmpFPredicate.OLT)


def wrap(value) -> Value:
    """A `Value` from an `ir.Value`, an operation with one result, or a `Value`."""
    if isinstance(value, Value):
        return value
    return Value(value.result if hasattr(value, "result") else value)


def constant(value: Scalar, type: TypeLike) -> Value:
    """A constant of scalar or vector `type` (all elements equal)."""
    type = as_type(type)
    if isinstance(type, ir.VectorType):
        attribute = ir.DenseElementsAttr.get_splat(type, _attribute(value, type.element_type))
    else:
        attribute = _attribute(value, type)
    return _operation("arith.constant", type, [], {"value": attribute})


def _operation(
    name: str, type: ir.Type, operands: Sequence[ir.Value], attributes: Mapping[str, ir.Attribute] | None = None
) -> Value:
    """Emit an operation with one result. The bindings' own classes take four times as long, and kernels have thousands."""
    return Value(ir.Operation.create(name, [type], operands, attributes).result)


def _attribute(value: Scalar, type: ir.Type) -> ir.Attribute:
    if is_float(type):
        return ir.FloatAttr.get(type, float(value))
    bits = element_bits(type)
    value = int(value)
    if not -(1 << (bits - 1)) <= value < 1 << bits:
        raise OverflowError(f"{value} does not fit {type}")
    # IntegerAttr takes the value as signed: map the upper half of the unsigned range onto the negative numbers.
    if bits > 1 and value >= 1 << (bits - 1):
        value -= 1 << bits
    return ir.IntegerAttr.get(type, value)


def as_value(value: Value | Scalar, type: TypeLike) -> Value:
    """`value` itself if it is a `Value`, else a constant of `type`."""
    return value if isinstance(value, Value) else constant(value, type)


def i1(value: Value | bool) -> Value:
    return as_value(value, "i1")


def i16(value: Value | int) -> Value:
    return as_value(value, "i16")


def i32(value: Value | int) -> Value:
    return as_value(value, "i32")


def i64(value: Value | int) -> Value:
    """`value` as i64; an i32 value is zero-extended."""
    value = as_value(value, "i64")
    return value if element_bits(value.type) == 64 else cast(value, "i64", signed=False)


def f32(value: Value | Scalar) -> Value:
    return as_value(value, "f32")


def undefined(type: TypeLike) -> Value:
    """A value with any bits: the start of accumulators that are overwritten, and of vectors that are filled."""
    return wrap(llvm.mlir_undef(as_type(type)))


def is_float(type: ir.Type) -> bool:
    """Whether `type`, or the element type of vector `type`, is a floating-point type."""
    if isinstance(type, ir.VectorType):
        type = type.element_type
    return isinstance(type, ir.FloatType)


def element_bits(type: TypeLike) -> int:
    """Bits of `type`, or of the elements of vector `type`; pointers: 32 in shared memory, else 64.

    Raises:
        TypeError: the type is neither a number nor a pointer.
    """
    type = as_type(type)
    if isinstance(type, ir.VectorType):
        type = type.element_type
    if isinstance(type, ir.IntegerType):
        return type.width
    if type.__class__ in _BITS:
        return _BITS[type.__class__]
    text = str(type)
    if text.startswith("!llvm.ptr"):
        return 32 if text == "!llvm.ptr<3>" else 64
    raise TypeError(f"{text} has no size here")


def select(condition: Value, if_true: Value | Scalar, if_false: Value | Scalar) -> Value:
    """One of two values; at most one of them may be a Python number."""
    if not isinstance(if_true, Value):
        if_true = as_value(if_true, if_false.type)  # type: ignore[union-attr]
    type = if_true.ir.type
    return _operation("arith.select", type, [condition.ir, if_true.ir, as_value(if_false, type).ir])


def maximum(a: Value, b: Value | Scalar) -> Value:
    """The larger; signed for integers; NaN if either is NaN, as torch has it."""
    return a._apply(b, "arith.maxsi", "arith.maximumf")


def minimum(a: Value, b: Value | Scalar) -> Value:
    """The smaller; signed for integers; NaN if either is NaN, as torch has it."""
    return a._apply(b, "arith.minsi", "arith.minimumf")


def fma(a: Value, b: Value | Scalar, c: Value | Scalar) -> Value:
    """a * b + c with one rounding."""
    return wrap(math.fma(a.ir, as_value(b, a.type).ir, as_value(c, a.type).ir))


def cast(value: Value, type: TypeLike, signed: bool = True) -> Value:
    """Convert a number to the same number in another type (scalars, or vectors of equal length).

    Integers are read as signed unless `signed` is false; i1 is always 0 or 1. Integers narrow by dropping bits; float
    to integer rounds towards zero. Between f16 and bf16 the way goes through f32.
    """
    target = as_type(type)
    if target == value.type:
        return value
    source_float, target_float = is_float(value.type), is_float(target)
    source_bits, target_bits = element_bits(value.type), element_bits(target)
    signed = signed and (source_bits > 1 or source_float)
    if source_float and target_float:
        if source_bits == target_bits:
            return cast(cast(value, _like(value.type, "f32")), target)
        return wrap((arith.extf if source_bits < target_bits else arith.truncf)(target, value.ir))
    if source_float:
        return wrap((arith.fptosi if signed else arith.fptoui)(target, value.ir))
    if target_float:
        return wrap((arith.sitofp if signed else arith.uitofp)(target, value.ir))
    if target_bits < source_bits:
        return wrap(arith.trunci(target, value.ir))
    return wrap((arith.extsi if signed else arith.extui)(target, value.ir))


def _like(type: ir.Type, element: str) -> ir.Type:
    return ir.VectorType.get(type.shape, as_type(element)) if isinstance(type, ir.VectorType) else as_type(element)


def bitcast(value: Value, type: TypeLike) -> Value:
    """The same bits as another type of the same total size (scalars, vectors, not pointers)."""
    target = as_type(type)
    return value if target == value.type else wrap(llvm.bitcast(target, value.ir))


def vector(values: Sequence[Value]) -> Value:
    """A vector of scalars of one type."""
    type = ir.VectorType.get([len(values)], values[0].type)
    return wrap(vector_dialect.from_elements(type, [value.ir for value in values]))


def unpack(value: Value) -> list[Value]:
    """The elements of a vector."""
    count = value.type.shape[0]
    return [wrap(vector_dialect.extract(value.ir, [], [index])) for index in range(count)]


def pack(low: Value, high: Value) -> Value:
    """Two 16-bit values as one i32, `low` in the lower half (the order of memory)."""
    return bitcast(vector([low, high]), "i32")
