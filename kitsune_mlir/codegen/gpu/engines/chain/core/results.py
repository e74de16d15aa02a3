"""Results of a chain: through swizzled shared memory and TMA where memory allows it, else from the threads' registers."""

from __future__ import annotations

import dataclasses
import functools

from kitsune_mlir.codegen.gpu.contraction.axes import COL, ROW
from kitsune_mlir.codegen.gpu.emit.control_flow import if_, if_all
from kitsune_mlir.codegen.gpu.emit.memory import offset, store
from kitsune_mlir.codegen.gpu.emit.value import Value, i32, i64, vector
from kitsune_mlir.codegen.gpu.emit.vectors import dtype_bytes, store_elements
from kitsune_mlir.codegen.gpu.engines.chain.core.body import QUAD
from kitsune_mlir.codegen.gpu.engines.chain.core.evaluate import Evaluator
from kitsune_mlir.codegen.gpu.engines.chain.core.fragment_index import FragmentIndex
from kitsune_mlir.codegen.gpu.engines.chain.core.panels import sides_of
from kitsune_mlir.codegen.gpu.engines.chain.core.records import ChainPlan, Output
from kitsune_mlir.codegen.gpu.interface.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.interface.window import Window
from kitsune_mlir.codegen.gpu.sm90 import tma
from kitsune_mlir.codegen.gpu.sm90.ldmatrix import store_matrices
from kitsune_mlir.codegen.gpu.sm90.mbarrier import NamedBarrier, fence_async_shared
from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.tile_records import Store

__all__ = ["Storer", "store_number", "store_piece"]


def store_piece(record: Store, evaluator: Evaluator, tile: TileContext, place: FragmentIndex) -> None:
    """Store the 16 bytes of a result that the thread has of the 32 columns from block `place.block` on."""
    memory, window = evaluator.memory, Window.of(record, sides_of(record.tensor))
    words = vector(evaluator.piece(record.tensor, place))
    pointer = offset(window.start(tile), i64(memory.row(place)) * (window.stride(ROW) * window.bytes))
    write = functools.partial(store, words, offset(pointer, memory.piece_col(place) * window.bytes), 16)
    if_all([memory.row_exists(place)], write)


def store_number(record: Store, evaluator: Evaluator, tile: TileContext, place: FragmentIndex) -> None:
    """Store a tensor's number of the thread's row: the first of the lanes that share the row does."""
    memory, window = evaluator.memory, Window.of(record, sides_of(record.tensor))
    lanes = evaluator.tensor(record.tensor, dataclasses.replace(place, block=0))
    pointer = offset(window.start(tile), i64(memory.row(place)) * (window.stride(ROW) * window.bytes))
    write = functools.partial(store_elements, [lanes.at(0)], pointer, window.dtype, window.bytes)
    if_all([(memory.lane & (memory.across - 1)) == 0, memory.row_exists(place)], write)


class Storer:
    """Writes results for one warpgroup and tile.

    Args:
        plan: the decisions.
        task, tile: where it runs.
        thread: index of the thread in its warpgroup.
        group: number of the warpgroup.
        barrier: over the warpgroup.

    Attributes:
        pieces: how many panels of results of the tile have gone through staging space.
    """

    def __init__(
        self, plan: ChainPlan, task: TaskContext, tile: TileContext, thread: Value, group: Value, barrier: NamedBarrier
    ):
        self.plan, self.task, self.tile, self.pieces = plan, task, tile, 0
        self.thread, self.group, self.barrier = thread, group, barrier

    def store(self, output: Output, evaluator: Evaluator) -> None:
        """Write one result."""
        if output.tile is not None:
            self._by_tma(output, evaluator)
        elif output.wide:
            self._by_pieces(output, evaluator)
        else:
            self._by_threads(output, evaluator)

    def _by_tma(self, output: Output, evaluator: Evaluator) -> None:
        plan, tile, value = self.plan, output.tile, output.store.tensor
        map_ = output.map
        assert tile is not None and map_ is not None
        cols = shape_of(value)[1]
        places = self.group * plan.staging_bytes + plan.staging
        size, own = plan.staging_bytes // plan.staged, self.barrier
        lane = self.thread & 31
        row = (self.thread // 32 << 4) + (lane & 15)
        elected = self.thread == 0
        window = Window.of(
            output.store, [side for side, extent in zip((ROW, COL), shape_of(value), strict=True) if extent != 1]
        )
        start = next((self.tile.index(dim.start) for dim in window.dims if dim.side == ROW), i32(0))
        for first in range(0, cols, tile.cols):
            # A tile's first panel waits for all of the tile before, whose last may lie anywhere.
            pending = plan.staged - 1 if self.pieces else 0
            space = offset(self.task.shared, places + self.pieces % plan.staged * size)
            self.pieces += 1
            if_(elected, lambda pending=pending: tma.wait(pending, read=True))
            own.sync()
            for col in range(first, min(first + tile.cols, -(-cols // 16) * 16), 16):
                words = [self._word(evaluator, value, h, col // 8 + b, cols) for b in range(2) for h in range(2)]
                store_matrices(offset(space, tile.offset(row, (lane >> 4 << 3) + (col - first))), words)
            fence_async_shared()
            own.sync()

            def send(first: int = first, space: Value = space) -> None:
                place = [start + self.group * plan.group_rows, first]
                tma.store_tile(self.task.tensor_map(map_), space, place)
                tma.commit()

            if_(elected, send)

    @staticmethod
    def _word(evaluator: Evaluator, value, half: int, block: int, cols: int) -> Value:
        return evaluator.tensor(value, FragmentIndex(half, block)).word if 8 * block < cols else i32(0)

    def _by_pieces(self, output: Output, evaluator: Evaluator) -> None:
        blocks = shape_of(output.store.tensor)[1] // 8
        for half in range(2):
            for block in range(0, blocks, QUAD):
                store_piece(output.store, evaluator, self.tile, FragmentIndex(half, block))

    def _by_threads(self, output: Output, evaluator: Evaluator) -> None:
        memory, value = evaluator.memory, output.store.tensor
        shape = shape_of(value)
        window = Window.of(output.store, sides_of(value))
        start = window.start(self.tile)
        cols = shape[1] if len(shape) == 2 else 1
        size, dtype, stride = dtype_bytes(window.dtype), window.dtype, window.stride(COL)
        together = stride == 1 and cols % 2 == 0 and window.align((COL,)) >= min(16, 2 * size)
        for place in evaluator.places(value):
            lanes, col = evaluator.tensor(value, place), memory.col(place)
            pointer = offset(start, i64(memory.row(place)) * (window.stride(ROW) * size))
            exists = memory.row_exists(place)
            for lane in (0,) if together else (0, 1):
                if cols == 1 and lane:
                    continue
                inside = col + lane < cols if 8 * place.block + 8 > cols else None
                at = offset(pointer, i64(col + lane) * (stride * size)) if cols > 1 else pointer
                items = [lanes.at(0), lanes.at(1)] if together else [lanes.at(lane)]
                if_all([inside, exists], functools.partial(store_elements, items, at, dtype, len(items) * size))
