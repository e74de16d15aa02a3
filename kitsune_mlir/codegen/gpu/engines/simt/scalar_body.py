"""The scalar code inside linalg bodies, emitted for the points of a vector.

A scalar of the body becomes a list with one value a point, or with a single one that all points share; or an index
(`simt.affine_index`), as long as it is a sum of known things. bf16 and f16 live in f32 registers, and are rounded where the
program rounds: two by two, so that storing them later costs nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.approx_math import APPROXIMATIONS, divide_by_shared, exp_of_difference, reciprocal
from kitsune_mlir.codegen.gpu.emit.convert import pack_pair, packed_source, unpack_pair
from kitsune_mlir.codegen.gpu.emit.operation import clone
from kitsune_mlir.codegen.gpu.emit.remainder import remainder
from kitsune_mlir.codegen.gpu.emit.value import Value, bitcast, cast, constant, element_bits, select
from kitsune_mlir.codegen.gpu.engines.simt.affine_index import Index, Linear, add, at, emit, opaque, scale
from kitsune_mlir.codegen.gpu.engines.simt.index_ranges import choose_index, compare, int32_range, on_indices
from kitsune_mlir.codegen.gpu.engines.simt.precision import Precision
from kitsune_mlir.dialects.sizes import HALF_TYPES
from kitsune_mlir.errors import UnsupportedError

__all__ = ["Lanes", "ScalarEmitter", "carrier", "materialize"]

Lanes = list[Value]
"""One value a point of the vector, or one for all."""

_PAIR = "vector<2xbf16>"

# What leaves a 16-bit float representable needs no rounding afterwards.
_EXACT = ("arith.negf", "arith.maximumf", "arith.minimumf", "arith.maxnumf", "arith.minnumf", "math.absf", "math.copysign")

_ARITH = frozenset(
    "arith." + name
    for name in (
        *("addf", "subf", "mulf", "divf", "remf", "negf", "maximumf", "minimumf", "maxnumf", "minnumf", "cmpf"),
        *("addi", "subi", "muli", "divsi", "divui", "remsi", "remui", "ceildivsi", "floordivsi", "ceildivui", "cmpi"),
        *("andi", "ori", "xori", "shli", "shrsi", "shrui", "maxsi", "minsi", "maxui", "minui", "select"),
        *("extsi", "extui", "trunci", "sitofp", "uitofp", "fptosi", "fptoui", "bitcast"),
    )
)
_MATH = frozenset(
    "math." + name
    for name in (
        *("absf", "absi", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil"),
        *("copysign", "cos", "cosh"),
        *("ctlz", "ctpop", "cttz", "erf", "erfc", "exp", "exp2", "expm1", "floor", "fma", "isfinite", "isinf", "isnan", "log"),
        *("log10", "log1p", "log2", "powf", "round", "roundeven", "rsqrt", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
    )
)
_CASTS = ("arith.index_cast", "arith.index_castui", "arith.extsi", "arith.trunci")


def carrier(type: ir.Type) -> str:
    """The type that a scalar of `type` has in registers."""
    name = str(type)
    if name in HALF_TYPES:
        return "f32"
    return "i32" if name == "index" else name


def materialize(value: Lanes | Index, type: ir.Type, width: int) -> Lanes:
    """An index as numbers of `type` (an integer type or index); lanes as they are."""
    if isinstance(value, list):
        return value
    name = carrier(type)
    points = 1 if isinstance(value, Linear) and not value.lane else width
    wide = "i64" if name == "i64" else "i32"
    return [cast(emit(at(value, e), wide), name) for e in range(points)]


def is_index(value: Lanes | Index) -> bool:
    return not isinstance(value, list)


class ScalarEmitter:
    """Emits operations for vectors of `width` points.

    `packed` remembers the 32-bit words that pairs were rounded to, `bounded` what ranges of indices said.
    """

    def __init__(self, width: int, precision: Precision):
        self.width = width
        self.precision = precision
        self.packed: dict[tuple[ir.Value, ir.Value], Value] = {}
        self.bounded: dict[tuple, Lanes | Index] = {}

    def emit(self, op: ir.Operation, operands: Sequence[Lanes | Index]) -> Lanes | Index:
        """The result of an operation with one result.

        Raises:
            UnsupportedError: it is none of the arithmetic that is known here.
        """
        if op.name == "arith.constant":
            return self._constant(op)
        if op.name in _CASTS and is_index(operands[0]) and element_bits(carrier(op.results[0].type)) >= 32:
            return operands[0]
        indices: list[Index] = [operand for operand in operands if not isinstance(operand, list)]
        if op.name in ("arith.addi", "arith.subi", "arith.muli") and len(indices) == 2:
            found = _linear(op.name, indices[0], indices[1])
            if found is not None:
                return found
        if (known := self._ranged(op, operands, indices)) is not None:
            return known
        if (known := self._same_index(op, operands)) is not None:
            return known
        lanes = [materialize(value, operand.type, self.width) for value, operand in zip(operands, op.operands, strict=True)]
        if op.name in ("arith.index_cast", "arith.index_castui"):
            if str(op.results[0].type) == "index":
                return opaque(lanes[0])
            return self._each(lambda x: cast(x, carrier(op.results[0].type), op.name == "arith.index_cast"), lanes)
        result = str(op.results[0].type)
        if op.name == "arith.extf":
            return self._each(lambda x: cast(x, carrier(op.results[0].type)), lanes)
        if op.name == "arith.truncf":
            return self.round(self._each(lambda x: cast(x, carrier(op.results[0].type)), lanes), result)
        if op.name not in _ARITH and op.name not in _MATH:
            raise UnsupportedError(op.name, "simt emits arith and math operations", None, str(op.location))
        if op.name == "arith.bitcast":
            return self._bitcast(op, lanes)
        if (pairs := self._packed_sum(op, lanes)) is not None:
            return pairs
        if (cheap := self._cheaper(op, lanes)) is not None:
            return self.round(cheap, result)
        made = self._each(lambda *values: clone(op, values, [carrier(op.results[0].type)])[0], lanes)
        if result in HALF_TYPES and op.name not in _EXACT and op.name != "arith.select":
            return self.round(made, result)
        return made

    def _ranged(self, op: ir.Operation, operands: Sequence[Lanes | Index], indices: list[Index]) -> Lanes | Index | None:
        """What the ranges of indices say of an operation's result."""
        wide = [value for value in (*op.operands, *op.results) if str(value.type) not in ("i1", "i32", "i64", "index", "f32")]
        if wide or not indices:
            return None
        predicate = ir.IntegerAttr(op.attributes["predicate"]).value if op.name == "arith.cmpi" else None
        key = (
            op.name,
            predicate,
            *(value if not isinstance(value, list) else tuple(v.ir for v in value) for value in operands),
        )
        if key in self.bounded:
            return self.bounded[key]
        found: Lanes | Index | None = None
        if op.name == "arith.select" and isinstance(operands[0], list) and len(indices) == 2:
            found = choose_index(operands[0], indices[0], indices[1], self.width)
        elif predicate is not None and len(indices) == 2:
            found = compare(predicate, indices, self.width)
        elif op.name == "arith.sitofp" and str(op.results[0].type) == "f32":
            points = [
                at(indices[0], e) for e in range(1 if isinstance(indices[0], Linear) and not indices[0].lane else self.width)
            ]
            if all(int32_range(point) is not None for point in points):
                found = [cast(emit(point), "f32") for point in points]
        elif len(indices) == len(operands):
            found = on_indices(op.name, indices, self.width)
        if found is not None:
            self.bounded[key] = found
        return found

    def _same_index(self, op: ir.Operation, operands: Sequence[Lanes | Index]) -> Lanes | None:
        """Whether an index is a 64-bit number that all points have (a row's target): compared in 32 bits; one that has more
        is made a number that no index is."""
        if op.name != "arith.cmpi" or ir.IntegerAttr(op.attributes["predicate"]).value or str(op.operands[0].type) != "i64":
            return None
        index, other = operands if isinstance(operands[1], list) else reversed(operands)
        if not isinstance(index, Linear) or not isinstance(other, list) or len(other) != 1:
            return None
        span = index.range(self.width)
        if span is None or span[0] < 0 or span[1] >= 1 << 31:
            return None
        short = cast(other[0], "i32")
        number = select(cast(short, "i64") == other[0], short, -1)
        return [emit(at(index, e)) == number for e in range(self.width if index.lane else 1)]

    def _cheaper(self, op: ir.Operation, lanes: Sequence[Lanes]) -> Lanes | None:
        """An f32 operation by a shorter way than the exact one, if there is one that is good enough; or by an exact one."""
        if carrier(op.results[0].type) != "f32":
            return None
        approximate = self.precision.approximate
        if op.name == "arith.divf":
            if len(lanes[1]) == 1 and len(lanes[0]) > 1:
                return divide_by_shared(lanes[0], lanes[1][0], approximate)
            if approximate and _is_one(op.operands[0]):
                return self._each(reciprocal, lanes[1:])
        if op.name == "arith.remf":
            return self._each(remainder, lanes)
        if op in self.precision.lowered:
            return self._each(exp_of_difference, lanes)
        if (approximate or op in self.precision.short) and op.name in APPROXIMATIONS:
            return self._each(APPROXIMATIONS[op.name], lanes)
        return None

    def _packed_sum(self, op: ir.Operation, lanes: Sequence[Lanes]) -> Lanes | None:
        """A sum or difference of bf16 numbers that is rounded to bf16: two by one instruction, before they are unpacked."""
        if op.name not in ("arith.addf", "arith.subf") or max(map(len, lanes)) < self.width or self.width % 2:
            return None
        if not all(use.owner.name == "arith.truncf" and str(use.owner.results[0].type) == "bf16" for use in op.results[0].uses):
            return None
        shared = [
            pack_pair(values[0], values[0], "bf16") if len(values) == 1 and _is_widened(operand) else None
            for values, operand in zip(lanes, op.operands, strict=True)
        ]
        made: Lanes = []
        for place in range(0, self.width, 2):
            words = [packed_source(*v[place : place + 2]) if len(v) > 1 else w for v, w in zip(lanes, shared, strict=True)]
            a, b = words
            if a is None or b is None:
                return None
            a, b = bitcast(a, _PAIR), bitcast(b, _PAIR)
            word = bitcast(a + b if op.name == "arith.addf" else a - b, "i32")
            made += unpack_pair(word, "bf16")
        return made

    def _each(self, make: Callable[..., Value], lanes: Sequence[Lanes]) -> Lanes:
        """`make` once for each point, or once if all operands are shared."""
        points = max((len(values) for values in lanes), default=1)
        return [make(*(values[e if len(values) > 1 else 0] for values in lanes)) for e in range(points)]

    def _constant(self, op: ir.Operation) -> Lanes | Index:
        type, attribute = op.results[0].type, op.attributes["value"]
        if isinstance(attribute, ir.IntegerAttr) and not isinstance(attribute, ir.BoolAttr):
            number = attribute.value
            if str(type) in ("index", "i32", "i64"):
                return Linear(const=number)
            return [constant(number, type)]
        if isinstance(attribute, ir.BoolAttr):
            return [constant(attribute.value, type)]
        return [constant(ir.FloatAttr(attribute).value, carrier(type))]

    def _bitcast(self, op: ir.Operation, lanes: Sequence[Lanes]) -> Lanes:
        source, target = str(op.operands[0].type), str(op.results[0].type)

        def make(value: Value) -> Value:
            return cast(bitcast(cast(value, source), target), carrier(op.results[0].type))

        return self._each(make, lanes)

    def round(self, values: Lanes, dtype: str) -> Lanes:
        """f32 values rounded to what `dtype` ("bf16" or "f16", else nothing happens) can represent, unless more is harmless."""
        if dtype not in HALF_TYPES or self.precision.excess:
            return values
        if len(values) % 2:
            return [cast(cast(value, dtype), "f32") for value in values]
        rounded: Lanes = []
        for low, high in zip(values[::2], values[1::2], strict=True):
            if dtype == "bf16" and packed_source(low, high) is not None:
                rounded += (low, high)
                continue
            word = pack_pair(low, high, dtype)
            pair = unpack_pair(word, dtype)
            self.packed[pair[0].ir, pair[1].ir] = word
            rounded += pair
        return rounded

    def words(self, values: Lanes, dtype: str) -> list[Value]:
        """Pairs of values as packed words of `dtype`; no code for those that `round` made."""
        words = []
        for low, high in zip(values[::2], values[1::2], strict=True):
            word = self.packed.get((low.ir, high.ir))
            if word is None and dtype == "bf16":
                word = packed_source(low, high)
            words.append(pack_pair(low, high, dtype) if word is None else word)
        return words


def _is_widened(value: ir.Value) -> bool:
    """Whether a value is one of bf16 as f32."""
    return (
        not isinstance(value.owner, ir.Block)
        and value.owner.name == "arith.extf"
        and str(value.owner.operands[0].type) == "bf16"
    )


def _is_one(value: ir.Value) -> bool:
    if isinstance(value.owner, ir.Block) or value.owner.name != "arith.constant":
        return False
    attribute = value.owner.attributes["value"]
    return isinstance(attribute, ir.FloatAttr) and attribute.value == 1.0


def _linear(name: str, a: Index, b: Index) -> Index | None:
    if name == "arith.addi":
        return add(a, b)
    if name == "arith.subi":
        return add(a, scale(b, -1))
    for factor, other in ((a, b), (b, a)):
        if isinstance(factor, Linear) and not factor.terms and not factor.lane:
            return scale(other, factor.const)
    return None
