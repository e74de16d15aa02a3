"""The schedule of maps: every thread makes vectors of the results' points, several in flight, nothing is shared."""

from __future__ import annotations

import dataclasses
import math

from kitsune_mlir.codegen.gpu.builder import for_, if_
from kitsune_mlir.codegen.gpu.context import TileContext
from kitsune_mlir.codegen.gpu.simt_eval import Evaluator
from kitsune_mlir.codegen.gpu.simt_graph import Graph
from kitsune_mlir.codegen.gpu.simt_index import Atom, Linear, add, clamp, emit
from kitsune_mlir.codegen.gpu.simt_memory import Access
from kitsune_mlir.codegen.gpu.tasks import Store
from kitsune_mlir.codegen.gpu.value import Value
from kitsune_mlir.dialects.access import shape_of

__all__ = ["MapSchedule", "emit_maps"]


@dataclasses.dataclass(frozen=True)
class MapSchedule:
    """How the points of some stores, which all have the same shape, are made.

    Attributes:
        stores: the stores.
        width: points of a vector.
        unroll: vectors that a thread makes at a time.
    """

    stores: tuple[Store, ...]
    width: int
    unroll: int

    @property
    def points(self) -> int:
        return math.prod(shape_of(self.stores[0].tensor))


def emit_maps(schedule: MapSchedule, graph: Graph, tile: TileContext, probe: bool = False) -> list[Access]:
    """Emit a tile; returns what it loads and stores.

    Args:
        probe: emit one vector only, to see whether it can be done and what it costs.
    """
    width = schedule.width
    bulk = schedule.points // width * width
    accesses = _section(schedule, graph, tile, 0, bulk, width, 1 if probe else schedule.unroll)
    if bulk < schedule.points and not probe:
        _section(schedule, graph, tile, bulk, schedule.points - bulk, 1, 1)
    return accesses


def _section(
    schedule: MapSchedule, graph: Graph, tile: TileContext, start: int, count: int, width: int, unroll: int
) -> list[Access]:
    """The points [start, start + count), by vectors of `width`, which divides both."""
    threads = tile.task.threads
    stride = threads * width
    unroll = max(1, min(unroll, -(-count // stride)))
    evaluator = Evaluator(graph, tile, width)
    shape = tuple(shape_of(schedule.stores[0].tensor))
    exact = count % (stride * unroll) == 0

    def step(first: Value | int) -> None:
        """`unroll` vectors for each thread, the first of thread 0 at point `first` of the section."""
        groups = []
        thread = Linear(((Atom(tile.task.thread, 1, threads), width),))
        origin = Linear(const=first) if isinstance(first, int) else Linear.of(Atom(first, stride * unroll, count))
        for number in range(unroll):
            base = add(add(origin, thread), number * stride)
            assert isinstance(base, Linear)
            inside = None
            if not exact:
                inside = emit(base) < count
                base = clamp(base, count - width)
            point = Linear(base.terms, 1 if width > 1 else 0, base.const + start)
            groups.append((evaluator.spread(point, shape), inside))
        # All loads of all vectors come before the first store, so that they are in flight together.
        made = [[evaluator.tensor(store.tensor, where) for store in schedule.stores] for where, _ in groups]
        for (where, inside), values in zip(groups, made, strict=True):

            def write(where=where, values=values) -> None:
                for store, lanes in zip(schedule.stores, values, strict=True):
                    evaluator.store(store, where, lanes)

            if inside is None:
                write()
            else:
                with evaluator.scope():
                    if_(inside, write)

    if count <= stride * unroll:
        step(0)
    else:

        def body(first: Value) -> None:
            with evaluator.scope():
                step(first)

        for_(0, count, stride * unroll, body)
    return evaluator.memory.accesses
