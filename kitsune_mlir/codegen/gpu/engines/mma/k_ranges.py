"""A product's rows in parts: what a concatenation joins is read where it lies, and so are rows of a table.

linear(cat([x, y, table[i]])) sums over three *ranges* of terms, of which each has a tensor of its own. None of them is copied:
chunks of the sum belong to one range each, so the last chunk of a range may be a partial one; beyond the range's end A is zero,
and whatever the weights have there does not count. Rows of a table come by threads (`mma.producer_copy`), each row from where
its index says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.contraction.axes import ROW
from kitsune_mlir.codegen.gpu.contraction.elementwise import is_constant
from kitsune_mlir.codegen.gpu.contraction.gather import indices_read, tables_of, walked_loop
from kitsune_mlir.codegen.gpu.contraction.match import Pattern, Product
from kitsune_mlir.codegen.gpu.contraction.scalar_body import constant_of
from kitsune_mlir.codegen.gpu.emit.control_flow import if_
from kitsune_mlir.codegen.gpu.emit.memory import offset
from kitsune_mlir.codegen.gpu.emit.value import Value, i64
from kitsune_mlir.codegen.gpu.emit.vectors import load_elements
from kitsune_mlir.codegen.gpu.engines.mma.operand import Sum
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.codegen.gpu.interface.window import Dim, Window
from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.dialects.products import body_of, constant_fill, defining_op, yield_of
from kitsune_mlir.dialects.tile_records import Load

__all__ = ["Gather", "Range", "by_range", "ranges_of"]


@dataclasses.dataclass(frozen=True, eq=False)
class Gather:
    """Rows of a table: element (row, term) is `table[index(row), term]`.

    Attributes:
        op: the generic that reads the table.
        numbers: the loads that its body's index is made of, with the side of each wide dimension, by operand.
    """

    op: ir.Operation
    numbers: dict[int, tuple[Load, tuple[str, ...]]]

    def row(self, tile: TileContext, row: Value) -> Value:
        """Number of the table's row that is row `row` of the tile, i32."""
        elements: list[Value | None] = []
        for number, operand in enumerate(self.op.operands):
            if number in self.numbers:
                window = Window.of(*self.numbers[number])
                place = offset(window.start(tile), i64(row) * (window.stride(ROW) * window.bytes))
                elements.append(load_elements(place, window.dtype, 1, constant=window.constant)[0])
            else:
                elements.append(constant_of(operand) if is_constant(operand) else None)
        return indices_read(self.op, elements, tile, lambda _: row, "i32")[0]


@dataclasses.dataclass(frozen=True, eq=False)
class Range:
    """Terms of a sum that one tensor has.

    Attributes:
        start: of the sum, where the first term stands.
        length: terms.
        window: of the tile's rows; of a table, whose rows are chosen by `gather`.
        gather: None for the tile's own rows.
    """

    start: int
    length: int
    window: Window
    gather: Gather | None = None


def ranges_of(pattern: Pattern, product: Product) -> tuple[Range, ...] | None:
    """The ranges of a product's rows, without those that are zeros; None where the rows are one tensor that is loaded.

    Raises:
        MatchFailure: they are neither loaded, nor joined or gathered from what is.
    """
    value = product.op.operands[product.a]
    if pattern.task.load_of(value) is not None:
        return None
    if len(product.sums) != 1:
        raise MatchFailure("rows made in the task, summed over several dimensions")
    side = f"k{product.sums[0][0]}"
    found = [_range(pattern, part, side, start) for part, start in _parts(pattern, value, 0)]
    kept = tuple(part for part in found if part is not None)
    if not kept:
        raise MatchFailure("a product with zeros")
    return kept


def by_range(sum: Sum, chunk: Value, emit: Callable[[int], object]) -> None:
    """Emit code for a chunk, by the number of the range that it belongs to; 0 where the sum has no ranges."""

    def among(first: int, end: int) -> None:
        if first + 1 >= end:
            emit(first)
        else:  # a binary search: sums may be joined of hundreds of ranges
            middle = (first + end) // 2
            if_(chunk < sum.firsts[middle], lambda: among(first, middle), lambda: among(middle, end))

    among(0, len(sum.ranges))


def _parts(pattern: Pattern, value: ir.Value, start: int) -> list[tuple[ir.Value, int]]:
    """What a value is joined of, with the term that each part begins at."""
    found, pending = [], [(value, start)]
    while pending:
        value, start = pending.pop()
        step = pattern.steps.get(value)
        if step is None or step.kind != "concat":
            found.append((value, start))
            continue
        dim = ir.IntegerAttr(step.op.attributes["dim"]).value
        if any(extent != 1 for extent in shape_of(value)[dim + 1 :]):
            raise MatchFailure("the rows of a product are joined along their length")
        parts = []
        for part in step.op.operands:
            parts.append((part, start))
            start += shape_of(part)[dim]
        pending += reversed(parts)
    return found


def _range(pattern: Pattern, value: ir.Value, side: str, start: int) -> Range | None:
    length = shape_of(value)[-1]
    load, maker = pattern.task.load_of(value), defining_op(value)
    if load is not None:
        names = ((ROW,) if pattern.product.rows != 1 else ()) + ((side,) if length != 1 else ())
        window = Window.of(load, names)
        if length == 1:  # the sum has it, though memory has one element
            window = Window(window.buffer, (*window.dims, Dim(side, 1, 1, 1, 0)))
        return Range(start, length, window)
    filled = constant_fill(maker)
    if filled is not None and ir.FloatAttr(filled.attributes["value"]).value == 0:
        return None
    return Range(start, length, *_gathered(pattern, value, side))


def _gathered(pattern: Pattern, value: ir.Value, side: str) -> tuple[Window, Gather]:
    """`value` as rows of a table."""
    step = pattern.steps.get(value)
    refusal = MatchFailure("the rows of a product are computed in the task")
    if step is None or step.kind != "map" or len(step.op.results) != 1:
        raise refusal
    extract = defining_op(yield_of(step.op).operands[0])
    extracts = [inner for inner in body_of(step.op) if inner.name == "tensor.extract"]
    if extract is None or extracts != [extract] or len(extract.operands) != 3:
        raise refusal
    table = tables_of(pattern.task).get(extract.operands[0])
    loop = walked_loop(extract.operands[2])
    column = defining_op(extract.operands[2])
    if table is None or loop is None or column is None or column.name != "linalg.index":
        raise refusal
    if pattern.loop_side(step.op, loop) != side and shape_of(value)[-1] != 1:
        raise refusal
    numbers = {}
    for number in step.operands:
        operand = step.op.operands[number]
        if is_constant(operand):
            continue
        load, sides = pattern.task.load_of(operand), pattern.operand_sides(step.op, number)
        if load is None or set(sides) - {ROW}:
            raise MatchFailure("rows of a table are chosen by what is computed in the task")
        numbers[number] = load, sides
    names = [name for name, extent in zip((ROW, side), table.sizes, strict=True) if extent != 1]
    return Window.of(table, names), Gather(step.op, numbers)
