"""Weights as convolutions read them, taken so from the caller: the runtime lays them out once, before the first call."""

from collections.abc import Sequence

from torch_mlir import ir
from torch_mlir.dialects import tensor

from kitsune_mlir.dialects.access import is_tensor, reassociation, shape_of
from kitsune_mlir.dialects.attribute_table import ORDER, PADDED, SIDE_BY_SIDE
from kitsune_mlir.dialects.iteration import is_trivial_reshape
from kitsune_mlir.dialects.products import defining_op
from kitsune_mlir.dialects.verify import captures
from kitsune_mlir.passes.layouts.argument_orders import attributes_of, is_weight, set_attribute

__all__ = ["line_order", "take_side_by_side"]


def line_order(function: ir.Operation, expand: ir.Operation, wanted: Sequence[int]) -> tuple[list[int], list[list[int]]] | None:
    """How a weight that is seen with more dimensions, of 1 (a convolution along one), is transposed before that instead.

    Args:
        wanted: the order of the dimensions that it is seen with.

    Returns:
        The order of its own dimensions, and which of the others, in the order wanted, each of them is then seen as. None where
        it is no weight, or there is no such order.
    """
    if expand.name != "tensor.expand_shape" or not is_trivial_reshape(expand) or defining_op(expand.operands[0]) is not None:
        return None
    if not is_weight(function, ir.BlockArgument(expand.operands[0]).arg_number):
        return None
    groups = reassociation(expand)
    sources = [next(n for n, group in enumerate(groups) if dim in group) for dim in wanted]
    order = list(dict.fromkeys(sources))
    parts = [[place for place, source in enumerate(sources) if source == number] for number in order]
    return None if any(part != list(range(part[0], part[-1] + 1)) for part in parts) else (order, parts)


def take_side_by_side(function: ir.Operation, dense: ir.Value, rows: int, count: int) -> None:
    """Take a weight with every `count` groups of `rows` rows side by side, where nothing else reads it.

    Args:
        dense: the generic that puts them so, of a weight whose channels are its last dimension in memory.
    """
    (read,) = [value for value in captures(dense.owner.operation) if is_tensor(value)]
    maker = defining_op(read)
    seen = maker is not None and maker.name == "tensor.expand_shape"
    argument = maker.operands[0] if maker is not None and seen else read
    if defining_op(argument) is not None or len(list(argument.uses)) != 1 or len(list(read.uses)) != 1:
        return
    number = ir.BlockArgument(argument).arg_number
    held = attributes_of(function, number)
    if not is_weight(function, number) or ORDER not in held or PADDED in held:
        return
    order, shape = list(ir.DenseI64ArrayAttr(held[ORDER])), shape_of(argument)
    shape[-1] *= count
    element = ir.ShapedType(argument.type).element_type
    argument.set_type(ir.RankedTensorType.get(shape, element))
    whole = argument
    if maker is not None:
        with ir.InsertionPoint(maker), maker.location:
            parts = reassociation(maker)
            whole = tensor.expand_shape(dense.type, argument, parts, [], shape_of(dense))
    dense.replace_all_uses_with(whole)
    for op in (dense.owner.operation, maker):
        if op is not None:
            op.erase()
    set_attribute(function, number, PADDED, [shape[order.index(dim)] for dim in range(len(order))])
    set_attribute(function, number, SIDE_BY_SIDE, (rows, count))
