"""Edges that go through a ring (`#kitsune.buffer<"queue", depth>`): which can, and the ring's part of the tile program.

A ring holds `depth` tiles of the producer, each with all its columns. A consumer reads tile by tile too, so both walk the first
dimension of the result with tiles of one size; several tiles along other dimensions each push their part of it, or read it.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch_mlir import ir
from torch_mlir.dialects import arith, memref

from kitsune_mlir.codegen.gpu.engines.registry import engine_of, traits_of
from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.attribute_table import INTO, ORDERED, UPDATES
from kitsune_mlir.dialects.edges import Edge, edge_of, grid_of
from kitsune_mlir.dialects.iteration import is_reshape
from kitsune_mlir.dialects.stage_graph import inputs_of, results_of, yielded
from kitsune_mlir.dialects.tile_program import AcquireOp, PopOp, PushOp, QueueOp, ReleaseOp
from kitsune_mlir.passes.base import PassFailure
from kitsune_mlir.passes.tile_program.memrefs import i64, index

__all__ = ["RingEdge", "Rings", "queue_depth", "ring_edge"]


@dataclass(frozen=True)
class RingEdge:
    """A result whose tiles can go through a ring: rows of a tile, how many push a part of each, and how many read it."""

    rows: int
    pushes: int
    pops: int


def ring_edge(stage: ir.Operation) -> RingEdge | str:
    """How the one result of a stage goes through a ring, or why it cannot."""
    results = results_of(stage)
    if len(results) != 1 or any(word in stage.attributes for word in (INTO, ORDERED, UPDATES)):
        return "only a stage of one result that adds no rows fills a ring"
    value, grid = results[0], grid_of(stage)
    if not traits_of(engine_of(stage)).keeps_order:
        return f"engine {engine_of(stage)} does not keep the order of its tiles"
    made = yielded(stage)[0]
    maker = next(n for n, op in enumerate(grid.space.ops) if made in list(op.results))
    along = grid.space.result_dims(maker, list(grid.space.ops[maker].results).index(made))
    if not grid.moving or along[0] != grid.moving[0]:
        return "its tiles do not follow each other along the first dimension of the result"
    first = grid.moving[0]
    pops = 0
    for use in value.uses:
        user = use.owner.operation
        if is_reshape(user) or user.name in ("kitsune.yield", "builtin.unrealized_conversion_cast"):
            return "the result is reshaped, or leaves the pipeline"
        while user.name != "kitsune.stage":
            user = user.parent.operation
        reads = grid_of(user)
        edge = edge_of(user, reads.space, value)
        if not traits_of(engine_of(user)).keeps_order or edge is None or edge.policy not in ("tile", "row"):
            return f"{user.attributes['sym_name']} does not read it tile by tile"
        same = reads.moving[:1] == [edge.dim] and reads.tile[edge.dim] == grid.tile[first]
        if not same or reads.space.dims[edge.dim].size != grid.space.dims[first].size:
            return f"{user.attributes['sym_name']} reads it in other tiles"
    for user in _readers(stage, value):
        reads = grid_of(user)
        pops += reads.tasks // reads.extents[0]
    if not pops:
        return "nobody reads it"
    return RingEdge(grid.tile[first], grid.tasks // grid.extents[0], pops)


def _readers(stage: ir.Operation, value: ir.Value) -> list[ir.Operation]:
    """The stages that read a value, each once."""
    block = stage.parent.regions[0].blocks[0]
    stages = [op.operation for op in block.operations if op.operation.name == "kitsune.stage"]
    return [one for one in stages if value in inputs_of(one)]


def queue_depth(stage: ir.Operation) -> int:
    """Slots of the ring that the stage's result is placed in; 0 where it is no ring."""
    if "buffers" not in stage.attributes:
        return 0
    _, space, rest = str(ir.ArrayAttr(stage.attributes["buffers"])[0]).split('"')
    return int(rest.strip(", >").split(":")[0]) if space == "queue" else 0


class Rings:
    """The rings of a tile program that is being written."""

    def __init__(self, stages: list[ir.Operation]):
        self.edges: dict[ir.Value, tuple[RingEdge, int]] = {}
        self.producers: set[int] = set()
        for stage in stages:
            depth = queue_depth(stage)
            if not depth:
                continue
            edge = ring_edge(stage)
            if isinstance(edge, str):
                raise PassFailure(stage, f"is placed in a queue: {edge}")
            self.edges[results_of(stage)[0]] = edge, depth
            self.producers.add(hash(stage))
        self.queues: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}  # by the value: the queue and its memory
        self.held: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}  # of the task being written, by the memory: slot, first row

    def __contains__(self, value: ir.Value) -> bool:
        return value in self.edges

    def carry(self, edge: Edge) -> bool:
        """Whether a ring does the waiting of an edge."""
        return edge.policy != "all" and hash(edge.producer) in self.producers

    def declare(self, value: ir.Value, arena: ir.Value, offset: int) -> ir.Value:
        """Declare the ring of a value at a byte of the arena; its memory."""
        edge, depth = self.edges[value]
        shape, element = shape_of(value), ir.ShapedType(value.type).element_type
        slots = ir.MemRefType.get([depth * edge.rows, *shape[1:]], element)
        memory = memref.ViewOp(slots, arena, index(offset), []).result
        tile = ir.RankedTensorType.get([edge.rows, *shape[1:]], element)
        type_ = ir.Type.parse(f"!kitsune.queue<{tile}, {depth} : i64>")
        queue = QueueOp(memory, i64(edge.pushes), i64(edge.pops), type_).operation.results[0]
        self.queues[value] = queue, memory
        return memory

    def enter(self, stage: ir.Operation, number: ir.Value) -> None:
        """At the start of a task: wait for the tile `number` of what the stage reads, and for a slot for what it makes."""
        self.held = {}
        if not self.queues:
            return
        for kind, values in ((PopOp, inputs_of(stage)), (AcquireOp, results_of(stage))):
            for value in values:
                if value in self.queues:
                    queue, memory = self.queues[value]
                    slot = kind(queue, number, ir.IndexType.get()).operation.results[0]
                    self.held[memory] = slot, arith.muli(slot, index(self.edges[value][0].rows))

    def row(self, memory: ir.Value) -> ir.Value | None:
        """Where the task's tile begins in a ring's memory; None for other memory."""
        return self.held[memory][1] if memory in self.held else None

    def leave(self, stage: ir.Operation) -> None:
        """At the end of a task: give on what it wrote and read."""
        if not self.queues:
            return
        for kind, values in ((PushOp, results_of(stage)), (ReleaseOp, inputs_of(stage))):
            for value in values:
                if value in self.queues:
                    queue, memory = self.queues[value]
                    kind(queue, self.held[memory][0])
        self.held = {}
