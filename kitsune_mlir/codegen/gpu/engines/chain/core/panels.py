"""What a chain keeps in shared memory: weights in panels, row tiles as sources of products, vectors along the columns.

A sum is cut into *panels* of up to 64 columns (128 bytes, the widest swizzle), from the start of each range on. A panel of a
weight and the same panel of its source lie in shared memory as wgmma reads them.
"""

from __future__ import annotations

import dataclasses

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.contraction.axes import COL, ROW
from kitsune_mlir.codegen.gpu.engines.chain.core.body import SUM, Chain, Gather, Layer
from kitsune_mlir.codegen.gpu.interface.window import Window
from kitsune_mlir.codegen.gpu.sm90.tensor_map import TensorMap
from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.dialects.sizes import HALF_TYPES
from kitsune_mlir.dialects.tile_records import Load, Store
from kitsune_mlir.errors import CompileError
from kitsune_mlir.machine.shared_tile import SharedTile

__all__ = [
    "Panel",
    "Source",
    "Weight",
    "WeightPanel",
    "align",
    "load_key",
    "matrix_map",
    "panels_of",
    "sides_of",
    "source_of",
    "swizzled",
    "weight_of",
]

WIDEST = 64
"""Columns of a full panel."""


def align(number: int, unit: int) -> int:
    """`number` rounded up to a multiple of `unit`."""
    return -(-number // unit) * unit


def sides_of(value: ir.Value) -> list[str]:
    """The sides of the wide dimensions of a tensor of rows, or of rows x columns."""
    return [side for side, extent in zip((ROW, COL), shape_of(value), strict=False) if extent != 1]


def load_key(record: Load | Store) -> tuple:
    """What two loads of the same elements have in common."""
    return (record.buffer.memory, record.buffer.shape, record.offsets, record.sizes)


@dataclasses.dataclass(frozen=True)
class Panel:
    """Columns [start, start + width) of a range; `width` is a multiple of 16 and may stick out of the range (zeros).

    `box` columns are in shared memory: 16, 32 or 64.
    """

    start: int
    width: int
    box: int


def panels_of(length: int) -> tuple[Panel, ...]:
    """The panels of a range of `length` columns."""
    panels = []
    for start in range(0, length, WIDEST):
        width = min(WIDEST, align(length - start, 16))
        panels.append(Panel(start, width, next(box for box in (16, 32, 64) if box >= width)))
    return tuple(panels)


def swizzled(rows: int, cols: int) -> SharedTile:
    """A tile of 16-bit elements of 16, 32 or 64 columns a panel."""
    return SharedTile(rows, cols, 2, min(128, 2 * cols))


@dataclasses.dataclass(frozen=True)
class WeightPanel:
    """A panel of a weight.

    Attributes:
        range: number of the range that it multiplies.
        panel: the columns of that range.
        first: of the sum.
        tile: its layout, cols x sum, or sum x cols if transposed.
        bytes: in shared memory, a multiple of 1024.
        map: TMA's view, or None.
    """

    range: int
    panel: Panel
    first: int
    tile: SharedTile
    bytes: int
    map: TensorMap | None


@dataclasses.dataclass(frozen=True)
class Weight:
    """The weight of a layer in panels.

    Attributes:
        layer: the layer.
        window: where it is.
        transposed: its columns, not the sum, are neighbours in memory.
        panels: in the order of the sum.
        why: the reason why TMA does not load it; "" if it does.
    """

    layer: Layer
    window: Window
    transposed: bool
    panels: tuple[WeightPanel, ...]
    why: str

    @property
    def bytes(self) -> int:
        """Shared memory of all panels."""
        return sum(panel.bytes for panel in self.panels)


def weight_of(layer: Layer) -> Weight:
    """Cut a layer's weight into panels."""
    window = Window.of(layer.weight, layer.sides)
    transposed = window.stride(COL) == 1 and window.stride(SUM) != 1
    cols, panels, why = align(layer.cols, 8), [], ""
    for number, part in enumerate(layer.ranges):
        for panel in panels_of(part.length):
            if transposed:
                across = min(WIDEST, next(box for box in (16, 32, 64) if box >= min(cols, WIDEST)))
                tile = SharedTile(panel.width, align(cols, across), 2, 2 * across)
                box = (panel.width, across)
            else:
                tile, box = swizzled(cols, panel.box), (min(cols, 256), panel.box)
            map_ = _weight_map(window, transposed, box, tile.swizzle)
            first = (part.start + panel.start) * window.bytes
            if not transposed and first % 16:  # a box that begins there is an illegal instruction
                map_ = f"a range that starts at {first} bytes of a row, no multiple of 16"
            if isinstance(map_, str):
                why, map_ = map_, None
            panels.append(WeightPanel(number, panel, part.start + panel.start, tile, align(tile.bytes, 1024), map_))
    return Weight(layer, window, transposed, tuple(panels), why)


def _weight_map(window: Window, transposed: bool, box: tuple[int, int], swizzle: int) -> TensorMap | str:
    sides = (SUM, COL) if transposed else (COL, SUM)
    return matrix_map(window, sides, box, swizzle)


def matrix_map(window: Window, sides: tuple[str, str], box: tuple[int, int], swizzle: int) -> TensorMap | str:
    """TMA's view of a window as a matrix whose sides have the names `sides`, rows first; a reason where there is none.

    Starts along the second side must be constants: the view begins there and ends with the window.
    """
    if any(dim.side not in sides and dim.size != dim.extent for dim in window.dims):
        return "it is a part of more than two dimensions"
    if len(window.dims) > 2:
        return f"it has {len(window.dims)} dimensions"
    outer, inner = ([dim for dim in window.dims if dim.side == side] for side in sides)
    if inner and inner[0].stride != 1:
        return "neighbours along its rows are not neighbours in memory"
    if inner and not isinstance(inner[0].start, int):
        return "its first column is not constant"
    stride = outer[0].stride * window.bytes if outer else 16
    start = window.buffer.offset + (inner[0].start * window.bytes if inner else 0)  # type: ignore[operator]
    if stride % 16 or start % 16:
        return f"a stride or start of {stride if stride % 16 else start} bytes is no multiple of 16"
    shape = (outer[0].extent if outer else 1, inner[0].size if inner else 1)
    try:
        return TensorMap(window.dtype, shape, (stride,), box, swizzle)
    except CompileError as error:
        return str(error)


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """Rows of the tile that come from memory into shared memory, where products (and element-wise steps) read them.

    Attributes:
        values: the tensors that it holds (several loads of the same elements are one source).
        load: the rows, or for a gather the table.
        window: of `load`; along ROW and COL (a table: its rows are ROW).
        gather: how rows are chosen, or None for the tile's own rows.
        length: columns.
        panels: of those columns.
        maps: TMA's view for each panel; empty if threads copy.
        why: the reason for that.
    """

    values: tuple[ir.Value, ...]
    load: Load
    window: Window
    gather: Gather | None
    length: int
    panels: tuple[Panel, ...]
    maps: tuple[TensorMap, ...]
    why: str

    def bytes(self, rows: int) -> int:
        """Shared memory for `rows` rows."""
        return sum(self.panel_bytes(panel, rows) for panel in self.panels)

    def panel_bytes(self, panel: Panel, rows: int) -> int:
        """Shared memory of one panel, a multiple of 1024."""
        return align(rows * panel.box * 2, 1024)

    def panel_offset(self, number: int, rows: int) -> int:
        """Bytes from the source's start to panel `number`."""
        return sum(self.panel_bytes(panel, rows) for panel in self.panels[:number])


def source_of(chain: Chain, value: ir.Value, rows: int) -> Source | None:
    """The source that `value` is, for a warpgroup of `rows` rows; None if it is computed in registers.

    Raises:
        MatchFailure: a product's factor is not of 16 bits.
    """
    gather, load = chain.gather(value), chain.task.load_of(value)
    if load is None and gather is None:
        return None
    length = shape_of(value)[1]
    panels = panels_of(length)
    if gather is not None:
        window = Window.of(gather.table, sides_of(gather.table.tensor))
        return Source((value,), gather.table, window, gather, length, panels, (), "its rows are gathered")
    assert load is not None
    window = Window.of(load, sides_of(value))
    if str(load.buffer.element) not in HALF_TYPES:
        raise MatchFailure("a factor of a product is not of 16 bits")
    maps = []
    for panel in panels:
        map_ = matrix_map(window, (ROW, COL), (min(rows, 256), panel.box), 2 * panel.box)
        if isinstance(map_, str):
            return Source((value,), load, window, None, length, panels, (), map_)
        maps.append(map_)
    return Source((value,), load, window, None, length, panels, tuple(maps), "")
