"""Results whose tiles may take the place of rows that were read before: what a tile waits for has read them.

A stage reads rows that a second one has made of the same rows of a third one's result (a chain of layers). A tile's waits for
the second one's tiles then say that nobody reads these rows of the third one's result any more, so the tile may write there: no
bytes more, and nothing more to wait for.
"""

from collections.abc import Collection, Mapping, Sequence

from torch_mlir import ir

from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.edges import edge_of, grid_of, producer_of, stage_space, trace_views
from kitsune_mlir.dialects.sizes import tensor_bytes
from kitsune_mlir.dialects.stage_graph import inputs_of, results_of, yielded

__all__ = ["rows_in_place"]

BY_ROWS = ("tile", "row")


def rows_in_place(
    stages: Sequence[ir.Operation], readers: Mapping[tuple[int, int], Collection[int]], stage: int, result: int
) -> list[tuple[int, int]]:
    """Results of earlier stages in whose place a result may be written, latest first.

    Args:
        readers: numbers of the stages that read each result, a stage's and its number.
    """
    mine = results_of(stages[stage])[result]
    if not _is_by_rows(stages[stage], result):
        return []
    found = []
    for (maker, number), users in readers.items():
        if maker >= stage or not users or max(users) >= stage:
            continue
        other = results_of(stages[maker])[number]
        alike = shape_of(other)[:1] == shape_of(mine)[:1] and tensor_bytes(other.type) == tensor_bytes(mine.type)
        if (
            alike
            and _is_by_rows(stages[maker], number)
            and all(
                _reads_rows(stages[user], stages[maker], number) and _reads_rows(stages[stage], stages[user]) for user in users
            )
        ):
            found.append((maker, number))
    return sorted(found, reverse=True)


def _is_by_rows(stage: ir.Operation, result: int) -> bool:
    """Whether tiles of a stage have rows of a result each, no row two of them."""
    grid = grid_of(stage)
    if not grid.moving or not shape_of(results_of(stage)[result]):
        return False
    made, rows = yielded(stage)[result], grid.moving[0]
    place = next(((n, i) for n, op in enumerate(grid.space.ops) for i, r in enumerate(op.results) if r == made), None)
    return (
        place is not None and grid.space.result_dims(*place)[:1] == [rows] and not grid.space.dims[rows].size % grid.tile[rows]
    )


def _reads_rows(stage: ir.Operation, maker: ir.Operation, result: int | None = None) -> bool:
    """Whether a stage reads a result of `maker` (any, if not said), and each of its tiles the rows that it has itself."""
    space, grid, found = stage_space(stage), grid_of(stage), []
    for value in inputs_of(stage):
        source, _ = trace_views(value)
        producer, number = producer_of(source)
        if producer is None or producer != maker or result not in (None, number):
            continue
        edge = edge_of(stage, space, value)
        rows = grid.moving[0] if grid.moving else -1
        by_rows = edge is not None and edge.policy in BY_ROWS and edge.dim == rows and source == value
        found.append(by_rows and _is_by_rows(maker, number) and not space.dims[rows].size % grid.tile[rows])
    # Where any of what is read says so, a tile waits for these tiles; where all does, it reads no other rows.
    return bool(found) and (any(found) if result is None else all(found))
