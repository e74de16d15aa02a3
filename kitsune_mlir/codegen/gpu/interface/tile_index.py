"""Where a tile is: its coordinates in the task's grid, and the offsets that are computed from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.operation import clone
from kitsune_mlir.codegen.gpu.emit.value import Value, cast, constant, i32
from kitsune_mlir.dialects.tile_records import Buffer, Offset, TaskView
from kitsune_mlir.errors import UnsupportedError

__all__ = ["TileIndex", "delinearize"]


class TileIndex:
    """A tile's place in its task's grid.

    Attributes:
        number: of the tile, in row-major order of the grid.
        rank: the place in the order in which tiles are done, where an engine has another order.
        coordinates: i32, one for each dimension of the grid.
        pointer: the pointer to a buffer's first element in global memory.
    """

    def __init__(self, view: TaskView, number: Value, pointer: Callable[[Buffer], Value]):
        self.number = number
        self.rank = number
        self.pointer = pointer
        self.coordinates = delinearize(number, view.grid)
        self._values: dict[ir.Value, Value] = dict(zip(view.coordinates, self.coordinates, strict=True))

    def index(self, value: Offset) -> Value:
        """The i32 value of an offset: an int, or an `index` or integer value computed in the task from its coordinates.

        Raises:
            UnsupportedError: the value does not come from scalar `arith` operations.
        """
        if isinstance(value, int):
            return i32(value)
        if value not in self._values:
            self._values[value] = self._clone(value)
        return self._values[value]

    def _clone(self, value: ir.Value) -> Value:
        """Emit the operation that defines `value` again, on i32: no extent of a tensor comes near 2^31."""
        op = value.owner
        if isinstance(op, ir.Block) or not op.name.startswith("arith.") or len(op.results) != 1:
            what = "a block argument" if isinstance(op, ir.Block) else op.name
            raise UnsupportedError(what, "offsets and slots are arith on the tile's coordinates", None, str(value.location))
        if op.name == "arith.constant":
            number = ir.IntegerAttr(op.attributes["value"]).value
            return constant(number, "i1" if str(value.type) == "i1" else "i32")
        operands = [self.index(operand) for operand in op.operands]
        if op.name in ("arith.index_cast", "arith.index_castui"):
            return cast(operands[0], "i32", signed=op.name == "arith.index_cast")
        return clone(op, operands, ["i1" if str(value.type) == "i1" else "i32"])[0]


def delinearize(number: Value, grid: Sequence[int]) -> tuple[Value, ...]:
    """Row-major coordinates of the element of that number in a grid: `number` is below its size."""
    coordinates: list[Value] = []
    for extent in reversed(grid[1:]):
        coordinates.append(number % extent if extent > 1 else i32(0))
        number = number // extent if extent > 1 else number
    return (number, *reversed(coordinates))
