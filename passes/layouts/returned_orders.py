"""Results that are another tensor with its dimensions in another order are returned as that tensor lies in memory.

A view of heads, `k.view(b, t, h, d).transpose(1, 2)`, is no work for torch, which returns it with its strides; row-major it
would be a stage that waits for all of a product and moves it. The attribute `kitsune.dim_order` of a result says how it lies.
"""

from torch_mlir import ir

from kitsune_mlir.dialects.access import affine_maps
from kitsune_mlir.dialects.attribute_table import MUTATES, ORDER
from kitsune_mlir.dialects.iteration import is_free, is_reshape
from kitsune_mlir.dialects.products import body_of, defining_op, is_generic, is_movement
from kitsune_mlir.dialects.verify import walk

from .argument_orders import result_attributes, settle_type


def order_results(module: ir.Operation) -> None:
    """Return what a permutation reads instead of what it makes, where the program computes it."""
    for function in [op for op in walk(module) if op.name == "func.func" and len(op.regions[0].blocks) == 1]:
        terminator = list(function.regions[0].blocks[0].operations)[-1].operation
        found = {number: order for number in range(len(terminator.operands)) if (order := _order(terminator, number))}
        if not found:
            continue
        every = [result_attributes(function, number) for number in range(len(terminator.operands))]
        for number, order in found.items():
            if ORDER in every[number] or MUTATES in every[number]:  # what is written over an argument lies as that does
                continue
            permuted = defining_op(terminator.operands[number])
            assert permuted is not None
            terminator.operands[number] = permuted.operands[0]
            every[number][ORDER] = ir.DenseI64ArrayAttr.get(order)
        function.attributes["res_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(attributes) for attributes in every])
        settle_type(function)


def _order(terminator: ir.Operation, number: int) -> list[int] | None:
    """The order in memory, outermost first, of a returned tensor's dimensions, if it is a permutation of a computed tensor."""
    op = defining_op(terminator.operands[number])
    if op is None or not is_movement(op) or body_of(op):
        return None
    source, made = affine_maps(op)
    if source == made or not (source.is_permutation and made.is_permutation) or not _computed(op.operands[0]):
        return None
    loops = [ir.AffineDimExpr(e).position for e in made.results]
    return [loops.index(ir.AffineDimExpr(e).position) for e in source.results]


def _computed(value: ir.Value) -> bool:
    """Whether a loop nest of the program makes the tensor: an argument, or a part of one, would have to be copied."""
    op = defining_op(value)
    while op is not None and is_reshape(op):
        op = defining_op(op.operands[0])
    return op is not None and is_generic(op) and not is_free(op)
