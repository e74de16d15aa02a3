"""Panels of a product's vectorised operand, laid out for the inner loop.

Weights of a linear layer are stored as [n, k], contiguous along the reduction. A panel of `columns` vectors is transposed into
[k, columns * lanes] once and then serves all rows of the tile; so are a convolution's, whose k
are several loops.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from torch_mlir import ir
from torch_mlir.dialects import vector

from kitsune_mlir.codegen.host import ops
from kitsune_mlir.codegen.host.nest import Access, Nest
from kitsune_mlir.dialects.sizes import element_bytes

__all__ = ["LOCAL", "RELATIVE", "Panel", "filled_row", "has_bytes", "plan_panel", "transpose"]

RELATIVE = -1
"""Key of a point that holds the lane relative to the block's first one."""

LOCAL = -2
"""Key of a point that holds the counter of the panel's first reduction relative to where the panel begins."""

MIN_ROWS = 12
"""Rows that a packed panel must serve to be worth its transposition."""

FAR_APART = 1024
"""Distance in elements from which on consecutive vectors of an operand are worth gathering."""

PANEL_BYTES = 32 << 10
"""A longer sum is done in parts: what is added to stays close then, beside the panel."""

Point = ops.Point


@dataclass(frozen=True)
class Panel:
    """Packing of input number `operand`, which is read by vectors along `lane` while `reductions` run; `width` lanes a panel.

    The operand is contiguous along `lane`, and is copied, or along the reductions as one, and is transposed. `part` is how many
    iterations of the first reduction a panel holds.
    """

    operand: int
    lane: int
    reductions: tuple[int, ...]
    lanes: int
    width: int
    part: int

    def strides(self, nest: Nest) -> dict[int, int]:
        """Rows of the panel from one iteration of a reduction to the next."""
        found, rows = {}, 1
        for reduction in reversed(self.reductions):
            found[reduction] = rows
            rows *= nest.extents[reduction]
        return found

    def pack(self, nest: Nest, point: Point, chunks: list[tuple[int, int]]) -> Nest:
        """Emit the packing of the panel that begins at `point`; returns the nest that reads the panel instead.

        The extents of the reductions are the panel's own.
        """
        source = nest.inputs[self.operand]
        strides = self.strides(nest)
        depth = math.prod(nest.extents[r] for r in self.reductions)
        buffer = ops.scratch(nest.op, [depth * self.width], source.element)
        assert source.flat is not None

        def copy(inside: Point) -> None:
            row = ops.linear(
                [self.width * strides[r] for r in self.reductions], 0, {i: inside[r] for i, r in enumerate(self.reductions)}
            )
            first_row = ops.add(point[self.reductions[0]], inside[self.reductions[0]])
            for first, lanes in chunks:
                here = {**point, **inside, self.reductions[0]: first_row, self.lane: ops.add(point[self.lane], first)}
                ops.store(source.at(here, lanes), buffer, ops.add(row, first), lanes)

        def block(k: ops.Index, count: int) -> None:
            for first, lanes in chunks:
                rows = []
                for r in range(lanes):
                    here = {**point, self.lane: ops.add(point[self.lane], first + r)}
                    start = ops.add(ops.linear(source.coefficients, source.constant, here), k)
                    rows.append(filled_row(source, start, count, self.lanes))
                rows += [rows[-1]] * (self.lanes - lanes)
                for c, column in enumerate(transpose(rows)[:count]):
                    ops.store(column, buffer, ops.add(ops.mul(ops.add(k, c), self.width), first), self.lanes)

        def step(k: ops.Index, carried: list[ir.Value]) -> list[ir.Value]:
            block(k, self.lanes)
            return carried

        if source.coefficients[self.lane] == 1:
            ops.nested(self.reductions, nest.extents, {}, copy)
        else:
            whole = depth // self.lanes * self.lanes
            ops.loop(0, whole, self.lanes, [], step)
            if depth > whole:
                block(whole, depth - whole)
        coefficients = [0] * len(nest.extents)
        for moving in (self.lane, *self.reductions):
            coefficients[moving] = self.width  # not 0: it moves along them
        inputs = list(nest.inputs)
        packed = PanelAccess(source.memref, tuple(coefficients), 0, depth * self.width, None, buffer, self, strides)
        inputs[self.operand] = packed
        return replace(nest, inputs=tuple(inputs))


@dataclass(frozen=True)
class PanelAccess(Access):
    """Reads a packed panel: its address is the counters of the reductions and the lane within the block."""

    panel: Panel | None = None
    strides: dict[int, int] = field(default_factory=dict)

    @property
    def element(self) -> ir.Type:
        """Type of one element of the panel."""
        assert self.flat is not None
        return ir.MemRefType(self.flat.type).element_type

    def at(self, point: Point, lanes: int = 1) -> ir.Value:
        """Load `lanes` lanes of the block at `point`."""
        assert self.flat is not None and self.panel is not None
        index: ops.Index = 0
        for n, (reduction, rows) in enumerate(sorted(self.strides.items(), key=lambda item: -item[1])):
            index = ops.add(index, ops.mul(point[reduction if n else LOCAL], rows * self.panel.width))
        return ops.load(self.flat, ops.add(index, point[RELATIVE]), self.element, lanes)


def filled_row(source: Access, index: ops.Index, count: int, lanes: int) -> ir.Value:
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
    if row is None or lanes < 2:
        return None
    for i, access in enumerate(nest.inputs):
        if access.memref is None or access.coefficients[row] != 0 or not has_bytes(access.element):
            continue
        reductions = tuple(sorted(nest.reductions, key=lambda r: -access.coefficients[r]))
        if not all(access.coefficients[r] for r in reductions):
            continue
        rows = math.prod(nest.extents[d] for d in nest.parallel if d != lane and not access.coefficients[d])
        across = access.coefficients[lane] > 1 and _walks_as_one(nest, access, reductions)
        apart = access.coefficients[lane] == 1 and access.coefficients[reductions[-1]] >= FAR_APART
        if rows >= MIN_ROWS and (across or (apart and rows >= 2 * MIN_ROWS)):
            width = lanes * columns
            rest = math.prod(nest.extents[r] for r in reductions[1:])
            return Panel(
                i,
                lane,
                reductions,
                lanes,
                width,
                _part(nest.extents[reductions[0]], rest * width * element_bytes(access.element)),
            )
    return None


def _part(extent: int, bytes_: int) -> int:
    """Iterations that a panel holds, of `extent` ones of so many bytes: as many as fit.

    Parts without a remainder, which would be code of its own, are preferred where they are more than half as long.
    """
    parts = min(extent, -(-extent * bytes_ // PANEL_BYTES))
    equal = next((n for n in range(parts, 2 * parts) if extent % n == 0), parts)
    return -(-extent // equal)


def _walks_as_one(nest: Nest, access: Access, reductions: tuple[int, ...]) -> bool:
    """Whether the elements that reductions walk through are contiguous."""
    expected = 1
    for reduction in reversed(reductions):
        if access.coefficients[reduction] != expected:
            return False
        expected *= nest.extents[reduction]
    return True


def has_bytes(type_: ir.Type) -> bool:
    """Whether elements fill bytes (vectors of `i1` would be packed to bits)."""
    return not isinstance(type_, ir.IntegerType) or type_.width >= 8
