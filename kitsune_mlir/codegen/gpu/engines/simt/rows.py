"""The schedule of rows: threads share the rows of a tile, reduce over them together, and keep values in registers between.

Threads lie in two directions. `fast` neighbouring threads share the direction that is contiguous in memory, by vectors; the
other direction is dealt out to groups of `fast` threads. Where columns are contiguous, rows stay inside a warp if `fast` is
32 or less. Where rows are contiguous (a sum over the first dimension), the vectors hold different rows.

Reductions that need the results of others come one level later. If a thread's part of a row fits its registers, all is
evaluated once (*resident*); otherwise each level goes over the columns in a loop, and reads them again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_
from kitsune_mlir.codegen.gpu.emit.inline_ptx import fresh
from kitsune_mlir.codegen.gpu.emit.memory import offset
from kitsune_mlir.codegen.gpu.emit.value import Value, select
from kitsune_mlir.codegen.gpu.engines.simt.affine_index import Atom, Linear, at, emit
from kitsune_mlir.codegen.gpu.engines.simt.cached import Kept, Windows
from kitsune_mlir.codegen.gpu.engines.simt.cluster_rows import Cluster
from kitsune_mlir.codegen.gpu.engines.simt.evaluate import Evaluator
from kitsune_mlir.codegen.gpu.engines.simt.exchange import ITEM_BYTES, Combiner, Partial, Sharing
from kitsune_mlir.codegen.gpu.engines.simt.graph import ArgReduction, Graph
from kitsune_mlir.codegen.gpu.engines.simt.memory import Access
from kitsune_mlir.codegen.gpu.engines.simt.points import Column, Points, both
from kitsune_mlir.codegen.gpu.engines.simt.scalar_body import carrier
from kitsune_mlir.codegen.gpu.engines.simt.schedule import RowSchedule, is_softmax, levels_of, scratch_bytes
from kitsune_mlir.codegen.gpu.engines.simt.single_columns import SingleColumns
from kitsune_mlir.codegen.gpu.engines.simt.split_rows import Piece
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.codegen.gpu.sm90.mbarrier import NamedBarrier

__all__ = ["emit_rows", "sync_workers"]

BARRIER = 1
"""Hardware barrier of the threads that work, where the block has more."""

ROW_BARRIER, ROW_BARRIERS = 2, 13
"""The first of those of rows by themselves, and how many: one row's threads may wait for all that work while another row's
still meet each other, so none is `BARRIER`. The last one is `mma`'s, who arrives there ahead."""

WARP = 32


def emit_rows(
    schedule: RowSchedule,
    graph: Graph,
    tile: TileContext,
    windows: Windows | None = None,
    piece: Piece | None = None,
    probe: bool = False,
    cluster: Cluster | None = None,
    arrive: Callable[[Value], None] | None = None,
    kept: Kept | None = None,
) -> list[Access]:
    """Emit a tile, or a piece of one; returns what it loads and stores. With `probe`, just one step along rows and columns.

    Args:
        arrive: waits for what a step along the columns needs of the windows.
        kept: values that the block has made for all rows.
    """
    emitter = _Rows(schedule, graph, tile, windows, piece, probe, cluster, arrive, kept)
    if tile.task.threads == schedule.threads:
        emitter.emit()
    else:
        with emitter.evaluator.scope():
            if_(tile.task.thread < schedule.threads, emitter.emit)
    return emitter.evaluator.memory.accesses


def sync_workers(tile: TileContext, schedule: RowSchedule) -> None:
    """A barrier over the threads of the block that work on a tile."""
    if tile.task.threads == schedule.threads:
        tile.task.sync()
    else:
        NamedBarrier(BARRIER, schedule.threads).sync()


class _Rows(SingleColumns):
    def __init__(
        self,
        schedule: RowSchedule,
        graph: Graph,
        tile: TileContext,
        windows: Windows | None,
        piece: Piece | None,
        probe: bool,
        cluster: Cluster | None,
        arrive: Callable[[Value], None] | None,
        kept: Kept | None,
    ):
        self.schedule, self.graph, self.tile, self.piece, self.probe = schedule, graph, tile, piece, probe
        self.cluster, self.arrive = cluster, arrive
        self.space = schedule.space
        self.evaluator = Evaluator(graph, tile, schedule.width, self.space.shared, windows, kept)
        self.levels = levels_of(graph, self.space)
        self.spans = scratch_bytes(schedule, graph)
        self.single = self.singly(kept)

    def emit(self) -> None:
        schedule, thread = self.schedule, self.tile.task.thread
        self.points = Points(schedule, self.evaluator, thread, self.cluster, 1 if self.probe else schedule.unroll)
        self.near, self.far = self.points.near, self.points.far
        self.sharer = self.near if self.space.row_major else self.far
        self.sharing = self._sharing(thread)
        passes = -(-self.space.row_count // schedule.rows_at_once)
        if passes == 1 or self.probe:
            self._pass(Linear())
            return

        def body(first: Value) -> None:
            with self.evaluator.scope():
                self._pass(Linear.of(Atom(first, schedule.rows_at_once, self.space.row_count)))

        for_(0, self.space.row_count, schedule.rows_at_once, body)

    def _sharing(self, thread: Value) -> Sharing:
        schedule = self.schedule
        if self.space.row_major:
            masks = tuple(1 << bit for bit in range(5) if 1 << bit < schedule.fast)
            part = self.near.value // 32
            writer = (thread & 31) == 0
            lane = thread & 31 if schedule.fast >= 32 and schedule.scratch % (2 * ITEM_BYTES) == 0 else None
            return Sharing(masks, schedule.parts, part, self.far.value, schedule.slow, writer, lane)
        masks = tuple(1 << bit for bit in range(5) if 1 << bit >= schedule.fast)
        part = thread // max(schedule.fast, 32)
        writer = (thread & 31) < schedule.fast if schedule.fast < 32 else None
        return Sharing(masks, schedule.parts, part, self.near.value, schedule.fast, writer)

    def sync(self) -> None:
        """A barrier over the threads that share rows: each row's warps by themselves, as far as there are barriers."""
        schedule = self.schedule
        if self.space.row_major and WARP < schedule.fast < schedule.threads and schedule.slow <= ROW_BARRIERS:
            NamedBarrier(self.far.value + ROW_BARRIER, schedule.fast).sync()
        else:
            sync_workers(self.tile, self.schedule)

    # --- a pass over the columns of some rows

    def _pass(self, first: Linear) -> None:
        rows = self.points.rows(first)
        schedule = self.schedule
        if schedule.resident or self.probe:
            columns = [self.points.column(Linear(const=k)) for k in range(1 if self.probe else schedule.col_steps)]
            if self.evaluator.meets:
                self._meet(rows, columns)
            else:
                self._resident(rows, columns)
        elif self.single:
            self._add_singly(rows)
            return
        elif self.piece is not None:
            self._piece_of(self.piece, rows)
            return
        else:
            number = 0
            while number < len(self.levels):
                if is_softmax(self.graph, self.space, number):
                    self._maximum_and_sums(number, rows)
                    number += 2
                else:
                    self._finish(number, rows, self._looped(number, rows))
                    number += 1
            if self.space.full:
                self._over_columns(lambda columns: self._store_full(rows, columns))
        self._store_narrow(rows)

    def _meet(self, rows, columns: Sequence[Column]) -> None:
        """The pass over resident columns behind a barrier, before which all loads are under way."""
        for row, _ in rows:
            for column in columns:
                self._elements(0, self.points.where(row, column.index))
        self.evaluator.hold_loads()
        self.evaluator.meet()

        def rest() -> None:
            with self.evaluator.scope():
                self._resident(rows, columns)

        # Always true; but the assembler moves what it can move before a barrier, and loads to where they are used.
        if_(fresh(self.tile.task.thread) < self.schedule.threads, rest)

    def _resident(self, rows, columns: Sequence[Column]) -> None:
        number = 0
        while number < len(self.levels):
            if self.schedule.running and not self.probe and is_softmax(self.graph, self.space, number):
                self._running(number, rows, columns)
                number += 2
            else:
                self._finish(number, rows, self._fold(number, rows, columns))
                number += 1
        self._store_full(rows, columns)
        self.evaluator.memory.once = True

    def _piece_of(self, piece: Piece, rows) -> None:
        """A piece of the columns, for results of rows alone."""
        schedule = self.schedule
        parts = self._looped(0, rows)
        combiners = [c for c, items in zip(self._combiners(0), parts, strict=True) for _ in items]
        counts = [len(items) for items in parts]
        scratch = offset(self.tile.task.shared, schedule.scratch + self.spans[0][0])
        flat = self.sharing.reduce(combiners, [partial for items in parts for partial in items], scratch, self.sync)
        width = 1 if self.space.row_major else schedule.width
        indices = [emit(at(row, e)) for row, _ in rows for e in range(width)]
        sharers = schedule.fast if self.space.row_major else schedule.slow
        first = self.sharer.value == 0

        def finish() -> None:
            with self.evaluator.scope():
                mine = piece.collect(combiners, indices, flat, self.sharer.value, sharers)
                self._give(0, rows, self.sharing.reduce(combiners, mine, scratch, self.sync), counts)
                self._store_narrow(rows)

        if_(piece.last, finish, lambda: piece.hand_over(first, indices, flat))

    def _over_columns(self, body: Callable[[list[Column]], object]) -> None:
        def step(first: Value) -> None:
            with self.evaluator.scope():
                body(self.points.columns_from(first))

        for_(0, self.points.padded_steps, self.schedule.steps, step)

    def _combiners(self, number: int) -> list[Combiner]:
        """One for each result of a level: index reductions have one for both results."""
        combiners = []
        for op in self.levels[number]:
            recipe = self.graph.reductions[op]
            if isinstance(recipe, ArgReduction):
                combiners.append(Combiner("arg" + recipe.kind))
            else:
                combiners += [Combiner(reduction.kind) for reduction in recipe]
        return combiners

    def _types(self, number: int) -> list[tuple[str, ...]]:
        types: list[tuple[str, ...]] = []
        for op in self.levels[number]:
            recipe = self.graph.reductions[op]
            names = [carrier(ir.RankedTensorType(result.type).element_type) for result in op.results]
            if isinstance(recipe, ArgReduction):
                types.append((names[recipe.result], names[recipe.index_result]))
            else:
                types += [(name,) for name in names]
        return types

    def _fold(self, number: int, rows, columns: Sequence[Column]) -> list[list[Partial]]:
        """The thread's own part of a level's reductions over some columns: for each combiner, one for each value of rows."""
        combiners, types = self._combiners(number), self._types(number)
        found: list[list[Partial]] = [[] for _ in combiners]
        for row, _ in rows:
            gathered: list[list[list[Partial]]] = [[] for _ in combiners]
            for column in columns:
                where = self.points.where(row, column.index)
                for index, points in enumerate(self._elements(number, where)):
                    neutral = combiners[index].neutral(types[index])
                    if column.inside is not None:
                        inside = column.inside
                        points = [tuple(select(inside, v, n) for v, n in zip(p, neutral, strict=True)) for p in points]
                    gathered[index].append(points)
            for index, combiner in enumerate(combiners):
                if self.space.row_major:
                    found[index].append(combiner.tree([point for points in gathered[index] for point in points]))
                else:
                    for e in range(self.schedule.width):
                        found[index].append(combiner.tree([points[e] for points in gathered[index]]))
        return found

    def _elements(self, number: int, where: dict) -> list[list[Partial]]:
        """What a level's reductions combine, at the points of one vector: for each combiner, one partial result a point."""
        width, found = self.schedule.width, []
        for op in self.levels[number]:
            recipe = self.graph.reductions[op]
            wanted = [recipe.value, recipe.index] if isinstance(recipe, ArgReduction) else [r.value for r in recipe]
            lanes = self.evaluator.body(op, self.space.loops(op, where), wanted)
            full = [[values[e if len(values) > 1 else 0] for e in range(width)] for values in lanes]
            if isinstance(recipe, ArgReduction):
                found.append(list(zip(*full, strict=True)))
            else:
                found += [[(value,) for value in values] for values in full]
        return found

    def _looped(self, number: int, rows) -> list[list[Partial]]:
        """As `_fold`, over all columns, in a loop."""
        combiners, types = self._combiners(number), self._types(number)
        counts = [self.schedule.values for _ in combiners]
        flat = [v for c, t, n in zip(combiners, types, counts, strict=True) for _ in range(n) for v in c.neutral(t)]

        def nested(values: Sequence[Value]) -> list[list[Partial]]:
            items, rest = [], list(values)
            for type, count in zip(types, counts, strict=True):
                items.append([tuple(rest.pop(0) for _ in type) for _ in range(count)])
            return items

        def step(first: Value, *carried: Value) -> list[Value]:
            if number == 0 and self.arrive is not None:
                self.arrive(first)
            with self.evaluator.scope():
                parts = self._fold(number, rows, self.points.columns_from(first))
            sums = [
                [c(a, b) for a, b in zip(old, new, strict=True)]
                for c, old, new in zip(combiners, nested(carried), parts, strict=True)
            ]
            return [v for items in sums for partial in items for v in partial]

        size = self.schedule.steps
        if self.piece is None:
            return nested(for_(0, self.points.padded_steps, size, step, flat))
        begin, end = self.piece.groups(self.points.padded_steps // size)
        return nested(for_(begin * size, end * size, size, step, flat))

    def _finish(self, number: int, rows, parts: list[list[Partial]]) -> None:
        """Combine a level's partial results over threads and make them known."""
        combiners = self._combiners(number)
        counts = [len(items) for items in parts]
        every = [combiner for combiner, count in zip(combiners, counts, strict=True) for _ in range(count)]
        start, end = self.spans[number]
        scratch = offset(self.tile.task.shared, self.schedule.scratch + start)
        flat = self.sharing.reduce(every, [partial for items in parts for partial in items], scratch, self.sync)
        if self.cluster is not None:
            values = sum(len(partial) for partial in flat)
            used = end - start - values * self.cluster.blocks * self.sharing.places * ITEM_BYTES
            # With several levels, the next one's meeting keeps the scratch of this one until all have read it.
            again = len(self.levels) == 1
            flat = self.cluster.combine(every, flat, self.sharing, self.sharer.value, offset(scratch, used), again)
        elif self.schedule.parts > 1 and len(self.levels) == 1:
            self.sync()  # with several levels, the next one's barrier keeps the scratch of this one until it is read
        self._give(number, rows, flat, counts)

    def _give(self, number: int, rows, flat: list[Partial], counts: list[int]) -> None:
        """Make a level's results known; `counts` of them belong to each combiner."""
        ends = list(accumulate(counts))
        combined = [flat[end - count : end] for end, count in zip(ends, counts, strict=True)]
        each = 1 if self.space.row_major else self.schedule.width
        for position, (row, _) in enumerate(rows):
            where = self.points.where(row, None)
            remaining = [items[position * each : (position + 1) * each] for items in combined]
            for op in self.levels[number]:
                self._define(op, where, remaining)

    def _define(self, op: ir.Operation, where: dict, remaining: list[list[Partial]]) -> None:
        recipe = self.graph.reductions[op]
        if isinstance(recipe, ArgReduction):
            coordinates = self.space.coordinates(op.results[0], where)
            values = remaining.pop(0)
            starts = [self.evaluator.initial(op, op.results[n], coordinates) for n in (recipe.result, recipe.index_result)]
            # The start counts as coming before all elements.
            combiner = Combiner("arg" + recipe.kind)
            done = []
            for e, (value, index) in enumerate(values):
                better = value > starts[0][e] if recipe.kind == "max" else value < starts[0][e]
                done.append((combiner((starts[0][e], index), (value, index))[0], select(better, index, starts[1][e])))
            self.evaluator.define(op.results[recipe.result], coordinates, [v for v, _ in done])
            self.evaluator.define(op.results[recipe.index_result], coordinates, [i for _, i in done])
            return
        for reduction in recipe:
            result = op.results[reduction.number]
            coordinates = self.space.coordinates(result, where)
            combiner = Combiner(reduction.kind)
            starts = self.evaluator.initial(op, result, coordinates)
            found = self.evaluator.divided(reduction, coordinates, [partial[0] for partial in remaining.pop(0)])
            values = [combiner((start,), (value,))[0] for start, value in zip(starts, found, strict=False)]
            self.evaluator.define(result, coordinates, values)

    # --- stores

    def _store_full(self, rows, columns: Sequence[Column]) -> None:
        pending = []
        for row, row_inside in rows:
            for column in columns:
                where = self.points.where(row, column.index)
                places = [self.space.coordinates(store.tensor, where) for store in self.space.full]
                made = [self.evaluator.tensor(store.tensor, c) for store, c in zip(self.space.full, places, strict=True)]
                pending.append((both(row_inside, column.inside), places, made))
        for inside, places, made in pending:
            self._write(inside, self.space.full, places, made)

    def _store_narrow(self, rows, writer: Value | None = None) -> None:
        if not self.space.narrow:
            return
        first = self.sharer.value == 0 if writer is None else writer
        for row, inside in rows:
            where = self.points.where(row, None)
            places = [self.space.coordinates(store.tensor, where) for store in self.space.narrow]
            made = [self.evaluator.tensor(store.tensor, c) for store, c in zip(self.space.narrow, places, strict=True)]
            self._write(both(first, inside), self.space.narrow, places, made)

    def _write(self, inside: Value | None, stores, places, made) -> None:
        def write() -> None:
            for store, coordinates, lanes in zip(stores, places, made, strict=True):
                self.evaluator.store(store, coordinates, lanes)

        if inside is None:
            write()
        else:
            with self.evaluator.scope():
                if_(inside, write)
