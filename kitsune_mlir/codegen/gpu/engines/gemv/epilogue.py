"""From partial sums in shared memory to results: warps' parts are added in a fixed order, then element-wise steps, then stores.

One thread makes one element of the tile, with the element-wise steps evaluated on scalars; neighbouring threads have
neighbouring columns. What these steps read of weights, biases say, is asked for before the pass is multiplied: of short sums
a pass takes no longer than one such read, and a block would wait for it once a pass.
"""

from __future__ import annotations

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.contraction.axes import COL, ROW
from kitsune_mlir.codegen.gpu.contraction.evaluate import Evaluator, Sides
from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_
from kitsune_mlir.codegen.gpu.emit.memory import load, offset
from kitsune_mlir.codegen.gpu.emit.reduce import over_registers
from kitsune_mlir.codegen.gpu.emit.value import Value, i32, i64, minimum
from kitsune_mlir.codegen.gpu.emit.vectors import load_elements, store_elements
from kitsune_mlir.codegen.gpu.engines.gemv.plan import CONSUMERS, GemvPlan
from kitsune_mlir.codegen.gpu.engines.gemv.producer import Stages
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.codegen.gpu.interface.window import Window
from kitsune_mlir.codegen.gpu.sm90.mbarrier import NamedBarrier
from kitsune_mlir.dialects.tile_records import Load

__all__ = ["MULTIPLIERS", "read_ahead", "store_pass"]

MULTIPLIERS = NamedBarrier(1, 32 * CONSUMERS)
"""The warps that multiply, without the one that loads."""


def read_ahead(stages: Stages, tile: TileContext, number: Value) -> Element | None:
    """The element of pass `number` that the calling thread will store, with what its steps read of weights on its way; None
    where threads have several."""
    geometry = stages.plan.geometry
    count = geometry.rows * geometry.pass_cols
    if count > 32 * CONSUMERS or geometry.rows > geometry.sum_rows:
        return None
    index = minimum(stages.task.thread, count - 1)
    col = minimum(number * geometry.pass_cols + index % geometry.pass_cols, geometry.cols - 1)
    element = Element(stages.plan, tile, index // geometry.pass_cols, col, {})
    element.read_ahead(None, lambda load, sides: Window.of(load, sides).constant)
    return element


def store_pass(stages: Stages, tile: TileContext, number: Value, first_row: int, ahead: Element | None = None) -> None:
    """Finish and store the elements of pass `number` whose partial sums, of rows from `first_row` on, are in shared memory;
    `ahead` as of `read_ahead`."""
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
            one = ahead or Element(stages.plan, tile, row + first_row, col, {})
            one.totals.update(sums)
            one.store()

        if geometry.cols % geometry.pass_cols == 0:
            emit()
        else:
            if_(col < geometry.cols, emit)

    for_(thread, rows * geometry.pass_cols, 32 * CONSUMERS, element)


class Element(Evaluator[None]):
    """Evaluates and stores the results of one element of the tile.

    Args:
        plan: what was decided.
        tile: the tile.
        row, col: the element's place in the tile, i32.
        totals: the products' sums over `depth`, by the products' results.
    """

    def __init__(self, plan: GemvPlan, tile: TileContext, row: Value, col: Value, totals: dict[ir.Value, Value]):
        super().__init__(plan.pattern, tile, [product.op for product in plan.pattern.products])
        self.at, self.totals = {ROW: row, COL: col}, totals

    def store(self) -> None:
        """Write every result of the task."""
        for store in self.body.task.stores:
            window = Window.of(store, self.body.value_sides(store.tensor))
            store_elements(self.evaluate(store.tensor, None), self._pointer(window), window.dtype)

    def where(self, sides: Sides, place: None) -> None:
        return None

    def distinct(self, sides: Sides) -> list[int]:
        return [0]

    def sums(self, product: ir.Operation, place: None) -> list[Value]:
        return [self.totals[product.results[0]]]

    def read(self, load: Load, sides: Sides, place: None) -> list[Value]:
        window = Window.of(load, sides)
        return load_elements(self._pointer(window), window.dtype, 1, constant=window.constant)

    def index(self, side: str, place: None, element: int) -> Value:
        return self.at.get(side, i32(0))

    def _pointer(self, window: Window) -> Value:
        place = window.start(self.tile)
        for side, at in self.at.items():
            place = offset(place, i64(at) * (window.stride(side) * window.bytes))
        return place
