"""Padding of convolutions: which pads need no stage of their own, since an engine reads zeros outside of the image itself."""

from torch_mlir import ir

from kitsune_mlir.dialects.access import shape_of, static_ints
from kitsune_mlir.dialects.attribute_table import HALO
from kitsune_mlir.dialects.iteration import is_trivial_reshape
from kitsune_mlir.dialects.products import defining_op, is_contraction, is_projected_product
from kitsune_mlir.passes.layouts.by_index import padded_by_index
from kitsune_mlir.passes.layouts.pads import padded, padding_value, pads_with_zero

WIDTHS = ("bf16", "f16", "f32")


def mark_halos(block: ir.Block) -> None:
    """Mark (`kitsune.halo`) every `tensor.pad` with zeros that only convolutions of floating-point images read."""
    for op in [o.operation for o in block.operations]:
        if op.name == "tensor.expand_shape" and is_trivial_reshape(op):
            _pad_after(op)
    for op in [o.operation for o in block.operations]:
        if op.name == "tensor.pad" and len(op.operands) == 1 and pads_with_zero(op) and _only_convolved(op):
            op.attributes[HALO] = ir.UnitAttr.get()


def _only_convolved(pad: ir.Operation) -> bool:
    users = [(use.owner.operation, use.operand_number) for use in pad.results[0].uses]
    narrow = str(ir.ShapedType(pad.results[0].type).element_type) in WIDTHS
    return narrow and bool(users) and all(n == 0 and is_contraction(op) and not is_projected_product(op) for op, n in users)


def _pad_after(expand: ir.Operation) -> None:
    """expand(pad(x)) as pad(expand(x)): a batch of one image is then padded in the shape that the convolution reads."""
    pad = defining_op(expand.operands[0])
    if pad is None or pad.name != "tensor.pad" or len(pad.operands) != 1 or len(list(pad.results[0].uses)) != 1:
        return
    source, wide = shape_of(pad.operands[0]), shape_of(expand.results[0])
    groups = [[ir.IntegerAttr(d).value for d in ir.ArrayAttr(g)] for g in ir.ArrayAttr(expand.attributes["reassociation"])]
    shape, low, high = [1] * len(wide), [0] * len(wide), [0] * len(wide)
    amounts = [list(ir.DenseI64ArrayAttr(pad.attributes[f"static_{side}"])) for side in ("low", "high")]
    for dim, group in enumerate(groups):
        place = next((d for d in group if wide[d] != 1), group[0])
        shape[place], low[place], high[place] = source[dim], amounts[0][dim], amounts[1][dim]
    element = ir.ShapedType(pad.results[0].type).element_type
    with ir.InsertionPoint(expand), pad.location:
        attributes = {
            "reassociation": expand.attributes["reassociation"],
            "static_output_shape": ir.DenseI64ArrayAttr.get(shape),
        }
        type_ = ir.RankedTensorType.get(shape, element)
        moved = ir.Operation.create("tensor.expand_shape", [type_], [pad.operands[0]], attributes)
        made = padded(moved.results[0], low, high, padding_value(pad))
    expand.results[0].replace_all_uses_with(made)
    expand.erase()
    pad.erase()


def gather_pads(block: ir.Block) -> None:
    """Write every other `tensor.pad` by one constant as a generic that reads its source by index, so that it can be cut along
    the padded dimensions too."""
    for op in [o.operation for o in block.operations]:
        if op.name != "tensor.pad" or len(op.operands) != 1 or HALO in op.attributes:
            continue
        value = padding_value(op)
        maker = defining_op(value)
        if maker is None or maker.name != "arith.constant":
            continue
        low, high = (static_ints(op, name) for name in ("static_low", "static_high"))
        with ir.InsertionPoint(op), op.location:
            made = padded_by_index(op.operands[0], low, high, value)
        op.results[0].replace_all_uses_with(made)
        op.erase()
