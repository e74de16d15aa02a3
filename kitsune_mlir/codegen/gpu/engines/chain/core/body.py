"""What a chain's body is: its steps, its layers with the ranges of their sums, and rows that it adds to others."""

from __future__ import annotations

import dataclasses

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.contraction.axes import COL
from kitsune_mlir.codegen.gpu.contraction.elementwise import Step
from kitsune_mlir.codegen.gpu.contraction.row_addition import Addition, widest
from kitsune_mlir.dialects.access import affine_maps, shape_of
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.dialects.products import yield_of
from kitsune_mlir.dialects.sizes import wide_dims
from kitsune_mlir.dialects.tile_records import Buffer, Load, TaskView

__all__ = ["Chain", "Gather", "Layer", "QUAD", "Range", "SUM", "Scatter", "addition_of", "ranges_of"]

QUAD = 4
"""Lanes of a warp that share a row of wgmma's accumulators."""
SUM = "sum"
"""The side of a weight's dimension that the product sums over."""


@dataclasses.dataclass(frozen=True, eq=False)
class Gather:
    """Rows of a table: element (row, col) is `table[index(row), col]`.

    Attributes:
        op: the generic.
        table: the tensor that rows are taken from.
        index: value of the generic's body that is the row's number in the table (index type).
    """

    op: ir.Operation
    table: Load
    index: ir.Value


@dataclasses.dataclass(frozen=True, eq=False)
class Range:
    """A part of a product's sum.

    Attributes:
        value: the tensor whose columns are summed.
        start: of the sum, where its first column stands.
        length: its columns.
    """

    value: ir.Value
    start: int
    length: int


@dataclasses.dataclass(frozen=True, eq=False)
class Layer:
    """A product: rows x cols += ranges times weight.

    Attributes:
        op: the contraction.
        ranges: what it sums over, in order.
        weight: the other factor, loaded whole.
        sides: side (COL or SUM) of each wide dimension of the weight.
        cols: its columns.
        dtype: element type of both factors, "bf16" or "f16".
    """

    op: ir.Operation
    ranges: tuple[Range, ...]
    weight: Load
    sides: tuple[str, ...]
    cols: int
    dtype: str

    @property
    def result(self) -> ir.Value:
        """The tensor of sums, f32."""
        return self.op.results[0]

    @property
    def start(self) -> ir.Value:
        """The tensor that the sums start from."""
        return self.op.operands[2]

    @property
    def depth(self) -> int:
        """Terms of a sum."""
        return sum(part.length for part in self.ranges)


@dataclasses.dataclass(frozen=True, eq=False)
class Scatter:
    """Rows of a computed tensor that are added to rows of a buffer; the fields are those of `kitsune.atomic_scatter`."""

    op: ir.Operation
    updates: ir.Value
    indices: Load
    destination: Buffer


@dataclasses.dataclass(eq=False)
class Chain:
    """A body that was understood.

    Attributes:
        task: where it comes from.
        rows: rows of a tile.
        layers: the products, in order.
        scatters: additions to rows of buffers.
        steps: by the value that each makes; products are not among them.
        sides: side of each loop, by operation.
    """

    task: TaskView
    rows: int
    layers: tuple[Layer, ...]
    scatters: tuple[Scatter, ...]
    steps: dict[ir.Value, Step]
    sides: dict[ir.Operation, tuple[str, ...]]

    def operand_sides(self, op: ir.Operation, number: int) -> tuple[str, ...]:
        """The side of each wide dimension of an operand of a generic."""
        operand = op.operands[number]
        if not isinstance(operand.type, ir.ShapedType):
            return ()
        results = affine_maps(op)[number].results
        return tuple(self._side(op, results[dim]) for dim in wide_dims(shape_of(operand)))

    def _side(self, op: ir.Operation, expression: ir.AffineExpr) -> str:
        if not isinstance(expression, ir.AffineDimExpr):
            raise MatchFailure(f"an operand is indexed by {expression}, which is no plain loop")
        return self.sides[op][expression.position]

    def gather(self, value: ir.Value) -> Gather | None:
        """`value` as rows of a table, if it is nothing else."""
        step = self.steps.get(value)
        if step is None or step.kind != "map" or len(step.op.results) != 1 or len(shape_of(value)) != 2:
            return None
        extract = yield_of(step.op).operands[0].owner
        if isinstance(extract, ir.Block) or extract.name != "tensor.extract" or len(extract.operands) != 3:
            return None
        table = self.task.load_of(extract.operands[0])
        column = extract.operands[2].owner
        if table is None or not table.whole or isinstance(column, ir.Block) or column.name != "linalg.index":
            return None
        if self.sides[step.op][ir.IntegerAttr(column.attributes["dim"]).value] != COL:
            return None
        if shape_of(extract.operands[0])[1] < shape_of(value)[1]:
            return None
        return Gather(step.op, table, extract.operands[1])


def addition_of(scatter: Scatter) -> Addition:
    """How rows are added.

    Raises:
        MatchFailure: there is no instruction for it.
    """
    dtype, cols = str(scatter.destination.element), shape_of(scatter.updates)[1]
    width = widest(dtype, cols, [scatter.destination.offset])
    if dtype not in ("bf16", "f16", "f32") or width is None or width < 2:
        raise MatchFailure(f"no wide reduction adds {dtype} to rows of {cols} elements")
    if dtype != "f32" and width == 8 and cols % (8 * QUAD):
        width = 2
    return Addition(scatter.indices, scatter.op.operands[2], scatter.destination, cols, width)


def ranges_of(chain: Chain, value: ir.Value) -> tuple[Range, ...]:
    """The tensors whose columns lie side by side in `value`, the first from column 0 on."""
    waiting, ranges, start = [value], [], 0
    while waiting:
        part = waiting.pop()
        step = chain.steps.get(part)
        if step is not None and step.kind == "concat":
            waiting += reversed(list(step.op.operands))
            continue
        ranges.append(Range(part, start, shape_of(part)[-1] if shape_of(part) else 1))
        start += ranges[-1].length
    return tuple(ranges)
