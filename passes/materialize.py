"""`kitsune-materialize`: turn the stage graph and its schedule into the tile program (docs/tile-program.md)."""

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir
from torch_mlir.dialects import arith, func, memref

from kitsune_mlir.codegen.gpu.engines.registry import engine_of, for_maps, for_updates
from kitsune_mlir.codegen.host.offer import LoopNests
from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.attribute_table import ALONE, GROUPS, INTO, ORDERED, PROGRAM_OVERWRITES, UPDATES
from kitsune_mlir.dialects.edges import Edge, Grid, Slice, grid_of, producer_of, stages_of, trace_views
from kitsune_mlir.dialects.iteration import Dim, Space, is_reshape
from kitsune_mlir.dialects.products import defining_op
from kitsune_mlir.dialects.stage_graph import inputs_of, mode_of, overwritten, results_of, yielded
from kitsune_mlir.dialects.tile_program import PostOp, TaskOp, WaitOp
from kitsune_mlir.dialects.unchanged import stages_unchanged, unchanged
from kitsune_mlir.dialects.verify import captures
from kitsune_mlir.passes.spatial.rings import Rings
from kitsune_mlir.passes.tile_program.memrefs import flattened, i64, index, memref_of, reshape, rows_of, shape_of_type, subview
from kitsune_mlir.passes.tile_program.ragged import repeated, tile_offset
from kitsune_mlir.passes.tile_program.scatter import Scatter, emit_scatter, emit_start, emit_sums, handed_over, scatter_of
from kitsune_mlir.passes.tile_program.signals import MANY_SLOTS, Signals, semaphore, wait_for
from kitsune_mlir.passes.tile_program.tiling import Tiling
from kitsune_mlir.passes.tile_program.valid_rows import describe_valid_rows
from kitsune_mlir.passes.tile_program.waits import edges_of, needed_edges, stages_by_name

from .base import Pass, PassFailure

ROWS_COPIED, ELEMENTS_COPIED = 64, 4096  # a task of the copy that starts a scatter-add: rows, or more where they are short
WANTED = {"all": ("whole",), "indexed": ("rows", "indexed")}  # of a producer's semaphores, by an edge's policy; else rows


@dataclass(frozen=True)
class Materialize(Pass):
    """Turn each pipeline into a tile program: buffers become memrefs, edges semaphores, stages tasks over tile coordinates.

    The function that held the pipeline is replaced by the program, a function of memrefs that is named after the pipeline.
    """

    name: ClassVar[str] = "kitsune-materialize"

    def run(self, module: ir.Operation) -> None:
        with module.context, ir.Location.unknown():
            for op in list(module.regions[0].blocks[0].operations):
                function = op.operation
                if function.name != "func.func" or not len(function.regions[0].blocks):
                    continue
                inner = [o.operation for o in function.regions[0].blocks[0].operations]
                pipelines = [o for o in inner if o.name == "kitsune.pipeline"]
                if len(pipelines) > 1:
                    raise PassFailure(pipelines[1], "is a second pipeline of one function; one is supported")
                if pipelines:
                    with stages_unchanged():
                        _Program(module, function, pipelines[0]).build()
                    function.erase()


class _Program:
    def __init__(self, module: ir.Operation, function: ir.Operation, pipeline: ir.Operation):
        self.module, self.function, self.pipeline = module, function, pipeline
        self.stages = stages_of(pipeline)
        self.mode = mode_of(pipeline)
        self.buffers: dict[ir.Value, ir.Value] = {}
        self.flat: dict[ir.Value, ir.Value] = {}  # of those that indices are parts of
        self.by_name = stages_by_name(self.stages)
        self.scatters = [stage for stage in self.stages if INTO in stage.attributes]  # that other stages add
        self.signals: dict[int, Signals] = {}
        workers = [ir.IntegerAttr(s.attributes["workers"]).value if "workers" in s.attributes else 0 for s in self.stages]
        before = itertools.accumulate(workers, initial=0)
        self.rings = Rings(self.stages)
        self.first = {hash(stage): first for stage, first in zip(self.stages, before, strict=False)}

    def build(self) -> None:
        arguments = list(self.function.regions[0].blocks[0].arguments)
        for value in captures(self.pipeline):
            if defining_op(value) is not None:
                raise PassFailure(self.pipeline, f"uses {value}, which is made outside it")
        results = yielded(self.pipeline)
        arena = max(1, ir.IntegerAttr(self.pipeline.attributes["arena"]).value if "arena" in self.pipeline.attributes else 0)
        arena_type = ir.MemRefType.get([arena], ir.IntegerType.get_signless(8))
        types = [memref_of(v.type) for v in [*arguments, *results]] + [arena_type]
        name = ir.StringAttr(self.pipeline.attributes["sym_name"]).value
        with ir.InsertionPoint.at_block_begin(self.module.regions[0].blocks[0]), self.pipeline.location:
            program = func.FuncOp(name, (types, []))
            program.operation.attributes["kitsune.program"] = ir.UnitAttr.get()
            if self.mode != "temporal":
                program.operation.attributes["kitsune.mode"] = ir.StringAttr.get(self.mode)
            program.operation.attributes["kitsune.arguments"] = i64(len(arguments))
            program.operation.attributes["kitsune.results"] = i64(len(results))
            describe_valid_rows(program.operation, self.function, results_of(self.pipeline))
            block = program.add_entry_block()
            with ir.InsertionPoint(block):
                formals = list(block.arguments)
                self.buffers.update(zip(arguments, formals, strict=False))
                places = [self._overwritten(value) for value in results]
                if any(number >= 0 for number in places):
                    program.operation.attributes[PROGRAM_OVERWRITES] = ir.DenseI64ArrayAttr.get(places)
                for value, formal, number in zip(results, formals[len(arguments) : -1], places, strict=True):
                    self._bind_result(value, formal)
                    if number >= 0:
                        self._bind_old_values(value, arguments[number], formal)
                self._declare_buffers(formals[-1])
                self._declare_semaphores()
                for stage in self.stages:
                    self._task(stage)
                func.ReturnOp([])

    def _bind_result(self, value: ir.Value, formal: ir.Value) -> None:
        """Let the stage behind a yielded value write into the caller's memory: undo the views, last first."""
        maker = defining_op(value)
        while maker is not None and is_reshape(maker):
            self.buffers[value] = formal
            source = maker.operands[0]
            formal = reshape(formal, source.type, maker, undo=True)
            value, maker = source, defining_op(source)
        self.buffers[value] = formal

    @staticmethod
    def _overwritten(value: ir.Value) -> int:
        """The argument that a yielded value is written over, or -1."""
        stage, result = producer_of(trace_views(value)[0])
        return overwritten(stage)[result] if stage is not None and stage.name == "kitsune.stage" else -1

    def _bind_old_values(self, value: ir.Value, argument: ir.Value, formal: ir.Value) -> None:
        """Let the argument that a yielded value is written over, and all that was written there before, be the same memory."""
        self.buffers[argument] = formal
        stage, result = producer_of(trace_views(value)[0])
        while stage is not None and stage.name == "kitsune.stage" and (scatter := scatter_of(stage)) is not None:
            before, number = producer_of(trace_views(scatter.original)[0])
            if before is None or before.name != "kitsune.stage" or overwritten(before)[number] != overwritten(stage)[result]:
                return
            self._bind_result(scatter.original, self.buffers[results_of(stage)[0]])
            stage, result = before, number

    def _changes_in_place(self, stage: ir.Operation, scatter: Scatter) -> bool:
        """Whether a scatter's destination lies where its result does."""
        number = overwritten(stage)[0]
        source = trace_views(scatter.original)[0]
        maker, result = producer_of(source)
        if number < 0 or scatter.start is not None:
            return False
        if maker is None:
            return ir.BlockArgument(source).arg_number == number
        return overwritten(maker)[result] == number

    def _declare_buffers(self, arena: ir.Value) -> None:
        for stage in self.stages:
            offsets = list(ir.DenseI64ArrayAttr(stage.attributes["offsets"])) if "offsets" in stage.attributes else []
            for number, value in enumerate(results_of(stage)):
                if value in self.buffers:
                    continue
                if handed_over(stage, number):
                    continue
                if number >= len(offsets) or offsets[number] < 0:
                    raise PassFailure(stage, f"result {number} has no offset in the arena; run kitsune-place-buffers first")
                if value in self.rings:
                    self.buffers[value] = self.rings.declare(value, arena, offsets[number])
                    continue
                self.buffers[value] = memref.ViewOp(memref_of(value.type), arena, index(offsets[number]), []).result

    def buffer(self, value: ir.Value) -> ir.Value:
        """The memref behind a pipeline-level tensor; views are made on first use."""
        if value not in self.buffers:
            maker = defining_op(value)
            if maker is None or not is_reshape(maker):
                raise PassFailure(self.pipeline, f"holds {maker.name if maker else value} outside its stages")
            self.buffers[value] = reshape(self.buffer(maker.operands[0]), value.type, maker, undo=False)
        return self.buffers[value]

    def _declare_semaphores(self) -> None:
        """A producer gets the semaphores that its consumers (and writers of its bytes later on) need."""
        with unchanged():
            self.edges = needed_edges(self.stages, self.rings.producers)
        wants: dict[int, set[str]] = {}
        for edge in itertools.chain(*self.edges.values()):
            if self.rings.carry(edge):
                continue
            wants.setdefault(hash(edge.producer), set()).update(WANTED.get(edge.policy, ("rows",)))
        for stage in self.stages:
            grid = self._grid(stage)
            signals = Signals(grid)
            wanted = wants.get(hash(stage), set())
            if "rows" in wanted or (wanted and grid.extents[0] <= MANY_SLOTS):
                signals.groups = ir.IntegerAttr(stage.attributes[GROUPS]).value if GROUPS in stage.attributes else 1
                if "whole" in wanted or "indexed" in wanted:
                    signals.groups = 1
                signals.rows = semaphore(signals.slots)
            if "whole" in wanted and grid.extents[0] > MANY_SLOTS:
                signals.whole = semaphore(1)
            self.signals[hash(stage)] = signals

    def _grid(self, stage: ir.Operation) -> Grid:
        """The stage's tiles; those of a scatter-add run over the rows that it adds, or, in order, over those of its result."""
        producer = self._fused_into(stage)
        if producer is not None:
            return grid_of(producer)
        for word in (UPDATES, ORDERED):
            if word in stage.attributes and (scatter := scatter_of(stage)) is not None:
                rows = scatter.rows if word == UPDATES else shape_of(scatter.original)[0]
                return Grid(Space([], [], [Dim(rows, {})]), [ir.IntegerAttr(stage.attributes[word]).value])
        return grid_of(stage)

    def _fused_into(self, stage: ir.Operation) -> ir.Operation | None:
        """The stage whose tasks add the rows of this scatter-add, or None."""
        if INTO not in stage.attributes:
            return None
        return self.by_name[ir.StringAttr(stage.attributes[INTO]).value]

    def _task(self, stage: ir.Operation) -> None:
        scatter = scatter_of(stage) if UPDATES in stage.attributes or ORDERED in stage.attributes else None
        if self._fused_into(stage) is not None:
            return  # done with its producer
        if scatter is not None and ORDERED in stage.attributes:
            self._ordered_task(stage, scatter)
        elif scatter is not None:
            self._scatter_tasks(stage, scatter)
        else:
            self._tiled_task(stage)

    def _start(self, stage: ir.Operation, scatter: Scatter, inputs: list[ir.Value]) -> tuple[ir.Value, int]:
        """The task that copies the destination's old rows to the result; its semaphore, and the posts that complete it."""
        result = self.buffers[results_of(stage)[0]]
        size = shape_of_type(result.type)[0]
        rows = min(size, max(ROWS_COPIED, ELEMENTS_COPIED // scatter.columns))
        copied = semaphore(1)
        name = ir.StringAttr(stage.attributes["sym_name"]).value
        with self._new_task(stage, f"{name}_start", [-(-size // rows)], for_maps()) as coordinates:
            self._waits(edges_of(stage, self.by_name, inputs), grid_of(stage), Tiling(grid_of(stage), [], lambda v, s: v))
            offset = tile_offset(coordinates[0], rows, size)
            offsets = [offset, *[0] * (len(shape_of_type(result.type)) - 1)]
            sizes = [rows, *shape_of_type(result.type)[1:]]
            source = None if scatter.start is not None else subview(self.buffer(scatter.original), offsets, sizes)
            emit_start(scatter, source, subview(result, offsets, sizes))
            PostOp(copied, index(0))
        return copied, -(-size // rows)

    def _scatter_tasks(self, stage: ir.Operation, scatter: Scatter) -> None:
        """Two tasks: the destination's old rows are copied to the result, then the updates are added to them."""
        for value in inputs_of(stage):
            self.buffer(value)
        self._indices(scatter)
        started = None if self._changes_in_place(stage, scatter) else self._start(stage, scatter, inputs_of(stage))
        result = self.buffers[results_of(stage)[0]]
        name = ir.StringAttr(stage.attributes["sym_name"]).value
        grid = self.signals[hash(stage)].grid
        with self._new_task(stage, name, grid.extents, for_updates("atomic")) as coordinates:
            self._waits(self.edges[hash(stage)], grid_of(stage), Tiling(grid_of(stage), [], lambda v, s: v))
            if started is not None:
                WaitOp(started[0], index(0), index(1), i64(started[1]))
            offset = tile_offset(coordinates[0], grid.tile[0], scatter.rows)
            updates = rows_of(self.buffer(scatter.updates), offset, grid.tile[0], len(shape_of_type(result.type)))
            places = self._places(scatter, offset, grid.tile[0])
            op = emit_scatter(scatter, updates, places, repeated(coordinates[0], grid.tile[0], scatter.rows, offset), result)
            if engine_of(stage) == LoopNests.name:
                op.attributes[ALONE] = ir.UnitAttr.get()
            self._posts(stage, coordinates)

    def _ordered_task(self, stage: ir.Operation, scatter: Scatter) -> None:
        """One task: tiles are rows of the result, and each adds what is added to its rows, in order."""
        for value in inputs_of(stage):
            self.buffer(value)
        self._indices(scatter)
        result = self.buffers[results_of(stage)[0]]
        grid = self.signals[hash(stage)].grid
        rows = grid.tile[0]
        name = ir.StringAttr(stage.attributes["sym_name"]).value
        with self._new_task(stage, name, grid.extents, for_updates(ORDERED)) as coordinates:
            self._waits(self.edges[hash(stage)], grid_of(stage), Tiling(grid_of(stage), [], lambda v, s: v))
            shape = shape_of_type(result.type)
            offset = tile_offset(coordinates[0], rows, shape[0])

            def tile(memory: ir.Value) -> ir.Value:
                return subview(memory, [offset, *[0] * (len(shape) - 1)], [rows, *shape[1:]])

            original = None if scatter.start is not None else tile(self.buffer(scatter.original))
            updates = rows_of(self.buffer(scatter.updates), index(0), scatter.rows, len(shape))
            places = self._places(scatter, index(0), scatter.rows)
            emit_sums(scatter, original, updates, places, offset, tile(result))
            self._posts(stage, coordinates)

    @contextlib.contextmanager
    def _new_task(
        self, stage: ir.Operation, name: str, extents: list[int], requested_engine: str = ""
    ) -> Iterator[list[ir.Value]]:
        """A task whose body is written inside the `with` block; gives its coordinates."""
        task = TaskOp(ir.StringAttr.get(name), ir.DenseI64ArrayAttr.get(extents), loc=stage.location)
        task.operation.attributes["engine"] = ir.StringAttr.get(requested_engine or engine_of(stage))
        owner = self._fused_into(stage) or stage
        for word in ("workers", "launch"):
            if self.mode != "temporal" and word in owner.attributes:
                task.operation.attributes[word] = owner.attributes[word]
        if self.mode == "spatial":
            task.operation.attributes["first"] = i64(self.first[hash(owner)])
        types = [ir.IndexType.get()] * len(extents)
        block = task.operation.regions[0].blocks.append(*types, arg_locs=[stage.location] * len(extents))
        with ir.InsertionPoint(block), stage.location:
            yield list(block.arguments)
            ir.Operation.create("kitsune.yield", [], [], {"operandSegmentSizes": ir.DenseI32ArrayAttr.get([0])})

    def _tiled_task(self, stage: ir.Operation) -> None:
        grid = self.signals[hash(stage)].grid
        # Views that this stage reads stand before its task.
        for value in inputs_of(stage):
            self.buffer(value)
        name = ir.StringAttr(stage.attributes["sym_name"]).value
        added = [s for s in self.scatters if self._fused_into(s) == stage]
        fused = [(s, scatter) for s in added if (scatter := scatter_of(s))]
        for _, scatter in fused:
            self._indices(scatter)
            if scatter.start is None:
                self.buffer(scatter.original)
        copied = [(s, scatter) for s, scatter in fused if not self._changes_in_place(s, scatter)]
        started = [self._start(s, scatter, [scatter.original]) for s, scatter in copied]
        with self._new_task(stage, name, grid.extents) as coordinates:
            offsets: list[ir.Value | None] = [None] * len(grid.space.dims)
            for coordinate, dim in zip(coordinates, grid.moving, strict=False):
                offsets[dim] = tile_offset(coordinate, grid.tile[dim], grid.space.dims[dim].size)
            tiling = Tiling(grid, offsets, lambda value, slices: self._load(tiling, value, slices))
            self._waits(self.edges[hash(stage)], grid, tiling)
            for whole, count in started:
                WaitOp(whole, index(0), index(1), i64(count))
            self.rings.enter(stage, coordinates[0])
            tiling.run()
            outside = results_of(stage)
            for number, value in enumerate(yielded(stage)[: len(outside)]):
                if outside[number] in self.buffers:  # else only fused scatter-adds read it
                    self._store(tiling, tiling.mapping[value], tiling.result_slices(value), self.buffers[outside[number]])
            for s, scatter in fused:
                self._add_rows(tiling, coordinates, s, scatter)
            self.rings.leave(stage)
            self._posts(stage, coordinates)
            for s, _ in fused:
                self._posts(s, coordinates)

    def _add_rows(self, tiling: Tiling, coordinates: list[ir.Value], stage: ir.Operation, scatter: Scatter) -> None:
        """Add a tile of the rows that a fused scatter-add takes from the stage that is being tiled."""
        value, _ = trace_views(scatter.updates)
        producer, number = producer_of(value)
        assert producer is not None
        made = yielded(producer)[number]
        dim = tiling.result_slices(made)[0].dim
        offset, tile, first = index(0), scatter.rows, None
        if dim is not None and (moving := tiling.offsets[dim]) is not None:
            offset, tile = moving, tiling.grid.tile[dim]
            first = repeated(coordinates[tiling.grid.moving.index(dim)], tile, scatter.rows, offset)
        places = self._places(scatter, offset, tile)
        result = self.buffers[results_of(stage)[0]]
        emit_scatter(scatter, tiling.mapping[made], places, first, result)

    def _indices(self, scatter: Scatter) -> ir.Value:
        """The memref that holds a scatter's indices, flat where they are a part of it; the view is made on first use."""
        memory = self.buffer(scatter.indices)
        if scatter.place is None or len(shape_of_type(memory.type)) == 1:
            return memory
        if scatter.indices not in self.flat:
            self.flat[scatter.indices] = flattened(memory)
        return self.flat[scatter.indices]

    def _places(self, scatter: Scatter, offset: ir.Value, rows: int) -> ir.Value:
        """Indices [offset, offset + rows) of a scatter as a tensor."""
        start = offset if not scatter.place else arith.addi(offset, index(scatter.place))
        return rows_of(self._indices(scatter), start, rows)

    def _load(self, tiling: Tiling, value: ir.Value, slices: list[Slice]) -> ir.Value:
        view = self._view(tiling, self.buffer(value), slices)
        shape = list(ir.ShapedType(view.type).shape)
        type_ = ir.RankedTensorType.get(shape, ir.ShapedType(value.type).element_type)
        return ir.Operation.create("bufferization.to_tensor", [type_], [view], {"restrict": ir.UnitAttr.get()}).results[0]

    def _store(self, tiling: Tiling, tile: ir.Value, slices: list[Slice], buffer: ir.Value) -> None:
        view = self._view(tiling, buffer, slices)
        unit = ir.UnitAttr.get()
        attributes = {"restrict": unit, "writable": unit}
        ir.Operation.create("bufferization.materialize_in_destination", [], [tile, view], attributes)

    def _view(self, tiling: Tiling, buffer: ir.Value, slices: list[Slice]) -> ir.Value:
        shape = list(ir.ShapedType(buffer.type).shape)
        offsets, sizes = tiling.place(slices, shape)
        if sizes == shape and not any(part.dropped for part in slices):
            return buffer
        row = self.rings.row(buffer)
        offsets = offsets if row is None else [row, *offsets[1:]]
        return subview(buffer, offsets, sizes, [d for d, part in enumerate(slices) if part.dropped])

    def _waits(self, edges: list[Edge], grid: Grid, tiling: Tiling) -> None:
        for edge in edges:
            if not self.rings.carry(edge):
                wait_for(edge, self.signals[hash(edge.producer)], grid, tiling, self.buffer)

    def _posts(self, stage: ir.Operation, coordinates: list[ir.Value]) -> None:
        signals = self.signals[hash(stage)]
        if signals.rows is not None:
            PostOp(signals.rows, signals.slot(coordinates))
        if signals.whole is not None:
            PostOp(signals.whole, index(0))
