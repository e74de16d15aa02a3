"""Operands that the blocks of a cluster have in common: each loads a part, and TMA brings it to all of them.

Tiles beside each other have the same rows of A or the same columns of B. What L2 has to give is then that operand once for a
cluster, and not for each of its blocks: it is L2 that limits long sums, above all where rows of an operand do not begin with a
line of L2, so that each box takes two lines for one (65,536 x 1000, turned, times 65,536 x 1000 on an H200: 280 us, and 181
with 1024 columns). Blocks of a cluster have numbers that follow each other, so they do the same piece of such tiles.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from kitsune_mlir.codegen.gpu.contraction.match import Pattern
from kitsune_mlir.codegen.gpu.engines.mma.cost import LINE_BYTES, Reading
from kitsune_mlir.codegen.gpu.engines.mma.operand import Box, Operand
from kitsune_mlir.codegen.gpu.engines.mma.rasterize import GROUP_M
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions
from kitsune_mlir.codegen.gpu.interface.window import Window
from kitsune_mlir.dialects.tile_indices import TileIndices
from kitsune_mlir.dialects.tile_records import TaskView
from kitsune_mlir.machine.shared_tile import SharedTile

__all__ = ["Multicast", "lines_of", "part_of", "reading_of", "ways_of"]

ATOM_ROWS = 8
"""Rows of shared memory with which the swizzle begins anew."""


@dataclasses.dataclass(frozen=True)
class Multicast:
    """How the blocks of a cluster share an operand.

    Attributes:
        blocks: of the cluster.
        operand: the one that they have in common: A (0) or B (1).
        across: their tiles are beside each other along the last dimension of the grid, not along the one before.
    """

    blocks: int
    operand: int
    across: bool

    @property
    def mask(self) -> int:
        """All blocks of the cluster, as TMA takes them."""
        return (1 << self.blocks) - 1


def ways_of(
    pattern: Pattern,
    boxes: Sequence[Box | None] | None,
    windows: Sequence[Window],
    sizes: Sequence[int],
    options: KernelOptions,
) -> Iterator[Multicast]:
    """The ways in which a task's blocks can share an operand; none where the kernel has other tasks, too, or threads copy.

    Args:
        boxes, windows: of A and B.
        sizes: numbers of blocks of a cluster.
    """
    task = pattern.task
    if task.program_tasks > 1 or task.program_signals or task.spatial or task.ordered or options.requests > 1:
        return
    if not options.clusters or boxes is None or len(boxes) != len(windows) or len(pattern.products) > 1:
        return
    wide = [axis for axis, extent in enumerate(task.grid) if extent != 1]
    axes = [(wide[-1], True), (wide[-2], False)] if len(wide) > 1 else [(axis, False) for axis in wide]
    moved = [_moved(task, window) for window in windows]
    for axis, across in axes:
        extent = task.grid[axis]
        for operand, (mine, other) in enumerate((moved, moved[::-1])):
            if axis in mine or axis not in other:
                continue
            for blocks in sizes:
                # The order of tiles goes through groups of rows.
                whole = extent % blocks == 0 and (across or extent <= GROUP_M or GROUP_M % blocks == 0)
                box = boxes[operand]
                if whole and box is not None and part_of(box, blocks) is not None:
                    yield Multicast(blocks, operand, across)


def part_of(box: Box, blocks: int) -> Box | None:
    """What each block of a cluster loads of an operand: some of the panels, or some rows of each; None: it has none."""
    if box.panels % blocks == 0:
        return dataclasses.replace(box, together=blocks)
    *outer, rows, inner = box.map.box
    if rows % (blocks * ATOM_ROWS):
        return None
    part = dataclasses.replace(box.map, box=(*outer, rows // blocks, inner))
    return dataclasses.replace(box, map=part, together=blocks, by_rows=True)


def lines_of(readings: tuple[Reading, Reading], way: Multicast | None = None) -> int:
    """Lines of L2 that a block asks for a chunk of A and B."""
    return sum(each.lines // (way.blocks if way and way.operand == n else 1) for n, each in enumerate(readings))


def reading_of(operand: Operand, tile: SharedTile) -> Reading:
    """How L2 reads an operand of which a stage holds `tile`."""
    bytes_ = operand.window.bytes
    starts = [operand.window.buffer.offset, *(dim.stride * bytes_ for dim in operand.window.dims if dim.stride != 1)]
    return Reading(tile.bytes // LINE_BYTES, any(start % LINE_BYTES for start in starts))


def _moved(task: TaskView, window: Window) -> set[int]:
    """Dimensions of the grid along which a window moves; all, where that is not known."""
    indices = TileIndices(task.grid, task.coordinates)
    found: set[int] = set()
    for dim in window.dims:
        if isinstance(dim.start, int):
            continue
        values = indices.of(dim.start)
        if values is None:
            return set(range(len(task.grid)))
        found.update(axis for axis, extent in enumerate(values.shape) if extent > 1)
    return found
