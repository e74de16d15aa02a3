"""Scatter-add as two tasks: copy what is added to, then add rows with atomics, so that all workers take part.

`tm_tensor.scatter` reads and writes its destination whole, so as one task it would keep one worker busy. Adding is
commutative: on a GPU the rows of the updates are tiled instead, in any order. (Float addition is not associative: the last
bits of the result may differ from run to run. The host target keeps the one ordered task.)
"""

from dataclasses import dataclass

from torch_mlir import ir
from torch_mlir.dialects import arith, linalg, memref, scf, tensor

from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.products import constant_fill, defining_op
from kitsune_mlir.dialects.stage_graph import yielded

ADDITIONS = ("arith.addf", "arith.addi")
ATOMIC_KINDS = {"arith.addf": "addf", "arith.addi": "addi"}
ATOMIC_ELEMENTS = ("f32", "f64", "bf16", "f16", "i32", "i64")
UPDATES = "updates"  # attribute of a stage: rows of updates a task; set by kitsune-partition-streams


@dataclass(frozen=True)
class ScatterAdd:
    """A stage that adds rows of `updates` [E, 1, ...] to `original` [N, ...] at `indices` [E, 1] (or [E]).

    `start` is the constant that fills `original` where it is made by the stage itself.
    """

    updates: ir.Value
    indices: ir.Value
    original: ir.Value
    kind: str
    start: ir.Attribute | None = None

    @property
    def rows(self) -> int:
        """How many rows are added."""
        return shape_of(self.updates)[0]


def constant_start(maker: ir.Operation) -> ir.Attribute | None:
    """The one value that a constant tensor or a constant fill has everywhere, or None."""
    if maker.name == "arith.constant" and isinstance(maker.attributes["value"], ir.DenseElementsAttr):
        value = ir.DenseElementsAttr(maker.attributes["value"])
        return value.get_splat_value() if value.is_splat else None
    filled = constant_fill(maker)
    return filled.attributes["value"] if filled is not None else None


def scatter_add_of(stage: ir.Operation) -> ScatterAdd | None:
    """The scatter-add that a stage consists of, or None."""
    value = yielded(stage)
    op = defining_op(value[0]) if len(value) == 1 else None
    if op is None or op.name != "tm_tensor.scatter" or list(ir.DenseI64ArrayAttr(op.attributes["dimension_map"])) != [0]:
        return None
    updates, indices, original = list(op.operands)
    inside = {hash(o.operation) for o in stage.regions[0].blocks[0].operations}
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
    body = [o.operation for o in op.regions[0].blocks[0].operations]
    if len(body) != 2 or body[0].name not in ADDITIONS or str(ir.ShapedType(original.type).element_type) not in ATOMIC_ELEMENTS:
        return None
    return ScatterAdd(updates, indices, original, ATOMIC_KINDS[body[0].name], start)


def emit_start(scatter: ScatterAdd, original: ir.Value | None, result: ir.Value) -> None:
    """The body of one task: copy (or fill) the view `result` from the view `original` of the same shape."""
    unit = ir.UnitAttr.get()
    shape, element = list(ir.ShapedType(result.type).shape), ir.ShapedType(result.type).element_type
    if scatter.start is not None:
        constant = ir.Operation.create("arith.constant", [element], [], {"value": scatter.start}).results[0]
        tile = linalg.fill(constant, outs=[tensor.empty(shape, element)])
    else:
        type_ = ir.RankedTensorType.get(shape, element)
        tile = ir.Operation.create("bufferization.to_tensor", [type_], [original], {"restrict": unit}).results[0]
    attributes = {"restrict": unit, "writable": unit}
    ir.Operation.create("bufferization.materialize_in_destination", [], [tile, result], attributes)


def emit_addition(
    scatter: ScatterAdd, updates: ir.Value, indices: ir.Value, result: ir.Value, tile: ir.Value, rows: int
) -> None:
    """The body of one task: add rows [tile * rows, ...) of the memref `updates` to the memref `result`."""
    element = ir.ShapedType(result.type).element_type

    def index(value: int) -> ir.Value:
        return arith.constant(ir.IndexType.get(), value)

    total, zero, one = index(scatter.rows), index(0), index(1)
    first = arith.muli(tile, index(rows))
    columns = list(ir.ShapedType(result.type).shape)[1:]
    uppers = [index(rows), *map(index, columns)]
    loop = ir.Operation.create(
        "scf.parallel",
        [],
        [*[zero] * len(uppers), *uppers, *[one] * len(uppers)],
        {"operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(uppers)] * 3 + [0])},
        regions=1,
    )
    block = loop.regions[0].blocks.append(*[ir.IndexType.get()] * len(uppers), arg_locs=[ir.Location.current] * len(uppers))
    with ir.InsertionPoint(block):
        row = arith.addi(first, block.arguments[0])
        guard = scf.IfOp(arith.cmpi(arith.CmpIPredicate.ult, row, total))
        with ir.InsertionPoint(guard.then_block):
            extra = [zero] * (len(list(ir.ShapedType(indices.type).shape)) - 1)
            place = memref.load(indices, [row, *extra])
            target = arith.index_cast(ir.IndexType.get(), place)
            # An index outside the destination would write to other memory: such a row is left out.
            inside = scf.IfOp(arith.cmpi(arith.CmpIPredicate.ult, target, index(list(ir.ShapedType(result.type).shape)[0])))
            between = [zero] * (len(list(ir.ShapedType(updates.type).shape)) - 1 - len(columns))
            with ir.InsertionPoint(inside.then_block):
                value = memref.load(updates, [row, *between, *list(block.arguments)[1:]])
                kind = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), {"addf": 0, "addi": 1}[scatter.kind])
                operands = [value, result, target, *list(block.arguments)[1:]]
                ir.Operation.create("memref.atomic_rmw", [element], operands, {"kind": kind})
                scf.YieldOp([])
            scf.YieldOp([])
        ir.Operation.create("scf.reduce", [], [])
