"""Scatters on a GPU, in one of two forms; the host target keeps one task.

`tm_tensor.scatter` reads and writes its destination whole, so as one task it would keep one worker busy. Two tasks do the same:
one copies what is changed, the other combines tiles of rows with it by atomics, in any order. Float addition is not
associative, so the last bits of a sum may differ from run to run, as torch's do. Where results must be the same bits
(`kitsune-partition-streams{deterministic}`) and the order matters, one task of one tile combines them in their order; its
engine shares it among all blocks.
"""

import math
from dataclasses import dataclass

from torch_mlir import ir
from torch_mlir.dialects import arith, linalg, tensor

from kitsune_mlir.dialects.access import shape_of, static_ints
from kitsune_mlir.dialects.attribute_table import COUNTED, INTO
from kitsune_mlir.dialects.edges import producer_of, readers_of, stage_space, tile_sizes, trace_views
from kitsune_mlir.dialects.iteration import is_reshape, root_of
from kitsune_mlir.dialects.products import constant_fill, defining_op
from kitsune_mlir.dialects.scatter_kinds import ADDITIONS, ASSIGN, COMBINING
from kitsune_mlir.dialects.stage_graph import inputs_of, results_of, yielded
from kitsune_mlir.dialects.tile_program import AtomicScatterOp, OrderedScatterOp

ATOMIC_ELEMENTS = ("f32", "f64", "bf16", "f16", "i32", "i64")
ASSIGNED_ELEMENTS = (*ATOMIC_ELEMENTS, "i1", "i8", "i16")
_KINDS = {operation: kind for kind, operation in COMBINING.items()}


@dataclass(frozen=True)
class Scatter:
    """A stage that puts rows of `updates` [E, 1, ...] into `original` [N, ...] at `indices` [E, 1] (or [E]).

    `kind` says what becomes of what is there; `start` is the constant that fills `original` where the stage makes it itself.
    Where indices are a part of a tensor in memory (`edge_index[1]`), `indices` is that tensor, and `place` its first element
    that is one of them; all lie side by side from there on. `counted` is `kitsune.counted_rows`, where it says that.
    """

    updates: ir.Value
    indices: ir.Value
    original: ir.Value
    kind: str
    start: ir.Attribute | None = None
    place: int | None = None
    counted: ir.Attribute | None = None

    @property
    def rows(self) -> int:
        """How many rows are put there."""
        return shape_of(self.updates)[0]

    @property
    def participle(self) -> str:
        """What becomes of rows, for remarks."""
        return "added" if self.kind in ADDITIONS else "assigned" if self.kind == ASSIGN else "combined"

    @property
    def columns(self) -> int:
        """Elements of a row."""
        return max(1, math.prod(shape_of(self.original)[1:]))


def constant_start(maker: ir.Operation) -> ir.Attribute | None:
    """The one value that a constant tensor or a constant fill has everywhere, or None."""
    if maker.name == "arith.constant" and isinstance(maker.attributes["value"], ir.DenseElementsAttr):
        value = ir.DenseElementsAttr(maker.attributes["value"])
        return value.get_splat_value() if value.is_splat else None
    filled = constant_fill(maker)
    return filled.attributes["value"] if filled is not None else None


def scatter_of(stage: ir.Operation) -> Scatter | None:
    """The scatter that a stage consists of, or None."""
    value = yielded(stage)
    op = defining_op(value[0]) if len(value) == 1 else None
    if op is None or op.name != "tm_tensor.scatter" or list(ir.DenseI64ArrayAttr(op.attributes["dimension_map"])) != [0]:
        return None
    updates, indices, original = list(op.operands)
    inside = {hash(o.operation) for o in stage.regions[0].blocks[0].operations}
    indices, place = part_of(indices)
    if any((maker := defining_op(v)) is not None and hash(maker) in inside for v in (updates, indices)):
        return None
    maker = defining_op(original)
    start = constant_start(maker) if maker is not None and hash(maker) in inside else None
    if start is None and maker is not None and hash(maker) in inside:
        return None
    window = shape_of(updates)[1:]
    if window == [1, *shape_of(original)[1:]]:
        pass
    elif window != shape_of(original)[1:]:
        return None
    kind = _kind(op)
    if kind is None or str(ir.ShapedType(original.type).element_type) not in (
        ASSIGNED_ELEMENTS if kind == ASSIGN else ATOMIC_ELEMENTS
    ):
        return None
    counted = op.attributes[COUNTED] if COUNTED in op.attributes else None
    return Scatter(updates, indices, original, kind, start, place, counted)


def part_of(value: ir.Value) -> tuple[ir.Value, int | None]:
    """The tensor that `value` shows a part of, whose elements lie side by side in memory, and the number of the first one; the
    value itself and None where it shows none."""
    found: tuple[ir.Value, int | None] = value, None
    first, source = 0, value
    while (op := defining_op(source)) is not None and (is_reshape(op) or op.name == "tensor.extract_slice"):
        if op.name == "tensor.extract_slice":
            start = _first_of(op)
            if start is None:
                break
            first += start
            found = op.operands[0], first
        source = op.operands[0]
    return found


def _first_of(op: ir.Operation) -> int | None:
    """Of a slice whose elements lie side by side, the number of the first one; None for others."""
    if len(op.operands) > 1 or set(static_ints(op, "static_strides")) - {1}:
        return None
    shape, sizes, starts = shape_of(op.operands[0]), static_ints(op, "static_sizes"), static_ints(op, "static_offsets")
    wide = next((dim for dim, size in enumerate(sizes) if size != 1), len(sizes))
    if sizes[wide + 1 :] != shape[wide + 1 :]:
        return None
    strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    return sum(start * stride for start, stride in zip(starts, strides, strict=True))


def _kind(op: ir.Operation) -> str | None:
    """What a `tm_tensor.scatter` does with two values that meet; None for what no atomic does."""
    block = op.regions[0].blocks[0]
    update, old = block.arguments
    body = [o.operation for o in block.operations]
    if len(body) == 1:
        return ASSIGN if body[0].operands[0] == update else None
    combined = len(body) == 2 and {*body[0].operands} == {update, old}
    return _KINDS.get(body[0].name) if combined else None


def producer_that_adds(stage: ir.Operation, scatter: Scatter) -> ir.Operation | None:
    """The stage whose tasks could add their own rows, as soon as they have them; None where there is no such stage.

    Its tiles are rows of the updates, and it needs nothing else from other stages: indices and start are there before it, or
    it may come after what makes the start, since nobody else reads its rows.
    """
    value, dims = trace_views(scatter.updates)
    producer, result = producer_of(value)
    if producer is None or producer.name != "kitsune.stage" or not dims or dims[0] != 0:
        return None
    if result_slices(producer, result)[0] is None or _made_by_stage(scatter.indices):
        return None
    if scatter.original in inputs_of(stage) and _made_by_stage(scatter.original):
        readers = [user for users in readers_of(producer).values() for user in users]
        if readers != [stage] or len(results_of(producer)) > 1 or value in map(root_of, yielded(producer.parent)):
            return None
    return producer


def _made_by_stage(value: ir.Value) -> bool:
    maker, _ = producer_of(trace_views(value)[0])
    return maker is not None


def add_by(producer: ir.Operation, stage: ir.Operation, scatter: Scatter) -> None:
    """Let the tasks of `producer`, as `producer_that_adds` gives it, do the scatter that a stage consists of: its tiles become
    whole rows."""
    stage.attributes[INTO] = producer.attributes["sym_name"]
    if scatter.original in inputs_of(stage) and _made_by_stage(scatter.original):
        views = [scatter.updates]
        while (view := defining_op(views[-1])) is not None and view != producer:
            views.append(view.operands[0])
        for value in reversed(views):
            value.owner.move_before(stage)
    space = stage_space(producer)
    tile = tile_sizes(producer, space)
    rows, *others = result_slices(producer, producer_of(trace_views(scatter.updates)[0])[1])
    for dim in others:
        if dim is not None and rows is not None and tile[dim] < space.dims[dim].size:
            tile[rows] = max(1, tile[rows] * tile[dim] // space.dims[dim].size)
            tile[dim] = space.dims[dim].size
    producer.attributes["tile"] = ir.DenseI64ArrayAttr.get(tile)


def handed_over(stage: ir.Operation, result: int) -> bool:
    """Whether only scatters that the stage itself does read a result: it is never in memory."""
    own = stage.attributes["sym_name"]
    return all(INTO in user.attributes and user.attributes[INTO] == own for user in readers_of(stage).get(result, [stage]))


def result_slices(stage: ir.Operation, result: int) -> list[int | None]:
    """Which shared dimension of a stage runs along each dimension of a result."""
    space, value = stage_space(stage), yielded(stage)[result]
    n, r = next((n, r) for n, op in enumerate(space.ops) for r, v in enumerate(op.results) if v == value)
    return space.result_dims(n, r)


def emit_start(scatter: Scatter, original: ir.Value | None, result: ir.Value) -> None:
    """The body of one task: copy (or fill) the view `result` from the view `original` of the same shape."""
    _store(_started(scatter, original, result), result)


def _started(scatter: Scatter, original: ir.Value | None, result: ir.Value) -> ir.Value:
    """What a tile of the result starts from, as a tensor."""
    shape, element = list(ir.ShapedType(result.type).shape), ir.ShapedType(result.type).element_type
    if scatter.start is not None:
        constant = ir.Operation.create("arith.constant", [element], [], {"value": scatter.start}).results[0]
        return linalg.fill(constant, outs=[tensor.empty(shape, element)])
    type_, unit = ir.RankedTensorType.get(shape, element), ir.UnitAttr.get()
    return ir.Operation.create("bufferization.to_tensor", [type_], [original], {"restrict": unit}).results[0]


def _store(tile: ir.Value, result: ir.Value) -> None:
    unit = ir.UnitAttr.get()
    attributes = {"restrict": unit, "writable": unit}
    ir.Operation.create("bufferization.materialize_in_destination", [], [tile, result], attributes)


def emit_sums(
    scatter: Scatter, original: ir.Value | None, rows: ir.Value, places: ir.Value, first: ir.Value, result: ir.Value
) -> None:
    """The body of one task of a scatter in order: the view `result`, whose first row is `first`, is what it starts from
    (the view `original`, of the same shape) and all of `rows` that `places` puts there."""
    start = _started(scatter, original, result)
    kind = ir.StringAttr.get(scatter.kind)
    _store(OrderedScatterOp(start, rows, places, first, kind, start.type).operation.results[0], result)


def _as_rows(tile: ir.Value, result: ir.Value) -> ir.Value:
    """Rows that a task has computed, in the shape of rows of the memref `result`."""
    shape, type_ = shape_of(tile), ir.RankedTensorType(tile.type)
    wanted = [shape[0], *list(ir.ShapedType(result.type).shape)[1:]]
    if shape == wanted:
        return tile
    flat = [shape[0], math.prod(shape[1:])] if len(wanted) > 1 else [shape[0]]
    if len(shape) > len(flat):
        groups = [[0], list(range(1, len(shape)))] if len(wanted) > 1 else [list(range(len(shape)))]
        tile = tensor.CollapseShapeOp(ir.RankedTensorType.get(flat, type_.element_type), tile, groups).result
    if shape_of(tile) != wanted:
        groups = [[0], list(range(1, len(wanted)))] if len(shape) > 1 else [list(range(len(wanted)))]
        tile = tensor.ExpandShapeOp(ir.RankedTensorType.get(wanted, type_.element_type), tile, groups, [], wanted).result
    return tile


def emit_scatter(scatter: Scatter, rows: ir.Value, places: ir.Value, first: ir.Value | None, result: ir.Value) -> ir.Operation:
    """Put the tensor `rows` into the memref `result` at the rows named by the tensor `places`, but for those before `first`."""
    if first is None:
        first = arith.constant(ir.IndexType.get(), 0)
    made = AtomicScatterOp(_as_rows(rows, result), places, first, result, ir.StringAttr.get(scatter.kind)).operation
    if scatter.counted is not None:
        made.attributes[COUNTED] = scatter.counted
    return made
