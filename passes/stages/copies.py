"""Explicit copies, where a result is not simply what one stage computes."""

from torch_mlir import ir
from torch_mlir.dialects import tensor

from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.iteration import is_free, is_view, root_of
from kitsune_mlir.dialects.products import defining_op


def identity_generic(value: ir.Value) -> ir.Value:
    """An element-wise linalg.generic that copies `value`, made at the insertion point."""
    type_ = ir.RankedTensorType(value.type)
    rank = type_.rank
    empty = tensor.empty(shape_of(value), type_.element_type)
    map_ = ir.AffineMapAttr.get(ir.AffineMap.get_identity(rank))
    parallel = ir.Attribute.parse("#linalg.iterator_type<parallel>")
    op = ir.Operation.create(
        "linalg.generic",
        [value.type],
        [value, empty],
        {
            "indexing_maps": ir.ArrayAttr.get([map_, map_]),
            "iterator_types": ir.ArrayAttr.get([parallel] * rank),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 1]),
        },
        regions=1,
    )
    block = op.regions[0].blocks.append(type_.element_type, type_.element_type, arg_locs=[ir.Location.current] * 2)
    with ir.InsertionPoint(block):
        ir.Operation.create("linalg.yield", [], [block.arguments[0]])
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
                terminator.operands[i] = identity_generic(value)
            continue
        seen.add(root)


def settle_views(block: ir.Block) -> None:
    """Copy what a view shows where no stage holds it in memory: a slice, a fill, a constant."""
    for op in [o.operation for o in block.operations]:
        if not is_view(op):
            continue
        maker = defining_op(root_of(op.operands[0]))
        if maker is not None and is_free(maker):
            with ir.InsertionPoint(op), op.location:
                op.operands[0] = identity_generic(op.operands[0])
