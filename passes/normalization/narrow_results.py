"""Results that are exact widenings stay narrow: what torch rounds to bf16 and computes on in f32 is stored as bf16.

The importer writes LayerNorm of a bf16 tensor as a widened tensor and f32 work on it. Where a stage ends between the two, the
tensor goes through memory; half of the bytes hold nothing. Likewise f32 sums of a product or a scan that whoever reads them
rounds first.
"""

from torch_mlir import ir
from torch_mlir.dialects import tensor

from kitsune_mlir.dialects.access import affine_maps, iterator_kinds, shape_of
from kitsune_mlir.dialects.products import body_of, defining_op, is_contraction, is_generic, is_movement, yield_of
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.passes.reductions.associative import generic

SCAN = "tm_tensor.scan"


def narrow_results(module: ir.Operation) -> None:
    """Let element-wise ops yield the narrow value that they widen last, and their users widen it; round sums at once."""
    for op in [op for op in walk(module) if is_contraction(op) or op.name == SCAN]:
        _round(op.results[0])
    for op in [op for op in walk(module) if is_generic(op)]:
        if all(kind == "parallel" for kind in iterator_kinds(op)):
            for number in range(len(op.results)):
                _narrow(op, number)
            _read_source(op)


def _round(sums: ir.Value) -> None:
    """Round sums in an op of its own, where every user is a reduction that begins with that.

    An element-wise user does it in the stage of the sums.
    """
    uses = [(use.owner.operation, use.operand_number) for use in sums.uses]
    casts: list[ir.Operation] = []
    for user, operand in uses:
        if not _reads(user, operand) or "reduction" not in iterator_kinds(user):
            return
        inside = [use.owner.operation for use in user.regions[0].blocks[0].arguments[operand].uses]
        if any(cast.name != "arith.truncf" for cast in inside):
            return
        casts += inside
    narrow = {str(cast.results[0].type): cast.results[0].type for cast in casts}
    if not casts or len(narrow) != 1:
        return
    (element,) = narrow.values()
    shape = shape_of(sums)
    with ir.InsertionPoint.after(sums.owner), sums.owner.location:
        op, block = generic(
            [sums], [tensor.empty(shape, element)], [ir.AffineMap.get_identity(len(shape))] * 2, ["parallel"] * len(shape)
        )
        with ir.InsertionPoint(block):
            cast = ir.Operation.create("arith.truncf", [element], [block.arguments[0]])
            ir.Operation.create("linalg.yield", [], [cast.results[0]])
    for user, operand in uses:
        user.operands[operand] = op.results[0]
        user.regions[0].blocks[0].arguments[operand].set_type(element)
    for cast in casts:
        cast.results[0].replace_all_uses_with(cast.operands[0])
        cast.erase()


def _read_source(op: ir.Operation) -> None:
    """Let the users of a pure cast of what another op makes read its operand, and widen it themselves."""
    if not is_movement(op) or [inner.name for inner in body_of(op)] != ["arith.extf"]:
        return
    source, (first, second) = op.operands[0], affine_maps(op)
    if first != second or not first.is_permutation or defining_op(source) is None:
        return
    for user, operand in [(use.owner.operation, use.operand_number) for use in op.results[0].uses]:
        if _reads(user, operand) and not is_contraction(user):
            user.operands[operand] = source
            _widen_inside(user, operand, body_of(op)[0].results[0].type)


def _narrow(op: ir.Operation, number: int) -> None:
    inputs = len(op.operands) - len(op.results)
    block, result = op.regions[0].blocks[0], op.results[number]
    widening = defining_op(yield_of(op).operands[number])
    if widening is None or widening.name != "arith.extf" or widening.operation.block != block:
        return
    source = widening.operands[0]
    if defining_op(source) is None or list(block.arguments[inputs + number].uses):
        return  # a pure cast of an operand: its users read the operand
    uses = [(use.owner.operation, use.operand_number) for use in result.uses]
    if not uses or not all(_reads(user, operand) or user.name == "tensor.extract" for user, operand in uses):
        return
    with ir.InsertionPoint(op), op.location:
        op.operands[inputs + number] = tensor.empty(shape_of(result), source.type)
    block.arguments[inputs + number].set_type(source.type)
    result.set_type(ir.RankedTensorType.get(shape_of(result), source.type))
    yield_of(op).operands[number] = source
    for user, operand in uses:
        if user.name == "tensor.extract":
            _widen_element(user, source.type, widening.results[0].type)
        else:
            _widen_inside(user, operand, widening.results[0].type)


def _reads(user: ir.Operation, operand: int) -> bool:
    """Whether a use is an input of a linalg.generic."""
    return is_generic(user) and operand < len(user.operands) - len(user.results)


def _widen_inside(user: ir.Operation, operand: int, wide: ir.Type) -> None:
    """Widen an input at the start of a generic's body, for a narrower tensor than before."""
    block = user.regions[0].blocks[0]
    argument = block.arguments[operand]
    argument.set_type(ir.ShapedType(user.operands[operand].type).element_type)
    with ir.InsertionPoint.at_block_begin(block), user.location:
        cast = ir.Operation.create("arith.extf", [wide], [argument])
    argument.replace_all_uses_except(cast.results[0], cast)


def _widen_element(extract: ir.Operation, narrow: ir.Type, wide: ir.Type) -> None:
    """Widen what is read by index of a narrower tensor than before."""
    element = extract.results[0]
    element.set_type(narrow)
    with ir.InsertionPoint.after(extract), extract.location:
        cast = ir.Operation.create("arith.extf", [wide], [element])
    element.replace_all_uses_except(cast.results[0], cast)
