"""From partial sums in shared memory to results: warps' parts are added in a fixed order, then element-wise steps, then stores.

One thread makes one element of the tile, with the element-wise steps evaluated on scalars; neighbouring threads have
neighbouring columns.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.contraction.axes import COL, ROW
from kitsune_mlir.codegen.gpu.contraction.elementwise import Step, is_constant
from kitsune_mlir.codegen.gpu.contraction.scalar_body import constant_of, emit_body
from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_
from kitsune_mlir.codegen.gpu.emit.memory import load, offset
from kitsune_mlir.codegen.gpu.emit.reduce import over_registers
from kitsune_mlir.codegen.gpu.emit.value import Value, i32, i64
from kitsune_mlir.codegen.gpu.emit.vectors import load_elements, store_elements
from kitsune_mlir.codegen.gpu.engines.gemv.plan import CONSUMERS, GemvPlan
from kitsune_mlir.codegen.gpu.engines.gemv.producer import Stages
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.codegen.gpu.interface.window import Window
from kitsune_mlir.codegen.gpu.sm90.mbarrier import NamedBarrier
from kitsune_mlir.dialects.tile_records import Load, Store

__all__ = ["MULTIPLIERS", "store_pass"]

MULTIPLIERS = NamedBarrier(1, 32 * CONSUMERS)
"""The warps that multiply, without the one that loads."""


def store_pass(stages: Stages, tile: TileContext, number: Value, first_row: int) -> None:
    """Finish and store the elements of pass `number` whose partial sums, of rows from `first_row` on, are in shared memory."""
    geometry, thread = stages.plan.geometry, stages.task.thread
    rows = min(geometry.sum_rows, geometry.rows - first_row)
    start = number * geometry.pass_cols

    def element(index: Value) -> None:
        inside, row = index % geometry.pass_cols, index // geometry.pass_cols
        col = start + inside

        def emit() -> None:
            sums = {}
            for place, product in enumerate(stages.plan.pattern.products):
                line = inside + place * geometry.pass_cols
                parts = []
                for copy in range(geometry.copies):
                    at = (row + copy * geometry.sum_rows) * geometry.sum_pitch + line
                    parts.append(load(offset(stages.sums, at * 4), "f32"))
                sums[product.op.results[0]] = over_registers("add", parts)
            Element(stages.plan, tile, row + first_row, col, sums).store()

        if geometry.cols % geometry.pass_cols == 0:
            emit()
        else:
            if_(col < geometry.cols, emit)

    for_(thread, rows * geometry.pass_cols, 32 * CONSUMERS, element)


class Element:
    """Evaluates and stores the results of one element of the tile.

    Args:
        plan: what was decided.
        tile: the tile.
        row, col: the element's place in the tile, i32.
        sums: the products' sums over `depth`, by the products' results.
    """

    def __init__(self, plan: GemvPlan, tile: TileContext, row: Value, col: Value, sums: dict[ir.Value, Value]):
        self.pattern, self.tile, self.row, self.col, self.sums = plan.pattern, tile, row, col, sums
        self.inits = {product.op.results[0]: product.op for product in plan.pattern.products}
        self.known: dict[ir.Value, Value] = {}

    def store(self) -> None:
        """Write every result of the task."""
        for store in self.pattern.task.stores:
            value = self._evaluate(store.tensor)
            window, place = self._address(store, self.pattern.value_sides(store.tensor))
            store_elements([value], place, window.dtype)

    def _evaluate(self, value: ir.Value) -> Value:
        if is_constant(value):
            return constant_of(value)
        if value not in self.known:
            if value in self.inits:
                self.known[value] = self._operand(self.inits[value], 2) + self.sums[value]
            else:
                step = self.pattern.steps[value]
                self.known.update(zip(step.op.results, self._step(step), strict=True))
        return self.known[value]

    def _step(self, step: Step) -> list[Value]:
        operands = {number: self._operand(step.op, number) for number in step.operands}
        if step.kind in ("alias", "fill"):
            return [operands[0]]
        elements = [operands.get(number) for number in range(len(step.op.operands))]
        return emit_body(step.op, elements, self.tile, functools.partial(self._index, step))

    def _index(self, step: Step, loop: int) -> Value:
        side = self.pattern.loop_side(step.op, loop)
        return self.row if side == ROW else self.col if side == COL else i32(0)

    def _operand(self, op: ir.Operation, number: int) -> Value:
        value = op.operands[number]
        source = self.pattern.task.load_of(value)
        if source is None:
            return self._evaluate(value)
        window, place = self._address(source, self.pattern.operand_sides(op, number))
        return load_elements(place, window.dtype, 1, constant=window.constant)[0]

    def _address(self, record: Load | Store, sides: Sequence[str]) -> tuple[Window, Value]:
        window = Window.of(record, sides)
        place = offset(window.start(self.tile), i64(self.row) * (window.stride(ROW) * window.bytes))
        return window, offset(place, i64(self.col) * (window.stride(COL) * window.bytes))
