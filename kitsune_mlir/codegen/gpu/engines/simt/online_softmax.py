"""A row's softmax in one pass over its columns: sums are of what is less than the largest element so far, and follow it.

Where a thread's part of a row is gone over in a loop, its elements come once. Where they stay in registers, few of their
values are alive at a time, and special functions work beside other arithmetic: 64 registers a thread are enough for a row
of 1,024 columns in a warp, so that a multiprocessor has 32 of these at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.approx_math import exp_of_change
from kitsune_mlir.codegen.gpu.emit.control_flow import for_
from kitsune_mlir.codegen.gpu.emit.value import Value, constant
from kitsune_mlir.codegen.gpu.engines.simt.affine_index import Linear
from kitsune_mlir.codegen.gpu.engines.simt.evaluate import Evaluator
from kitsune_mlir.codegen.gpu.engines.simt.exchange import Combiner, Partial
from kitsune_mlir.codegen.gpu.engines.simt.graph import Graph
from kitsune_mlir.codegen.gpu.engines.simt.points import Column, Points
from kitsune_mlir.codegen.gpu.engines.simt.row_space import RowSpace
from kitsune_mlir.codegen.gpu.engines.simt.schedule import RowSchedule

__all__ = ["SoftmaxRows", "early_values"]

LOWEST = -3.4028234663852886e38
"""The least finite f32."""

Rows = Sequence[tuple[Linear, Value | None]]


class SoftmaxRows:
    """What `simt.rows` does of a softmax; the attributes and abstract methods are those of its emitter."""

    schedule: RowSchedule
    graph: Graph
    space: RowSpace
    evaluator: Evaluator
    points: Points
    levels: list[list[ir.Operation]]
    arrive: Callable[[Value], None] | None

    def _fold(self, number: int, rows: Rows, columns: Sequence[Column]) -> list[list[Partial]]:
        raise NotImplementedError

    def _combiners(self, number: int) -> list[Combiner]:
        raise NotImplementedError

    def _finish(self, number: int, rows: Rows, parts: list[list[Partial]]) -> None:
        raise NotImplementedError

    def _follow(self, old: Sequence[Value], new: Sequence[Value], values: Sequence[Value]) -> list[Value]:
        """Sums of what is less than `old`, as those of what is less than `new`."""
        factors = [exp_of_change(a, b) for a, b in zip(old, new, strict=True)]
        return [value * factors[place % len(factors)] for place, value in enumerate(values)]

    def _step(
        self, number: int, rows: Rows, columns: Sequence[Column], old: Sequence[Value]
    ) -> tuple[list[Value], list[Value]]:
        """The largest elements so far, and the sums over some columns; `old` are the largest ones before."""
        (largest,), (combiner,) = self.levels[number], self._combiners(number)
        (found,) = self._fold(number, rows, columns)
        # Of nothing but minus infinity, nothing is less.
        new = [combiner((a,), b)[0] for a, b in zip(old or [constant(LOWEST, "f32")] * len(found), found, strict=True)]
        for (row, _), value in zip(rows, new, strict=True):
            coordinates = self.space.coordinates(largest.results[0], self.points.where(row, None))
            self.evaluator.define(largest.results[0], coordinates, [value])
        return new, [partial[0] for items in self._fold(number + 1, rows, columns) for partial in items]

    def _maximum_and_sums(self, number: int, rows: Rows) -> None:
        """Both levels of a softmax in a loop over the columns."""
        count = self.schedule.values

        def step(first: Value, *carried: Value) -> list[Value]:
            if number == 0 and self.arrive is not None:
                self.arrive(first)
            old, before = carried[:count], carried[count:]
            with self.evaluator.scope():
                new, parts = self._step(number, rows, self.points.columns_from(first), old)
            return [*new, *(a + b for a, b in zip(self._follow(old, new, before), parts, strict=True))]

        sums = len(self.levels[number + 1])
        neutral = [constant(LOWEST, "f32")] * count + [constant(0.0, "f32")] * (count * sums)
        found = for_(0, self.points.padded_steps, self.schedule.steps, step, neutral)
        self._join(number, rows, found[:count], found[count:])

    def _running(self, number: int, rows: Rows, columns: Sequence[Column]) -> None:
        """Both levels of a softmax, column step by column step, of elements that stay in registers."""
        (largest,) = self.levels[number]
        level = self.graph.level(largest.results[0])
        own: list[Value] = []
        values: list[Value] = []
        for column in columns:
            new, parts = self._step(number, rows, [column], own)
            values = [a + b for a, b in zip(self._follow(own, new, values), parts, strict=True)] if own else parts
            own = new
            # What was made of the largest element so far is something else from now on.
            self.evaluator.forget(level)
            self._make_early(rows, column, level)
        self._join(number, rows, own, values)

    def _join(self, number: int, rows: Rows, own: Sequence[Value], values: Sequence[Value]) -> None:
        """Combine what threads have of a row."""
        (largest,), count = self.levels[number], self.schedule.values
        self._finish(number, rows, [[(value,) for value in own]])
        whole = []
        for row, _ in rows:
            coordinates = self.space.coordinates(largest.results[0], self.points.where(row, None))
            whole += self.evaluator.tensor(largest.results[0], coordinates)
        scaled = self._follow(own, whole, values)
        sums = len(self.levels[number + 1])
        self._finish(number + 1, rows, [[(v,) for v in scaled[n * count : (n + 1) * count]] for n in range(sums)])

    def _make_early(self, rows: Rows, column: Column, level: int) -> None:
        """Of what is stored at a column, make what does not wait for reductions from `level` on: packed, it needs less room."""
        for row, _ in rows:
            where = self.points.where(row, column.index)
            for store in self.space.full:
                op = store.tensor.owner
                if isinstance(op, ir.Block) or op.name != "linalg.generic":
                    continue
                loops = self.evaluator.loops_of(op.operation, store.tensor, self.space.coordinates(store.tensor, where))
                self.evaluator.make_early(op.operation, loops, early_values(self.graph, op.operation, level))


def early_values(graph: Graph, op: ir.Operation, level: int) -> list[ir.Value]:
    """Values of a body that are rounded to bf16 before they meet what depends on reductions of `level` or later ones."""
    block = op.regions[0].blocks[0]
    late = {argument for argument, operand in zip(block.arguments, op.operands, strict=True) if graph.level(operand) >= level}
    found: dict[ir.Value, None] = {}
    for inner in (o.operation for o in block.operations):
        if not any(operand in late for operand in inner.operands):
            continue
        late.update(inner.results)
        for operand in inner.operands:
            value = operand
            if not isinstance(value.owner, ir.Block) and value.owner.name == "arith.extf":
                value = value.owner.operands[0]
            rounded = not isinstance(value.owner, ir.Block) and value.owner.name == "arith.truncf" and str(value.type) == "bf16"
            if operand not in late and rounded:
                found[value] = None
    return list(found)
