"""Results that leave through shared memory and TMA: which of a task's stores can, and in slices of how many columns."""

from __future__ import annotations

import dataclasses

from kitsune_mlir.codegen.gpu.contraction.axes import COL, ROW
from kitsune_mlir.codegen.gpu.contraction.match import Pattern
from kitsune_mlir.codegen.gpu.interface.window import Dim, Window
from kitsune_mlir.codegen.gpu.sm90.tensor_map import TensorMap
from kitsune_mlir.dialects.sizes import HALF_TYPES
from kitsune_mlir.errors import CompileError

__all__ = ["SLICES", "SLOTS", "Result", "results_of"]

SLICES = (64, 32, 16)
"""Columns of a slice, the best first."""

SLOTS = 2
"""Slices of a warpgroup in shared memory at a time: one is written while the other is stored."""


@dataclasses.dataclass(frozen=True)
class Result:
    """A store by TMA.

    Attributes:
        number: of the store in the task.
        window: where it goes.
        map: box = 64 rows by one slice of columns.
    """

    number: int
    window: Window
    map: TensorMap


def results_of(pattern: Pattern, n: int, covered_rows: int, covered_cols: int) -> tuple[tuple[Result, ...], int]:
    """The stores of 16-bit elements that TMA can do, and the columns of a slice (of all of them).

    Args:
        n: columns of a warpgroup.
        covered_rows, covered_cols: of the tile, with what sticks out of it.
    """
    slice = next((width for width in SLICES if n % width == 0), 0)
    if not slice:
        return (), 0
    found = []
    for number, store in enumerate(pattern.task.stores):
        window = Window.of(store, pattern.value_sides(store.tensor))
        tensor_map = _map(window, covered_rows, covered_cols, slice)
        if tensor_map is not None:
            found.append(Result(number, window, tensor_map))
    return tuple(found), slice if found else 0


def _map(window: Window, covered_rows: int, covered_cols: int, slice: int) -> TensorMap | None:
    if window.dtype not in HALF_TYPES or len(window.dims) > 5:
        return None
    dims = list(window.dims)
    sides = [dim.side for dim in dims]
    if sides[-2:] != [ROW, COL] or any(side for side in sides[:-2]):
        return None
    rows, cols = dims[-2:]
    if not (_fits(rows, covered_rows) and _fits(cols, covered_cols)) or window.buffer.offset % 16:
        return None
    strides = tuple(dim.stride * window.bytes for dim in dims[:-1])
    box = (*(1 for _ in dims[:-2]), 64, slice)
    try:
        return TensorMap(window.dtype, tuple(dim.extent for dim in dims), strides, box, 2 * slice)
    except CompileError:
        return None


def _fits(dim: Dim, covered: int) -> bool:
    """Whether what sticks out of the tile is outside of the tensor, where TMA writes nothing."""
    return dim.size == covered or dim.size == dim.extent
