"""Explicit copies, where a result is not simply what one stage computes."""

from torch_mlir import ir
from torch_mlir.dialects import tensor

from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.attribute_table import NO_FUSION
from kitsune_mlir.dialects.iteration import is_free, is_view, root_of
from kitsune_mlir.dialects.products import defining_op
from kitsune_mlir.passes.tile_program.scatter import constant_start, part_of


def copy_of(value: ir.Value) -> ir.Value:
    """An element-wise linalg.generic that copies `value`, made at the insertion point; of a constant it has no input, so that
    it is cut into tiles as any other."""
    type_ = ir.RankedTensorType(value.type)
    maker = defining_op(value)
    number = constant_start(maker) if maker is not None else None
    read = [] if number is not None else [value]
    empty = tensor.empty(shape_of(value), type_.element_type)
    map_ = ir.AffineMapAttr.get(ir.AffineMap.get_identity(type_.rank))
    parallel = ir.Attribute.parse("#linalg.iterator_type<parallel>")
    op = ir.Operation.create(
        "linalg.generic",
        [value.type],
        [*read, empty],
        {
            "indexing_maps": ir.ArrayAttr.get([map_] * (len(read) + 1)),
            "iterator_types": ir.ArrayAttr.get([parallel] * type_.rank),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(read), 1]),
            **({} if read else {NO_FUSION: ir.UnitAttr.get()}),  # it would be free, and written again wherever it is read
        },
        regions=1,
    )
    places = [type_.element_type] * (len(read) + 1)
    block = op.regions[0].blocks.append(*places, arg_locs=[ir.Location.current] * len(places))
    with ir.InsertionPoint(block):
        made = block.arguments[0]
        if number is not None:
            made = ir.Operation.create("arith.constant", [type_.element_type], [], {"value": number}).results[0]
        ir.Operation.create("linalg.yield", [], [made])
    return op.results[0]


def settle_results(block: ir.Block) -> None:
    """Give every returned value a stage of its own: copy arguments, constants, slices, and values returned twice."""
    terminator = list(block.operations)[-1].operation
    seen: set[ir.Value] = set()
    for i, value in enumerate(terminator.operands):
        if not isinstance(value.type, ir.RankedTensorType):
            continue
        root = root_of(value)
        maker = defining_op(root)
        if maker is None or is_free(maker) or root in seen:
            with ir.InsertionPoint(terminator), value.owner.location if maker else ir.Location.unknown():
                terminator.operands[i] = copy_of(value)
            continue
        seen.add(root)


def settle_views(block: ir.Block) -> None:
    """Copy what a view shows where no stage holds it in memory: a slice, a fill, a constant."""
    for op in [o.operation for o in block.operations]:
        if is_view(op):
            _settle(op, 0)


def settle_scatters(block: ir.Block) -> None:
    """Copy rows and indices of scatters that no stage holds in memory: a fill, every other one of some. Tasks that add rows
    side by side read them there. Of indices a part that lies in memory as it is (`edge_index[1]`) will do. So are they copied
    into: what a scatter changes lies in memory, too (not a column of a table), but for one number everywhere."""
    for op in [o.operation for o in block.operations]:
        if op.name == "tm_tensor.scatter":
            _settle(op, 0)
            source, place = part_of(op.operands[1])
            maker = defining_op(root_of(source))
            if place is None or (maker is not None and is_free(maker)):
                _settle(op, 1)
            start = defining_op(op.operands[2])
            if start is not None and constant_start(start) is None:
                _settle(op, 2)


def _settle(op: ir.Operation, number: int) -> None:
    """Copy an operand that each stage would make for itself."""
    maker = defining_op(root_of(op.operands[number]))
    if maker is not None and is_free(maker):
        with ir.InsertionPoint(op), op.location:
            op.operands[number] = copy_of(op.operands[number])
