"""Small builders for the IR of vector loops. All work at the current insertion point.

An index is a Python `int` where it is known, else an `index` value: sums and products of known parts fold here, not in a pass.
Memory is accessed through *flat* memrefs, one-dimensional views of everything that an operand reaches, with linear indices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch_mlir import ir
from torch_mlir.dialects import arith, memref, scf, vector

__all__ = [
    "Index",
    "Point",
    "add",
    "broadcast",
    "const",
    "flat_view",
    "is_vector",
    "least",
    "linear",
    "load",
    "loop",
    "mul",
    "nested",
    "scratch",
    "store",
    "value_of",
    "vector_type",
]

Index = int | ir.Value
Point = dict[int, Index]
"""The counters of some dimensions."""


def value_of(index: Index) -> ir.Value:
    """The index as a value."""
    return arith.constant(ir.IndexType.get(), index) if isinstance(index, int) else index


def add(a: Index, b: Index) -> Index:
    """a + b."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    if isinstance(a, int) and a == 0:
        return b
    if isinstance(b, int) and b == 0:
        return a
    return arith.addi(value_of(a), value_of(b))


def least(a: Index, b: Index) -> Index:
    """The lesser one of two counters."""
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    return arith.minui(value_of(a), value_of(b))


def mul(a: Index, factor: int) -> Index:
    """a * factor."""
    if factor == 0 or isinstance(a, int):
        return a * factor if isinstance(a, int) else 0
    return a if factor == 1 else arith.muli(a, value_of(factor))


def linear(coefficients: Sequence[int], constant: int, point: dict[int, Index]) -> Index:
    """constant + the sum of coefficients[d] * point[d]; a dimension that is not in `point` counts as 0."""
    known, unknown = constant, None
    for dimension, coefficient in enumerate(coefficients):
        if coefficient == 0 or dimension not in point:
            continue
        term = mul(point[dimension], coefficient)
        if isinstance(term, int):
            known += term
        else:
            unknown = term if unknown is None else arith.addi(unknown, term)
    return known if unknown is None else add(unknown, known)


def loop(
    lower: Index, upper: Index, step: int, carried: list[ir.Value], body: Callable[[Index, list[ir.Value]], list[ir.Value]]
) -> list[ir.Value]:
    """Emit a counted loop with values that it carries; no loop for one iteration, nothing for none.

    `body(counter, carried)` emits one iteration and returns the carried values after it.
    """
    if isinstance(lower, int) and isinstance(upper, int):
        if lower >= upper:
            return carried
        if lower + step >= upper:
            return body(lower, carried)
    made = scf.ForOp(value_of(lower), value_of(upper), value_of(step), carried)
    with ir.InsertionPoint(made.body):
        scf.YieldOp(body(made.induction_variable, list(made.inner_iter_args)))
    return list(made.operation.results)


def nested(dimensions: Sequence[int], extents: Sequence[int], point: Point, body: Callable[[Point], None]) -> None:
    """Emit a loop for each of `dimensions`, outermost first, with `body` inside; `point` holds the counters so far."""
    if not dimensions:
        body(point)
        return
    first, *rest = dimensions

    def iteration(counter: Index, carried: list[ir.Value]) -> list[ir.Value]:
        nested(rest, extents, {**point, first: counter}, body)
        return carried

    loop(0, extents[first], 1, [], iteration)


def flat_view(source: ir.Value, span: int) -> ir.Value:
    """A one-dimensional memref of the `span` elements from the first element of `source` on.

    `i1` elements come as `i8`: a vector of `i1` would be packed to bits in memory, PyTorch's bool is a byte.
    """
    type_ = ir.MemRefType(source.type)
    element = type_.element_type
    made = memref.ExtractStridedMetadataOp(source)
    base, offset = made.operation.results[0], made.operation.results[1]
    layout = ir.Attribute.parse("strided<[1], offset: ?>")
    flat = ir.MemRefType.get([span], element, layout)
    view = memref.reinterpret_cast(flat, base, [offset], [], [], [ir.ShapedType.get_dynamic_stride_or_offset()], [span], [1])
    if isinstance(element, ir.IntegerType) and element.width == 1:
        byte = ir.MemRefType.get([span], ir.IntegerType.get_signless(8), layout)
        view = ir.Operation.create("builtin.unrealized_conversion_cast", [byte], [view]).results[0]
    return view


def scratch(op: ir.Operation, shape: Sequence[int], element: ir.Type) -> ir.Value:
    """A temporary of the function that `op` is in, made at its beginning."""
    while op.name != "func.func":
        op = op.parent.operation
    with ir.InsertionPoint.at_block_begin(op.regions[0].blocks[0]):
        return memref.alloc(ir.MemRefType.get(shape, element), [], [])


def vector_type(element: ir.Type, lanes: int) -> ir.Type:
    """`vector<lanes x element>`; the element type itself for one lane."""
    return element if lanes == 1 else ir.VectorType.get([lanes], element)


def load(flat: ir.Value, index: Index, element: ir.Type, lanes: int) -> ir.Value:
    """`lanes` consecutive elements; a scalar for one lane. `element` is the operand's own type (`i1` where `flat` has `i8`)."""
    stored = ir.MemRefType(flat.type).element_type
    if lanes == 1:
        got = memref.load(flat, [value_of(index)])
    else:
        got = vector.load(vector_type(stored, lanes), flat, [value_of(index)])
    return _to_bool(got, lanes) if stored != element else got


def store(value: ir.Value, flat: ir.Value, index: Index, lanes: int) -> None:
    """Store a vector of `lanes` elements, or a scalar."""
    stored = ir.MemRefType(flat.type).element_type
    element = value.type.element_type if is_vector(value) else value.type
    if stored != element:
        value = arith.extui(vector_type(stored, lanes), value)
    if lanes == 1:
        memref.store(value, flat, [value_of(index)])
    else:
        vector.store(value, flat, [value_of(index)])


def _to_bool(value: ir.Value, lanes: int) -> ir.Value:
    zero = const(ir.IntegerType.get_signless(8), 0, lanes)
    return arith.cmpi(arith.CmpIPredicate.ne, value, zero)


def is_vector(value: ir.Value) -> bool:
    """Whether a value is a vector (different in each lane)."""
    return isinstance(value.type, ir.VectorType)


def broadcast(value: ir.Value, lanes: int) -> ir.Value:
    """A scalar in every lane; a vector stays as it is."""
    return value if lanes == 1 or is_vector(value) else vector.broadcast(vector_type(value.type, lanes), value)


def const(element: ir.Type, number: int | float, lanes: int = 1) -> ir.Value:
    """A constant of an integer, index or floating-point type, in every lane."""
    if isinstance(element, ir.FloatType):
        attribute: ir.Attribute = ir.FloatAttr.get(element, float(number))
    else:
        attribute = ir.IntegerAttr.get(element, int(number))
    if lanes == 1:
        return arith.constant(element, attribute)
    type_ = vector_type(element, lanes)
    return arith.constant(type_, ir.DenseElementsAttr.get_splat(type_, attribute))
