"""Maps that make each element from the same elements of their inputs: a tile is a span of memory, whatever its rows are.

A span begins at the multiple of a vector before the tile's own beginning, and ends before the next one's. So all accesses are
as wide as the hardware allows, also where rows have an odd length or the last tile is shifted back. The last elements of all,
if they are no whole vector, are made one by one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_
from kitsune_mlir.codegen.gpu.emit.memory import offset
from kitsune_mlir.codegen.gpu.emit.value import Value, cast, i32, minimum, select
from kitsune_mlir.codegen.gpu.engines.simt.affine_index import Atom, Linear, emit
from kitsune_mlir.codegen.gpu.engines.simt.cached import Windows
from kitsune_mlir.codegen.gpu.engines.simt.evaluate import Evaluator
from kitsune_mlir.codegen.gpu.engines.simt.graph import Graph
from kitsune_mlir.codegen.gpu.engines.simt.memory import SharedWindow
from kitsune_mlir.codegen.gpu.engines.simt.staging import is_contiguous, start_of
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.dialects.access import affine_maps, iterator_kinds, shape_of
from kitsune_mlir.dialects.sizes import element_bytes
from kitsune_mlir.dialects.tile_records import Load, Store
from kitsune_mlir.dialects.verify import walk

__all__ = ["emit_flat", "is_flat"]

_SAME_EVERYWHERE = ("linalg.fill", "tensor.empty", "tensor.splat", "arith.constant")
_PLACED = ("linalg.index", "tensor.extract")


def is_flat(graph: Graph, stores: Sequence[Store]) -> bool:
    """Whether all stores are spans, and every element needs only elements at the same place of the inputs' spans.

    What other tasks make or use is left out: the elements before a tile's own may not be there yet, and its last ones are the
    next tile's.
    """
    first, task = stores[0], graph.task
    if task.waits or task.posts or any(not _alike(window, first) for window in stores):
        return False
    for load in task.loads:
        if math.prod(load.sizes) != 1 and not (load.buffer.role == "input" and _alike(load, first)):
            return False
    return all(_is_pointwise(op) for op in task.work())


def _alike(window: Load | Store, other: Store) -> bool:
    same = window.buffer.shape == other.buffer.shape and tuple(window.offsets) == tuple(other.offsets)
    return same and tuple(window.sizes) == tuple(shape_of(window.tensor)) and is_contiguous(window)


def _is_pointwise(op: ir.Operation) -> bool:
    if op.name in _SAME_EVERYWHERE or op.name.startswith("arith."):
        return True
    if op.name != "linalg.generic" or set(iterator_kinds(op)) - {"parallel"}:
        return False
    loops = len(iterator_kinds(op))
    identity = ir.AffineMap.get_identity(loops)
    if any(map_ != identity and len(map_.results) for map_ in affine_maps(op)):
        return False
    return not any(inner.name in _PLACED for inner in walk(op))


def emit_flat(stores: Sequence[Store], width: int, unroll: int, graph: Graph, tile: TileContext) -> Evaluator:
    """Emit a tile by vectors of `width` elements, `unroll` at a time; returns the evaluator, which knows what was accessed."""
    thread, threads = tile.task.thread, tile.task.threads
    points, total = math.prod(stores[0].sizes), math.prod(stores[0].buffer.shape)
    rank = len(stores[0].sizes)
    begin = emit(start_of(Evaluator(graph, tile, 1), stores[0]))
    first, end = begin & -width, begin + points
    last = end == total
    count = (select(last, end, end & -width) - first) // width
    evaluator = Evaluator(graph, tile, width, windows=_spans(graph, stores, tile, first, points + 2 * width))
    lane = 1 if width > 1 else 0

    def made(evaluator: Evaluator, point: Linear) -> tuple[tuple[Linear, ...], list]:
        where = (*(Linear() for _ in range(rank - 1)), point)
        return where, [evaluator.tensor(store.tensor, where) for store in stores]

    def write(evaluator: Evaluator, where, values) -> None:
        for store, lanes in zip(stores, values, strict=True):
            evaluator.store(store, where, lanes)

    def step(start: Value) -> None:
        with evaluator.scope():
            pending = []
            for number in range(unroll):
                vector = start + thread + number * threads
                inside = vector < count
                place = Atom(minimum(vector, count - 1), 1, points // width + 2)
                pending.append((inside, *made(evaluator, Linear(((place, width),), lane))))
            for inside, where, values in pending:
                with evaluator.scope():
                    if_(inside, lambda where=where, values=values: write(evaluator, where, values))

    for_(i32(0), count, threads * unroll, step)
    if total % width:
        rest = Evaluator(graph, tile, 1, windows=_spans(graph, stores, tile, i32(total - total % width), width))

        def tail() -> None:
            with rest.scope():
                write(rest, *made(rest, Linear.of(Atom(thread, 1, width))))

        if_(last & (thread < total % width), tail)
    return evaluator


def _spans(graph: Graph, stores: Sequence[Store], tile: TileContext, first: Value, points: int) -> Windows:
    """Windows that begin at element `first` of each buffer, a multiple of 16 bytes."""
    found: dict = {}
    for window in (*graph.task.loads, *stores):
        if math.prod(window.sizes) == 1:
            continue
        buffer, size = window.buffer, element_bytes(window.buffer.element)
        moved = cast(first, "i64") * size if buffer.bytes >= 1 << 31 else first * size
        shape = (*(1 for _ in window.sizes[1:]), points)
        span = SharedWindow(offset(tile.pointer(buffer), moved), buffer.element, shape, buffer.offset, buffer.role)
        found[window if isinstance(window, Store) else window.tensor] = span
    return found
