"""`kitsune-pad-sums`: sums of odd length get zeros at their end where the rows are made by the program itself.

TMA reads rows that begin at multiples of 16 bytes. Rows that a concatenation makes may have any width, so they are made wider.
A weight of the model is taken with wider rows: it is placed so before the first call, as one in another order of dimensions is
(`runtime/program.py`). Any other argument has to be copied, once a call: a stage that depends on nothing, and is put where it
runs beside others.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir
from torch_mlir.dialects import arith, tensor

from kitsune_mlir.codegen.gpu.engines.chain.layers import WIDTH
from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.attribute_table import NO_FUSION, ORDER, PADDED
from kitsune_mlir.dialects.contraction import subscripts
from kitsune_mlir.dialects.products import defining_op, is_projected_product
from kitsune_mlir.dialects.sizes import HALF_TYPES
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.machine.target import find_target
from kitsune_mlir.passes.layouts.argument_orders import attributes_of, is_weight, set_attribute, settle_type
from kitsune_mlir.passes.layouts.by_index import parallel_generic

from .base import Pass
from .remarks import remark

ROW_BYTES = 16
LEAST_SUM = 64  # elements: shorter sums are one chunk, and copied quickly
LEAST_ROWS = 256  # fewer rows do not pay for the copy of the weight


@dataclass(frozen=True)
class PadSums(Pass):
    """Widen concatenated rows, and the weight that multiplies them, to a multiple of 16 bytes by zeros.

    Only for GPU targets, 16-bit products, and layers too wide for a chain. Option: `target`.
    """

    name: ClassVar[str] = "kitsune-pad-sums"
    target: str = "host"

    def run(self, module: ir.Operation) -> None:
        if not find_target(self.target).is_gpu:
            return
        with module.context, ir.Location.unknown():
            for op in [op for op in walk(module) if is_projected_product(op)]:
                self._pad(op)

    def _pad(self, op: ir.Operation) -> None:
        if subscripts(op) != "mk,nk->mn":
            return
        rows, weight = op.operands[0], op.operands[1]
        joined, type_ = defining_op(rows), ir.ShapedType(weight.type).element_type
        width, rest = shape_of(rows)[1], shape_of(rows)[1] * 2 % ROW_BYTES
        if str(type_) not in HALF_TYPES or not rest or width < LEAST_SUM or shape_of(rows)[0] < LEAST_ROWS:
            return
        if joined is None or joined.name != "tensor.concat" or ir.IntegerAttr(joined.attributes["dim"]).value != 1:
            return
        if defining_op(weight) is not None or len(list(joined.results[0].uses)) != 1:
            return
        if shape_of(op.results[0])[1] <= WIDTH:
            return  # a layer of a chain reads what is joined where it lies
        more = (ROW_BYTES - rest) // 2
        with ir.InsertionPoint(joined), joined.location:
            # Here, so that it runs beside what comes before the rows.
            wide_weight = _wide_argument(weight, more)
            if wide_weight is None:
                wide_weight = _wider([weight], more)
                wide_weight.owner.attributes[NO_FUSION] = ir.UnitAttr.get()
            wide_rows = _wider(list(joined.operands), more)
        op.operands[0], op.operands[1] = wide_rows, wide_weight
        joined.erase()
        remark(op, f"sums of {width} get {more} zeros, so that rows begin at multiples of {ROW_BYTES} bytes")


def _wide_argument(weight: ir.Value, more: int) -> ir.Value | None:
    """The weight itself, with `more` columns from now on; None where others read it, too, or it is not the model's."""
    block = weight.owner
    function = block.owner.operation if isinstance(block, ir.Block) else None
    if function is None or function.name != "func.func" or len(list(weight.uses)) != 1:
        return None
    number = ir.BlockArgument(weight).arg_number
    if not is_weight(function, number) or ORDER in attributes_of(function, number):
        return None
    shape = [*shape_of(weight)[:-1], shape_of(weight)[-1] + more]
    weight.set_type(ir.RankedTensorType.get(shape, ir.ShapedType(weight.type).element_type))
    set_attribute(function, number, PADDED, shape)
    settle_type(function)
    return weight


def _wider(parts: list[ir.Value], more: int) -> ir.Value:
    """Parts of columns joined, with `more` columns of zeros."""
    element = ir.ShapedType(parts[0].type).element_type
    rows = shape_of(parts[0])[0]
    zero = arith.constant(element, ir.FloatAttr.get(element, 0.0))
    zeros = _filled([rows, more], zero, element)
    total = sum(shape_of(part)[1] for part in parts) + more
    return tensor.concat(ir.RankedTensorType.get([rows, total], element), 1, [*parts, zeros])


def _filled(shape: list[int], value: ir.Value, element: ir.Type) -> ir.Value:
    op, body = parallel_generic(shape, element)
    with ir.InsertionPoint(body):
        ir.Operation.create("linalg.yield", [], [value])
    return op.results[0]
