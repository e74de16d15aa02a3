"""Panels of a product's vectorised operand, laid out for the inner loop.

Weights of a linear layer are stored as [n, k], contiguous along the reduction. A panel of `columns` vectors is transposed into
[k, columns * lanes] once and then serves all rows of the tile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch_mlir import ir
from torch_mlir.dialects import vector

from kitsune_mlir.codegen.host import ops
from kitsune_mlir.codegen.host.nest import Access, Nest

__all__ = ["RELATIVE", "Panel", "plan_panel", "transpose"]

RELATIVE = -1
"""Key of a point that holds the lane relative to the block's first one."""

MIN_ROWS = 12
"""Rows that a packed panel must serve to be worth its transposition."""

FAR_APART = 1024
"""Distance in elements from which on consecutive vectors of an operand are worth gathering."""

Point = ops.Point


@dataclass(frozen=True)
class Panel:
    """Packing of input number `operand`, which is read by vectors along `lane` while `reduction` runs; `width` lanes a panel.

    The operand is contiguous along one of the two: along `reduction` it is transposed, along `lane` it is copied.
    """

    operand: int
    lane: int
    reduction: int
    lanes: int
    width: int

    def pack(self, nest: Nest, point: Point, chunks: list[tuple[int, int]]) -> Nest:
        """Emit the packing of the panel whose first lane is at `point`; returns the nest that reads the panel instead."""
        source = nest.inputs[self.operand]
        depth = nest.extents[self.reduction]
        buffer = ops.scratch(nest.op, [depth * self.width], source.element)
        assert source.flat is not None

        def copy(k: ops.Index, carried: list[ir.Value]) -> list[ir.Value]:
            for first, lanes in chunks:
                here = {**point, self.lane: ops.add(point[self.lane], first), self.reduction: k}
                ops.store(source.at(here, lanes), buffer, ops.add(ops.mul(k, self.width), first), lanes)
            return carried

        def block(k: ops.Index, count: int) -> None:
            for first, lanes in chunks:
                rows = []
                for r in range(lanes):
                    here = {**point, self.lane: ops.add(point[self.lane], first + r), self.reduction: k}
                    rows.append(_row(source, ops.linear(source.coefficients, source.constant, here), count, self.lanes))
                rows += [rows[-1]] * (self.lanes - lanes)
                for c, column in enumerate(transpose(rows)[:count]):
                    ops.store(column, buffer, ops.add(ops.mul(ops.add(k, c), self.width), first), self.lanes)

        def step(k: ops.Index, carried: list[ir.Value]) -> list[ir.Value]:
            block(k, self.lanes)
            return carried

        if source.coefficients[self.lane] == 1:
            ops.loop(0, depth, 1, [], copy)
        else:
            whole = depth // self.lanes * self.lanes
            ops.loop(0, whole, self.lanes, [], step)
            if depth > whole:
                block(whole, depth - whole)
        coefficients = [0] * len(nest.extents)
        coefficients[self.lane] = coefficients[self.reduction] = self.width  # not 0: it moves along both
        inputs = list(nest.inputs)
        inputs[self.operand] = PanelAccess(source.memref, tuple(coefficients), 0, depth * self.width, None, buffer, self)
        return replace(nest, inputs=tuple(inputs))


@dataclass(frozen=True)
class PanelAccess(Access):
    """Reads a packed panel: its address is the counter of the reduction and the lane within the block."""

    panel: Panel | None = None

    @property
    def element(self) -> ir.Type:
        """Type of one element of the panel."""
        assert self.flat is not None
        return ir.MemRefType(self.flat.type).element_type

    def at(self, point: Point, lanes: int = 1) -> ir.Value:
        """Load `lanes` lanes of the block at `point`."""
        assert self.flat is not None and self.panel is not None
        index = ops.add(ops.mul(point[self.panel.reduction], self.panel.width), point[RELATIVE])
        return ops.load(self.flat, index, self.element, lanes)


def _row(source: Access, index: ops.Index, count: int, lanes: int) -> ir.Value:
    """`count` elements along the reduction, filled up to `lanes` (the rest is never used)."""
    assert source.flat is not None
    got = ops.load(source.flat, index, source.element, count)
    if count == lanes:
        return got
    filled = ops.const(source.element, 0, lanes)
    if count == 1:
        return vector.insert(got, filled, [], [0])
    return vector.insert_strided_slice(got, filled, [0], [1])


def transpose(rows: list[ir.Value]) -> list[ir.Value]:
    """Transpose a square of vectors: log2(n) rounds, each interleaving row i with row i + n/2 (a perfect shuffle)."""
    count = len(rows)
    low = [i // 2 + (count if i % 2 else 0) for i in range(count)]
    high = [i + count // 2 for i in low]
    step = 1
    while step < count:
        mixed = []
        for a, b in zip(rows[: count // 2], rows[count // 2 :], strict=True):
            mixed += [vector.shuffle(a, b, low), vector.shuffle(a, b, high)]
        rows = mixed
        step *= 2
    return rows


def plan_panel(nest: Nest, lane: int, row: int | None, lanes: int, columns: int) -> Panel | None:
    """Which operand to pack: one whose vectors lie across its memory, or so far apart that each is on a page of its own."""
    if row is None or nest.extents[row] < MIN_ROWS or len(nest.reductions) != 1 or lanes < 2:
        return None
    (reduction,) = nest.reductions
    for i, access in enumerate(nest.inputs):
        if access.memref is None or access.coefficients[row] != 0 or not _has_bytes(access.element):
            continue
        across = access.coefficients[lane] > 1 and access.coefficients[reduction] == 1
        apart = access.coefficients[lane] == 1 and access.coefficients[reduction] >= FAR_APART
        if across or (apart and nest.extents[row] >= 2 * MIN_ROWS):
            return Panel(i, lane, reduction, lanes, lanes * columns)
    return None


def _has_bytes(type_: ir.Type) -> bool:
    """Whether elements fill bytes (vectors of `i1` would be packed to bits)."""
    return not isinstance(type_, ir.IntegerType) or type_.width >= 8
