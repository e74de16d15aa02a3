"""The order in which a task's tiles are walked: in groups, so that blocks that run side by side share operands in L2."""

from __future__ import annotations

from kitsune_mlir.codegen.gpu.emit.value import Value, minimum, select
from kitsune_mlir.codegen.gpu.interface.context import TileContext

__all__ = ["ordered"]

GROUP_M = 16
"""Rows of tiles that are walked column by column: 16 x 8 tiles of 128 x 256 are one wave of 132 blocks."""


def ordered(tile: TileContext) -> TileContext:
    """Another tile of the same task: a permutation of the numbers, of rows and columns of tiles.

    Waits are for earlier tasks only, so the order inside a task is free, but where others run beside it (`TaskView.ordered`).
    A task that waits for another product's rows has them group by group, as that product makes them.
    """
    wide = [extent for extent in tile.task.view.grid if extent != 1]
    if len(wide) < 2 or tile.task.view.ordered:
        return tile
    if tile.task.end is None:
        # Tiles of a cluster that are beside each other along the last dimension move as one.
        beside = tile.task.plan.beside if tile.task.plan.across else 1
        number = _grouped(tile.number // beside if beside > 1 else tile.number, wide[-2], wide[-1] // beside)
        number = number * beside + tile.number % beside if beside > 1 else number
    else:  # those that are done, the first ones of a grid whose first dimension is rows
        number = _grouped_to(tile.task.end // wide[1], tile.number, wide[1]) if len(wide) == 2 else tile.number
    moved = TileContext(tile.task, number, tile.turn)
    moved.rank = tile.rank
    return moved


def _grouped(number: Value, rows: int, cols: int) -> Value:
    """Row-major number of the tile at place `number` of the walk: groups of `GROUP_M` rows, each column by column."""
    area = rows * cols
    plane, number = number // area * area, number % area
    if rows <= GROUP_M:
        return plane + number % rows * cols + number // rows
    size = GROUP_M * cols
    group, inside = number // size, number % size
    row, col = inside % GROUP_M, inside // GROUP_M
    if rows % GROUP_M:  # the last group has fewer rows
        last = group == rows // GROUP_M
        row = select(last, inside % (rows % GROUP_M), row)
        col = select(last, inside // (rows % GROUP_M), col)
    return plane + (group * GROUP_M + row) * cols + col


def _grouped_to(rows: Value, number: Value, cols: int) -> Value:
    """The same of as many rows as are known when the kernel runs, all in one plane."""
    group, inside = number // (GROUP_M * cols), number % (GROUP_M * cols)
    height = minimum(rows - group * GROUP_M, GROUP_M)
    return (group * GROUP_M + inside % height) * cols + inside // height
