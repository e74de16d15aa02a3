"""The end of sums over rows: each of the threads that share a vector of columns has one of its columns.

Threads go over the rows with vectors of up to 16 columns, so that memory is read by wide accesses. What follows the sums (an
optimizer's update of a bias) would be code for all 16 in each thread, of which one thread's counts. Instead a thread adds up
what the others have of a single column, and does what follows for that: a sum's code is a third as long, and has a sixteenth of
the roots and quotients one after the other.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence

from kitsune_mlir.codegen.gpu.emit.control_flow import if_
from kitsune_mlir.codegen.gpu.emit.memory import offset
from kitsune_mlir.codegen.gpu.emit.value import Value
from kitsune_mlir.codegen.gpu.engines.simt.affine_index import Atom, Linear, add, at, emit
from kitsune_mlir.codegen.gpu.engines.simt.cached import Kept
from kitsune_mlir.codegen.gpu.engines.simt.cluster_rows import Cluster
from kitsune_mlir.codegen.gpu.engines.simt.evaluate import Evaluator
from kitsune_mlir.codegen.gpu.engines.simt.exchange import Partial, Sharing
from kitsune_mlir.codegen.gpu.engines.simt.online_softmax import Rows, SoftmaxRows
from kitsune_mlir.codegen.gpu.engines.simt.split_rows import Piece
from kitsune_mlir.codegen.gpu.interface.context import TileContext

__all__ = ["SingleColumns"]


class SingleColumns(SoftmaxRows):
    """What `simt.rows` does of columns one by one; the attributes and abstract methods are those of its emitter."""

    tile: TileContext
    piece: Piece | None
    probe: bool
    cluster: Cluster | None
    sharing: Sharing
    sharer: Atom
    spans: list[tuple[int, int]]
    sync: Callable[[], None]

    def _looped(self, number: int, rows: Rows) -> list[list[Partial]]:
        raise NotImplementedError

    def _give(self, number: int, rows: Rows, flat: list[Partial], counts: list[int]) -> None:
        raise NotImplementedError

    def _store_narrow(self, rows: Rows, writer: Value | None = None) -> None:
        raise NotImplementedError

    def singly(self, kept: Kept | None) -> bool:
        """Whether threads have a column each at the end."""
        schedule, space = self.schedule, self.space
        vectors = 1 < schedule.width <= schedule.slow and schedule.unroll == 1 and schedule.parts > 1
        narrow = not (space.row_major or space.full or schedule.resident) and len(self.levels) == 1
        return vectors and narrow and not (self.probe or self.cluster or kept)

    def _add_singly(self, rows: Rows) -> None:
        """Go over the columns of the space, or a piece of them, and store."""
        ((row, inside),) = rows
        width, parts = self.schedule.width, self._looped(0, rows)
        combiners = [c for c, items in zip(self._combiners(0), parts, strict=True) for _ in items]
        flat = [partial for items in parts for partial in items]
        mine, element = self.sharer.value < width, self.sharer.value % width
        place = add(at(row, 0), Linear.of(Atom(element, 1, width)))
        assert isinstance(place, Linear)
        scratch = offset(self.tile.task.shared, self.schedule.scratch + self.spans[0][0])

        def added(partials: Sequence[Partial]) -> list[Partial]:
            return self.sharing.reduce_single(combiners, partials, scratch, self.sync, element, width)

        def write(partials: Sequence[Partial]) -> None:
            single = copy.copy(self)
            single.schedule = dataclasses.replace(self.schedule, width=1)
            single.evaluator = Evaluator(self.graph, self.tile, 1, self.space.shared)
            single.points = copy.copy(self.points)
            single.points.evaluator = single.evaluator
            with single.evaluator.scope():
                single._give(0, [(place, inside)], added(partials), [1] * len(parts))
                single._store_narrow([(place, inside)], mine)
            self.sync()  # what comes next uses the scratch memory again

        if (piece := self.piece) is None:
            write(flat)
            return
        every = [emit(at(row, e)) for e in range(width)]

        def finish() -> None:
            with self.evaluator.scope():
                write(piece.collect(combiners, every, flat, self.sharer.value, self.schedule.slow, each=True))

        if_(piece.last, finish, lambda: piece.hand_over(mine, [emit(place)], added(flat)))
