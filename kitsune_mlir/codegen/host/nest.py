"""A `linalg.generic` on memrefs as a loop nest: extents, and for each operand a linear function of the loop counters.

Strides are static (docs/tile-program.md), so the address of every operand whose indexing map is affine is
`constant + sum of coefficient[d] * counter[d]` elements from the operand's first element. Schedules work on these
coefficients: 0 is a broadcast, 1 is contiguous, anything else is strided; windows of convolutions need nothing special.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch_mlir import ir

from kitsune_mlir.codegen.host import ops
from kitsune_mlir.dialects.access import affine_maps
from kitsune_mlir.dialects.verify import walk

__all__ = ["Access", "Nest", "loop_extents", "read_nest"]


@dataclass(frozen=True)
class Access:
    """How one operand is addressed. `memref` is None for a scalar operand, whose value is `scalar`."""

    memref: ir.Value | None
    coefficients: tuple[int, ...]
    constant: int
    span: int
    scalar: ir.Value | None = None
    flat: ir.Value | None = None

    @property
    def element(self) -> ir.Type:
        """Type of one element."""
        if self.memref is None:
            assert self.scalar is not None
            return self.scalar.type
        return ir.MemRefType(self.memref.type).element_type

    def at(self, point: dict[int, ops.Index], lanes: int = 1) -> ir.Value:
        """Load the element at `point`, or `lanes` of them where the vectorised dimension is contiguous."""
        if self.scalar is not None:
            return self.scalar
        assert self.flat is not None
        return ops.load(self.flat, ops.linear(self.coefficients, self.constant, point), self.element, lanes)

    def put(self, value: ir.Value, point: dict[int, ops.Index], lanes: int) -> None:
        """Store at `point`."""
        assert self.flat is not None
        ops.store(value, self.flat, ops.linear(self.coefficients, self.constant, point), lanes)


@dataclass(frozen=True)
class Nest:
    """A loop nest. `reductions` holds the dimensions that are reduced over, `block` the scalar computation."""

    op: ir.Operation
    extents: tuple[int, ...]
    reductions: frozenset[int]
    inputs: tuple[Access, ...]
    outputs: tuple[Access, ...]

    @property
    def block(self) -> ir.Block:
        """The body: an argument for each input and output, ended by `linalg.yield`."""
        return self.op.regions[0].blocks[0]

    @property
    def parallel(self) -> list[int]:
        """Dimensions that are not reduced over, outer first."""
        return [d for d in range(len(self.extents)) if d not in self.reductions]

    @property
    def accesses(self) -> tuple[Access, ...]:
        """Inputs, then outputs: in the order of the body's arguments."""
        return self.inputs + self.outputs

    def with_views(self) -> Nest:
        """The same nest with a flat view for each operand, made at the current insertion point."""

        def view(access: Access) -> Access:
            return access if access.memref is None else replace(access, flat=ops.flat_view(access.memref, access.span))

        return replace(self, inputs=tuple(map(view, self.inputs)), outputs=tuple(map(view, self.outputs)))


def read_nest(op: ir.Operation, *, keep_first: bool = False) -> Nest | None:
    """The nest of a `linalg.generic` on memrefs; None where a shape or stride is dynamic, empty, or a map is not linear.

    Dimensions that every operand walks through as one are merged; `keep_first` leaves the first one (of more than one
    iteration) alone, for a loop that several nests share.
    """
    kinds = ["reduction" in str(k) for k in op.attributes["iterator_types"]]
    maps = [attribute.value for attribute in op.attributes["indexing_maps"]]
    extents = _extents(op, maps, len(kinds))
    if extents is None or any(e < 1 for e in extents):
        return None
    accesses = []
    for value, affine_map in zip(op.operands, maps, strict=True):
        access = _access(value, affine_map, extents)
        if access is None:
            return None
        accesses.append(access)
    count = list(op.attributes["operandSegmentSizes"])[0]
    reductions = frozenset(d for d, reduced in enumerate(kinds) if reduced)
    nest = Nest(op, tuple(extents), reductions, tuple(accesses[:count]), tuple(accesses[count:]))
    if any(a.memref is None for a in nest.outputs):
        return None
    return _without_units(_coalesce(nest, keep_first))


def _extents(op: ir.Operation, maps: list[ir.AffineMap], rank: int) -> list[int] | None:
    extents = [0] * rank
    for value, affine_map in zip(op.operands, maps, strict=True):
        if not isinstance(value.type, ir.MemRefType):
            continue
        if not value.type.has_static_shape:
            return None
        for size, expression in zip(value.type.shape, affine_map.results, strict=True):
            if isinstance(expression, ir.AffineDimExpr):
                extents[expression.position] = size
                if size == 0:
                    return None
    return extents


def _access(value: ir.Value, affine_map: ir.AffineMap, extents: list[int]) -> Access | None:
    if not isinstance(value.type, ir.MemRefType):
        return Access(None, (0,) * len(extents), 0, 0, scalar=value)
    try:
        strides, _ = value.type.get_strides_and_offset()
    except (RuntimeError, ValueError):
        return None
    dynamic = ir.ShapedType.get_dynamic_stride_or_offset()
    coefficients, constant = [0] * len(extents), 0
    for stride, expression in zip(strides, affine_map.results, strict=True):
        if stride == dynamic:
            return None
        term = _linear(expression, len(extents))
        if term is None:
            return None
        for d, c in enumerate(term[0]):
            coefficients[d] += c * stride
        constant += term[1] * stride
    if any(c < 0 for c in coefficients) or constant < 0:
        return None
    span = constant + sum(c * (e - 1) for c, e in zip(coefficients, extents, strict=True)) + 1
    return Access(value, tuple(coefficients), constant, span)


def _linear(expression: ir.AffineExpr, rank: int) -> tuple[list[int], int] | None:
    """Coefficients and constant of an affine expression; None if it divides or takes a remainder."""
    if isinstance(expression, ir.AffineDimExpr):
        return [int(d == expression.position) for d in range(rank)], 0
    if isinstance(expression, ir.AffineConstantExpr):
        return [0] * rank, expression.value
    if not isinstance(expression, (ir.AffineAddExpr, ir.AffineMulExpr)):
        return None
    left, right = _linear(expression.lhs, rank), _linear(expression.rhs, rank)
    if left is None or right is None:
        return None
    if isinstance(expression, ir.AffineAddExpr):
        return [a + b for a, b in zip(left[0], right[0], strict=True)], left[1] + right[1]
    if any(left[0]):
        left, right = right, left
    if any(left[0]):
        return None
    return [left[1] * c for c in right[0]], left[1] * right[1]


def loop_extents(op: ir.Operation) -> list[int]:
    """Extents of an op's own loops; a nest has merged some."""
    extents = [1] * len(list(op.attributes["iterator_types"]))
    for value, affine_map in zip(op.operands, affine_maps(op), strict=True):
        if isinstance(value.type, ir.MemRefType):
            for size, expression in zip(value.type.shape, affine_map.results, strict=True):
                if isinstance(expression, ir.AffineDimExpr):
                    extents[expression.position] = size
    return extents


def _indexed(nest: Nest) -> set[int]:
    """Dimensions whose counter the body reads: they must stay as they are."""
    return {ir.IntegerAttr(op.attributes["dim"]).value for op in walk(nest.op) if op.name == "linalg.index"}


def _coalesce(nest: Nest, keep_first: bool) -> Nest:
    """Merge neighbouring dimensions that every operand walks through as one.

    The inner one takes over the iterations and the outer one keeps its number with extent 1.
    """
    extents, fixed = list(nest.extents), _indexed(nest)
    if keep_first:
        fixed |= set([d for d, e in enumerate(extents) if e > 1][:1])
    steps = [a.coefficients for a in nest.accesses]
    inner = len(extents) - 1
    for outer in range(len(extents) - 2, -1, -1):
        if extents[outer] == 1:
            continue
        same_kind = (inner in nest.reductions) == (outer in nest.reductions)
        together = all(c[outer] == c[inner] * extents[inner] for c in steps)
        if extents[inner] != 1 and together and same_kind and not {inner, outer} & fixed:
            extents[inner] *= extents[outer]
            extents[outer] = 1
        else:
            inner = outer
    return replace(nest, extents=tuple(extents))


def _without_units(nest: Nest) -> Nest:
    """Dimensions of extent 1 are parallel: their counter is always 0."""
    units = {d for d, e in enumerate(nest.extents) if e == 1}
    if all(d in units for d in nest.reductions) and nest.reductions:
        return nest  # keep one, so that the body still sees an accumulation
    return replace(nest, reductions=nest.reductions - units)
