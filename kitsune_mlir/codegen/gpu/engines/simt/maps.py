"""The schedule of maps: every thread makes vectors of the results' points, several in flight, nothing is shared."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_
from kitsune_mlir.codegen.gpu.emit.value import Value
from kitsune_mlir.codegen.gpu.engines.simt.affine_index import Atom, Linear, add, clamp, emit
from kitsune_mlir.codegen.gpu.engines.simt.cached import Coordinates
from kitsune_mlir.codegen.gpu.engines.simt.evaluate import Evaluator
from kitsune_mlir.codegen.gpu.engines.simt.graph import Graph
from kitsune_mlir.codegen.gpu.engines.simt.linear import emit_flat
from kitsune_mlir.codegen.gpu.engines.simt.memory import Access
from kitsune_mlir.codegen.gpu.engines.simt.transpose import CrossedLoad, emit_crossed, place_crossed
from kitsune_mlir.codegen.gpu.engines.simt.updates import Update
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.tile_records import Store

__all__ = ["MapSchedule", "emit_maps", "try_maps"]


PANEL_ELEMENTS = 32
"""Elements of several panels that a thread makes before it stores them."""


@dataclasses.dataclass(frozen=True)
class MapSchedule:
    """How the points of some stores, which all have the same shape, are made.

    Attributes:
        stores: the stores, and what is put into rows.
        width: points of a vector.
        unroll: vectors that a thread makes at a time.
        crossed: loads that come through shared memory.
        flat: a tile is a span of memory (`simt.linear`).
        panels: equal parts of the last dimension, between the seams of a joined tensor: a thread makes the same place of each,
            so that it makes what several of them read once, and nothing of their neighbours.
    """

    stores: tuple[Store | Update, ...]
    width: int
    unroll: int
    crossed: tuple[CrossedLoad, ...] = ()
    flat: bool = False
    panels: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a panel."""
        shape = shape_of(self.stores[0].tensor)
        return (*shape[:-1], shape[-1] // self.panels) if shape else ()

    @property
    def points(self) -> int:
        """Of a panel."""
        return math.prod(self.shape)


def emit_maps(schedule: MapSchedule, graph: Graph, tile: TileContext) -> None:
    """Emit a tile."""
    if schedule.flat:
        emit_flat(
            [store for store in schedule.stores if isinstance(store, Store)], schedule.width, schedule.unroll, graph, tile
        )
        return
    windows = None
    if schedule.crossed:
        windows = emit_crossed(schedule.crossed, graph, tile)
        tile.task.sync()
    width = schedule.width
    bulk = schedule.points // width * width
    _section(schedule, Evaluator(graph, tile, width, windows=windows), 0, bulk, schedule.unroll)
    if bulk < schedule.points:
        _section(schedule, Evaluator(graph, tile, 1, windows=windows), bulk, schedule.points - bulk, 1)


def try_maps(schedule: MapSchedule, graph: Graph, tile: TileContext) -> tuple[list[Access], dict[ir.Value, int]]:
    """Emit one vector, to see whether it can be done; what it loads and stores, and the loads that run across their rows."""
    windows = {crossed.load.tensor: place_crossed(crossed, tile) for crossed in schedule.crossed}
    evaluator = Evaluator(graph, tile, schedule.width, windows=windows)
    _section(schedule, evaluator, 0, schedule.points // schedule.width * schedule.width, 1)
    return evaluator.memory.accesses, evaluator.crossed


def _prepared(store: Store | Update, evaluator: Evaluator, where: Coordinates) -> Callable[[], None]:
    """Make a vector of a result; what is returned writes it."""
    return store.prepared(evaluator, where) if isinstance(store, Update) else evaluator.prepared(store, where)


def _in_panel(where: Coordinates, start: int) -> Coordinates:
    """A place of the first panel in that which begins at column `start`."""
    return (*where[:-1], add(where[-1], start))


def _section(schedule: MapSchedule, evaluator: Evaluator, start: int, count: int, unroll: int) -> None:
    """The points [start, start + count), by vectors of the evaluator's width, which divides both."""
    tile, width = evaluator.tile, evaluator.width
    threads = tile.task.threads
    stride = threads * width
    unroll = max(1, min(unroll, -(-count // stride)))
    shape = schedule.shape
    exact = count % (stride * unroll) == 0

    def step(first: Value | int) -> None:
        """`unroll` vectors for each thread, the first of thread 0 at point `first` of the section."""
        groups: list[tuple[Coordinates, Value | None]] = []
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
            where = evaluator.spread(point, shape)
            groups += [(_in_panel(where, panel * shape[-1]) if panel else where, inside) for panel in range(schedule.panels)]
        # All loads of some vectors come before the first store, so that they are in flight together: of all but where a thread
        # makes many panels.
        most = max(unroll, PANEL_ELEMENTS // width)
        for first_group in range(0, len(groups), most):
            write_all(groups[first_group : first_group + most])

    def write_all(groups: list[tuple[Coordinates, Value | None]]) -> None:
        made = [[_prepared(store, evaluator, where) for store in schedule.stores] for where, _ in groups]
        for (_, inside), writes in zip(groups, made, strict=True):

            def write(writes=writes) -> None:
                for one in writes:
                    one()

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
