"""The work of a stage or of a task, counted from its operations' maps: what `machine.stage_cost` turns into seconds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.registry import engine_of, for_maps, for_updates, step_of
from kitsune_mlir.dialects.access import access_of, is_tensor, iterator_kinds, loop_sizes, shape_of
from kitsune_mlir.dialects.attribute_table import INTO, ORDERED, UPDATES
from kitsune_mlir.dialects.contraction import matrix_extents
from kitsune_mlir.dialects.counting import counting_of
from kitsune_mlir.dialects.edges import Grid, stage_space, tile_sizes, uses_in
from kitsune_mlir.dialects.gathered import SECTOR, run_bytes
from kitsune_mlir.dialects.products import body_of, is_contraction, is_generic, is_movement
from kitsune_mlir.dialects.recurrence import RECURRENCE, Recurrence
from kitsune_mlir.dialects.sizes import element_bytes, tensor_bytes
from kitsune_mlir.dialects.stage_graph import inputs_of, results_of
from kitsune_mlir.dialects.verify import captures, walk
from kitsune_mlir.machine import rates
from kitsune_mlir.machine.stage_cost import Work

__all__ = ["Counted", "count", "work_of_stage"]

START_BYTES = 16384
"""Of a scatter-add's sums that one tile sets to their start."""


SORT = "tm_tensor.sort"
_COUNTED = ("tensor_ops", "vector_ops", "compared", "levels", "layers", "steps", "step_seconds", "rows", "cols", "terms")


@dataclasses.dataclass
class Counted:
    """Operations of some ops on tensors.

    Attributes:
        tensor_ops: of products, two for each multiply-add.
        vector_ops: weighted operations on elements of everything else.
        compared: of networks that sort.
        levels: reductions one after the other.
        layers: products.
        steps: of what blocks do together in steps. step_seconds, pieces: of each, and these blocks.
        rows, cols, terms: of the largest product.
        element_bytes: of its operands.
        extracted: by tensor, the elements that are read from it by index.
        sectors: by tensor, the bytes that memory moves for these.
    """

    tensor_ops: float = 0.0
    vector_ops: float = 0.0
    compared: float = 0.0
    levels: int = 0
    layers: int = 0
    steps: int = 0
    step_seconds: float = 0.0
    pieces: int = 1
    rows: int = 0
    cols: int = 0
    terms: int = 0
    element_bytes: int = 0
    extracted: dict[ir.Value, int] = dataclasses.field(default_factory=dict)
    sectors: dict[ir.Value, float] = dataclasses.field(default_factory=dict)

    @property
    def fields(self) -> dict[str, Any]:
        """What `Work` has of it."""
        return {
            **{name: getattr(self, name) for name in _COUNTED},
            "element_bytes": self.element_bytes or 2,
            "gathered_bytes": sum(points * tensor_bytes(value.type, [1]) for value, points in self.extracted.items()),
        }


def count(ops: Iterable[ir.Operation], engine: str = "", weights: Mapping[str, float] = rates.VECTOR_WEIGHTS) -> Counted:
    """Count the operations of ops on tensors (those of a stage, or of a task's tile).

    Args:
        engine: who does them, some of them in steps.
        weights: of scalar operations beside an addition, by name.
    """
    found, largest = Counted(), 0.0
    for op in ops:
        if op.name == RECURRENCE:
            found.tensor_ops += 2.0 * Recurrence.of(op).multiply_adds
        if op.name in (RECURRENCE, SORT) and (steps := step_of(op, engine)) is not None:
            found.steps, found.step_seconds, found.pieces = steps.count, steps.seconds, steps.blocks
        elif op.name == SORT:
            found.compared += _sorting(op)
        if not is_generic(op):
            continue
        access = access_of(op)
        points = math.prod(access.sizes) if access is not None else math.prod(shape_of(op.results[0]))
        for inner in body_of(op):
            if inner.name == "tensor.extract":
                value = inner.operands[0]
                found.extracted[value] = found.extracted.get(value, 0) + points
                moved = points * tensor_bytes(value.type, [1]) * max(1.0, SECTOR / run_bytes(op, inner))
                found.sectors[value] = found.sectors.get(value, 0.0) + moved
        if is_contraction(op):
            found.tensor_ops += 2.0 * points
            found.layers += 1
            if points > largest:
                largest = points
                _measure(op, found)
        elif not is_movement(op):
            counting = counting_of(op)
            if not isinstance(counting, str):  # a term is looked at once, and finds its counter
                points /= shape_of(op.results[0])[counting.bins]
            found.vector_ops += points * sum(weights.get(inner.name, 1.0) for inner in body_of(op))
            found.levels += "reduction" in iterator_kinds(op)
    return found


def _sorting(op: ir.Operation) -> float:
    """Operations of a network that sorts rows (Batcher's, of a power of two of elements)."""
    shape, along = shape_of(op.results[0]), ir.IntegerAttr(op.attributes["dimension"]).value
    levels = max(1, (shape[along] - 1).bit_length())
    words = 1 if element_bytes(op.operands[0].type) <= 4 else 2
    elements = math.prod(shape) // shape[along] << levels
    return elements * levels * (levels + 1) / 2 * words * rates.COMPARED


def _measure(op: ir.Operation, found: Counted) -> None:
    """Rows, columns and terms of a product."""
    found.rows, found.cols, found.terms = matrix_extents(op)
    found.element_bytes = element_bytes(op.operands[0].type)


def work_of_stage(stage: ir.Operation, engine: str | None = None, tile: Sequence[int] | None = None) -> Work:
    """The work of a `kitsune.stage`.

    Args:
        engine, tile: instead of the stage's own attributes.
    """
    adding = next((op for op in stage.regions[0].blocks[0].operations if op.operation.name == "tm_tensor.scatter"), None)
    if adding is not None and any(word in stage.attributes for word in (UPDATES, INTO, ORDERED)):
        return _work_of_scatter(stage, adding.operation)
    space = stage_space(stage)
    grid = Grid(space, list(tile) if tile is not None else tile_sizes(stage, space))
    engine = engine or engine_of(stage, for_maps())
    counted = count(space.ops, engine)
    tiles = grid.tasks
    # The last tile of a dimension that tiles do not divide overlaps the one before, which is then done twice.
    share = math.prod(t / d.size for d, t in zip(space.dims, grid.tile, strict=True))
    read = distinct = gathered = 0.0
    for value in (v for v in inputs_of(stage) if is_tensor(v)):
        whole = tensor_bytes(value.type)
        extracted = counted.extracted.get(value, 0)
        uses = uses_in(space, value, counted=True)
        if extracted and _only_extracted(space.ops, value):
            bytes_ = extracted * tensor_bytes(value.type, [1])
            read, gathered, distinct = read + bytes_ * share, gathered + bytes_ * share, distinct + min(whole, bytes_)
            if not any(value in list(op.operands) for op in space.ops):
                continue
            uses = [use for use in uses if any(along.dim is not None for along in use)]
            distinct -= min(whole, bytes_)
        parts = [
            tensor_bytes(
                value.type,
                [s if u.dim is None else min(s, u.size(grid.tile[u.dim])) for s, u in zip(shape_of(value), use, strict=True)],
            )
            for use in uses
        ]
        part = min(max(parts, default=whole), _of_slices(space.ops, value))
        read, distinct = read + part, distinct + min(whole, part * tiles)
    written = sum(tensor_bytes(v.type) for v in results_of(stage) if is_tensor(v)) * share
    along = {d.loops.get(_largest(space.ops)): t for d, t in zip(space.dims, grid.tile, strict=True)}
    work = Work(
        engine=engine,
        tiles=tiles,
        tensor_ops=counted.tensor_ops * share,
        vector_ops=counted.vector_ops * share,
        compared=counted.compared * share,
        read_bytes=read,
        write_bytes=written,
        distinct_bytes=distinct,
        levels=counted.levels,
        element_bytes=counted.element_bytes or 2,
        layers=counted.layers,
        gathered_bytes=gathered,
        steps=counted.steps,
        step_seconds=counted.step_seconds,
        pieces=counted.pieces,
    )
    return dataclasses.replace(work, **_tile_of_product(space.ops, along)) if counted.layers else work


ORDERED_PIECES = 128
"""Blocks that add rows in order together: about a machine's."""


def _work_of_scatter(stage: ir.Operation, op: ir.Operation) -> Work:
    """A scatter-add whose rows are added by tasks of its own; where those of another stage add them, what starts the sums."""
    updates, indices, original = list(op.operands)
    whole, rows = tensor_bytes(original.type), shape_of(updates)[0]
    if INTO in stage.attributes:
        tiles = max(1, whole // START_BYTES)
        return Work(for_maps(), tiles, read_bytes=0.0, write_bytes=whole / tiles)
    moved = tensor_bytes(updates.type)
    if ORDERED in stage.attributes:
        return Work(
            engine=for_updates(ORDERED),
            tiles=1,
            pieces=ORDERED_PIECES,
            vector_ops=64.0 * rows,  # instructions to sort an index twice
            read_bytes=tensor_bytes(indices.type) + 16.0 * rows + moved + whole,
            write_bytes=whole + 8.0 * rows,
            gathered_bytes=moved,
            distinct_bytes=moved + whole + tensor_bytes(indices.type),
            element_bytes=tensor_bytes(updates.type, [1]),
        )
    tiles = math.ceil(rows / ir.IntegerAttr(stage.attributes[UPDATES]).value)
    return Work(
        engine=for_updates("atomic"),
        tiles=tiles,
        vector_ops=math.prod(shape_of(updates)) / tiles,
        read_bytes=(moved + tensor_bytes(indices.type)) / tiles,
        write_bytes=(moved + whole) / tiles,
        atomic_bytes=moved / tiles,
        distinct_bytes=moved + tensor_bytes(indices.type),
        element_bytes=tensor_bytes(updates.type, [1]),
    )


def _of_slices(ops: Sequence[ir.Operation], value: ir.Value) -> float:
    """The bytes of a tensor's slices, where ops read nothing else of it."""
    readers = [op for op in ops if value in list(op.operands)]
    if not readers or any(op.name != "tensor.extract_slice" for op in readers) or any(value in captures(op) for op in ops):
        return math.inf
    return float(sum(tensor_bytes(op.results[0].type) for op in readers))


def _only_extracted(ops: Sequence[ir.Operation], value: ir.Value) -> bool:
    """Whether bodies read a tensor by index alone; as an operand it may be read, too."""
    return all(
        inner.name == "tensor.extract"
        for op in ops
        if value in captures(op)
        for inner in walk(op)
        if value in list(inner.operands)
    )


def _largest(ops: Sequence[ir.Operation]) -> int:
    """The number of the product with the most multiplications; -1 without products."""
    sizes = [
        (math.prod(a.sizes) if (a := access_of(op)) is not None else 0, n) for n, op in enumerate(ops) if is_contraction(op)
    ]
    return max(sizes, default=(0, -1))[1]


def _tile_of_product(ops: Sequence[ir.Operation], along: dict[int | None, int]) -> dict[str, int]:
    """Rows, columns and terms of a tile of the largest product, whose loops have tiles of `along`."""
    op = ops[_largest(ops)]
    sizes = [min(size, along.get(loop, size)) for loop, size in enumerate(loop_sizes(op))]
    return dict(zip(("rows", "cols", "terms"), matrix_extents(op, sizes), strict=True))
