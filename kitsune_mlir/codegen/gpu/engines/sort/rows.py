"""What is sorted, element by element, and what comes out of it, while a tile's code is emitted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kitsune_mlir.codegen.gpu.emit.control_flow import if_
from kitsune_mlir.codegen.gpu.emit.value import Value
from kitsune_mlir.codegen.gpu.engines.sort.match import Sort
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.codegen.gpu.interface.elements import Elements

__all__ = ["Rows"]


class Rows:
    """The rows of a tile. `where` is a row's coordinates: those of all dimensions but the sort's."""

    def __init__(self, tile: TileContext, sort: Sort):
        self.tile, self.sort = tile, sort
        self.elements = Elements(tile, sort.axis)

    def read(self, operand: int, where: Sequence[Value], place: Value) -> Value:
        """The element of an operand of the sort at a place of a row."""
        (value,) = self.elements.at(self.sort.op.operands[operand], self._at(where, place), 1)
        return value

    def write(self, where: Sequence[Value], start: Value, places: Sequence[Value], inside: Value | None = None) -> None:
        """Store what comes out from `start` on, where the row has it and it is `inside`: the elements of some places (i32)."""
        sort = self.sort
        known = {sort.op.results[r]: [self.read(r, where, place) for place in places] for r in self._used()}
        for window in self.tile.task.view.stores:
            values = self.elements.at(window.tensor, self._at(where, start), len(places), known)
            width = self.elements.width(window, len(places))
            for low in range(0, len(places), width):
                exists = start + low < sort.length
                exists = exists if inside is None else inside & exists
                self._store(window, self._at(where, start + low), values[low : low + width], exists)

    def _store(self, window, where: list[Value], values: list[Value], exists: Value) -> None:
        write: Callable[[], None] = lambda: self.elements.store(window, where, values)  # noqa: E731
        if_(exists, write)

    def _used(self) -> list[int]:
        """Numbers of the results that somebody reads."""
        return [number for number, result in enumerate(self.sort.op.results) if list(result.uses)]

    def _at(self, where: Sequence[Value], along: Value) -> list[Value]:
        return [*where[: self.sort.axis], along, *where[self.sort.axis :]]
