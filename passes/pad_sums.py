"""`kitsune-pad-sums`: factors whose rows have odd lengths lie in memory with wider rows.

TMA reads rows that begin at multiples of 16 bytes. Rows that a concatenation makes may have any width, so they are made wider.
A weight of the model is taken with wider rows: it is placed so before the first call, as one in another order of dimensions is
(`runtime/program.py`). Anything else has to be copied, once a call, where the product is so large that this is soon made good:
what threads copy of rows at odd addresses comes to `COPIED_RATE`, a twelfth of what tensor cores do with rows that TMA loads.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir
from torch_mlir.dialects import tensor

from kitsune_mlir.codegen.gpu.engines.chain.layers import WIDTH
from kitsune_mlir.dialects.access import affine_maps, iterator_kinds, shape_of
from kitsune_mlir.dialects.attribute_table import NO_FUSION, ORDER, PADDED
from kitsune_mlir.dialects.contraction import matrix_extents, subscripts
from kitsune_mlir.dialects.products import body_of, defining_op, is_generic, is_projected_product
from kitsune_mlir.dialects.sizes import HALF_TYPES, element_bytes, tensor_bytes
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.machine.target import find_target
from kitsune_mlir.passes.layouts.argument_orders import attributes_of, is_weight, set_attribute, settle_type
from kitsune_mlir.passes.layouts.by_index import filled
from kitsune_mlir.passes.layouts.permute import reordered
from kitsune_mlir.passes.layouts.wide_axes import widen_axis
from kitsune_mlir.passes.tile_program.tiling import extract_slice

from .base import Pass
from .remarks import remark

ROW_BYTES = 16
LEAST_SUM = 64  # elements: shorter sums are one chunk, and copied quickly
LEAST_ROWS = 256  # fewer rows do not pay for the copy of the weight
LEAST_TERMS = 16  # that a product sums, so that its factors are placed apart
FEW_ROWS = 64  # products of so few rows are not for tensor cores' tiles
COPIED_RATE = 3.0e13
"""Operations a second of products whose operands threads copy (2048 rows by 1677 x 1677 on an H200)."""
ACROSS_RATE = 1.2e14
"""Operations a second: of an f32 product, the time that threads take to copy factors whose rows run across the sum, beside TMA,
which loads rows along it (2048 x 2048 x 2048 on an H200: 352 and 177 us)."""
WORTH = 2
"""Times what such a copy takes it has to save: a stage more may be a launch more."""
COPY_START, COPY_RATE = 2.5e-6, 2.0e12
"""Seconds, and bytes read and written a second, of a stage that widens rows."""


@dataclass(frozen=True)
class PadSums(Pass):
    """Widen rows that products sum along to a multiple of 16 bytes, in memory.

    Concatenated rows and the weight that multiplies them get zeros that are part of the sum; other factors keep their extents.
    A factor whose odd rows run along the product's own rows or columns is copied with rows along the sum; one of f32, which
    tensor cores read along the sum only, also if its rows are not odd. Odd columns that one product makes and another reads, as
    a step of training does of scores over a vocabulary, become wider for all that reads them (`passes/layouts/wide_axes.py`).
    Only for GPU targets, and for what is no layer of a chain: wide layers, and gradients of weights. Option: `target`.
    """

    name: ClassVar[str] = "kitsune-pad-sums"
    target: str = "host"

    def run(self, module: ir.Operation) -> None:
        if not find_target(self.target).is_gpu:
            return
        with module.context, ir.Location.unknown():
            wide: dict[ir.Value, ir.Value] = {}
            turned: dict[tuple[ir.Value, tuple[int, ...]], ir.Value] = {}
            for op in [op for op in walk(module) if is_projected_product(op)]:
                # A weight of the model has wider rows before the first call, or could have; one that is trained is copied.
                if not any(map(_placeable, list(op.operands)[:2])) and widen_axis(op):
                    break  # other products are new ones now
            for op in [op for op in walk(module) if is_projected_product(op)]:
                if not self._pad(op):
                    _place_apart(op, wide, turned)

    def _pad(self, op: ir.Operation) -> bool:
        """Joined rows and their weight; whether they were."""
        if subscripts(op) != "mk,nk->mn":
            return False
        rows, weight = op.operands[0], op.operands[1]
        joined, type_ = defining_op(rows), ir.ShapedType(weight.type).element_type
        width, rest = shape_of(rows)[1], shape_of(rows)[1] * 2 % ROW_BYTES
        if str(type_) not in HALF_TYPES or not rest or width < LEAST_SUM or shape_of(rows)[0] < LEAST_ROWS:
            return False
        if joined is None or joined.name != "tensor.concat" or ir.IntegerAttr(joined.attributes["dim"]).value != 1:
            return False
        if defining_op(weight) is not None or len(list(joined.results[0].uses)) != 1:
            return False
        if shape_of(op.results[0])[1] <= WIDTH:
            return False  # a layer of a chain reads what is joined where it lies
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
        return True


def _place_apart(
    op: ir.Operation, wide: dict[ir.Value, ir.Value], turned_before: dict[tuple[ir.Value, tuple[int, ...]], ir.Value]
) -> None:
    """Let a product read its factors from rows that begin at multiples of 16 bytes, if it is so large.

    Args:
        wide, turned_before: copies that tensors have already, the latter by the order of their dimensions; new ones are added.
    """
    rows, columns, terms = matrix_extents(op)
    if rows <= FEW_ROWS or terms < LEAST_TERMS:
        return
    half = str(ir.ShapedType(op.operands[0].type).element_type) in HALF_TYPES
    # A gradient of a weight is no layer of a chain: both of its factors run across the sum.
    in_chain = half and columns <= WIDTH and any(_sums_along_rows(op, number) for number in (0, 1))
    odd: list[tuple[ir.Operation, int]] = []
    tables = _tables(op) if in_chain else []
    turned: list[int] = []
    for number in (0, 1):
        if _odd_rows(op.operands[number]):
            if not _sums_along_rows(op, number):
                turned.append(number)  # rows along the product's own rows or columns
            else:
                odd += _arguments(op, number) if in_chain else [(op, number)]
    if turned and (in_chain or any(_turning(op, number) is None for number in turned)):
        return
    values = {user.operands[number]: None for user, number in [*odd, *((table, 0) for table in tables)]}
    copied = [value for value in values if value not in wide and not _placeable(value)]
    if not _pays(op, copied + [op.operands[number] for number in turned]):
        return
    for user, number in odd:
        value = user.operands[number]
        if value not in wide:
            wide[value] = _placed(value, op.location)
        user.operands[number] = wide[value]
    for table in tables:
        value = table.operands[0]
        if value not in wide:
            wide[value] = _placed(value, op.location)
        table.operands[0] = wide[value].owner.operands[0]  # whose rows have the same elements, and zeros that nobody asks for
    for number in turned:
        _turn(op, number, turned_before)
    if odd or tables or turned:
        remark(op, f"rows of {terms} begin at multiples of {ROW_BYTES} bytes")
    if across := _across(op):
        for number in across:
            _turn(op, number, turned_before)
        remark(op, f"factors of f32 with rows across the sum are copied with rows of {terms} along it")


def _across(op: ir.Operation) -> list[int]:
    """The factors of f32 whose rows run across the sum, all of them, if copies with rows along it are made good."""
    if any(str(ir.ShapedType(op.operands[number].type).element_type) != "f32" for number in (0, 1)):
        return []
    found = [number for number in (0, 1) if not _sums_along_rows(op, number)]
    if any(_turning(op, number) is None for number in found):
        return []
    rows, columns, terms = matrix_extents(op)
    moved = sum(2 * tensor_bytes(op.operands[number].type) for number in found if not _placeable(op.operands[number]))
    saved = 2.0 * rows * columns * terms / ACROSS_RATE
    return found if WORTH * (len(found) * COPY_START + moved / COPY_RATE) < saved else []


def _pays(op: ir.Operation, copied: list[ir.Value]) -> bool:
    """Whether a product is so large that copies of tensors in wider rows are made good."""
    rows, columns, terms = matrix_extents(op)
    moved = sum(2 * tensor_bytes(value.type) for value in copied)
    return len(copied) * COPY_START + moved / COPY_RATE <= 2.0 * rows * columns * terms / COPIED_RATE


def _tables(op: ir.Operation) -> list[ir.Operation]:
    """The reads by index that bring rows of a chain's factors from tables with odd rows: who gathers them reads them element by
    element."""
    found = []
    for value in list(op.operands)[:2]:
        maker = defining_op(value)
        parts = list(maker.operands) if maker is not None and maker.name == "tensor.concat" else [value]
        for part in (defining_op(part) for part in parts):
            if part is None or not is_generic(part) or "reduction" in iterator_kinds(part):
                continue
            for read in body_of(part):
                if read.name == "tensor.extract" and _odd_rows(read.operands[0]) and _along_rows(read, part):
                    found.append(read)
    return found


def _along_rows(read: ir.Operation, op: ir.Operation) -> bool:
    """Whether neighbours of a generic's result read neighbours of a row."""
    last = defining_op(read.operands[len(read.operands) - 1])
    return (
        last is not None
        and last.name == "linalg.index"
        and ir.IntegerAttr(last.attributes["dim"]).value == len(iterator_kinds(op)) - 1
    )


def _sums_along_rows(op: ir.Operation, number: int) -> bool:
    """Whether a product sums along the rows of a factor."""
    return iterator_kinds(op)[ir.AffineDimExpr(affine_maps(op)[number].results[-1]).position] == "reduction"


def _turning(op: ir.Operation, number: int) -> list[int] | None:
    """The order of a factor's dimensions that has the sum's last; None where there is none, or more than one."""
    kinds, map_ = iterator_kinds(op), affine_maps(op)[number]
    sums = [dim for dim, e in enumerate(map_.results) if kinds[ir.AffineDimExpr(e).position] == "reduction"]
    return [*(dim for dim in range(len(map_.results)) if dim not in sums), *sums] if len(sums) == 1 else None


def _turn(op: ir.Operation, number: int, before: dict[tuple[ir.Value, tuple[int, ...]], ir.Value]) -> None:
    """Let a product read a factor from a copy with rows along the sum, which begin at multiples of 16 bytes."""
    order, maps, value = _turning(op, number), affine_maps(op), op.operands[number]
    assert order is not None
    with ir.InsertionPoint(op), op.location:
        key = value, tuple(order)
        if key not in before:
            before[key] = reordered(value, order)
        op.operands[number] = before[key]
    maps[number] = ir.AffineMap.get(maps[number].n_dims, 0, [maps[number].results[dim] for dim in order])
    op.attributes["indexing_maps"] = ir.ArrayAttr.get([ir.AffineMapAttr.get(map_) for map_ in maps])
    if _odd_rows(op.operands[number]):
        op.operands[number] = _placed(op.operands[number], op.location)


def _arguments(op: ir.Operation, number: int) -> list[tuple[ir.Operation, int]]:
    """Who reads a factor that a chain may make for itself, where it is read: the factor, or parts that are joined to it.

    Only the function's arguments: what is made inside of a chain has no rows in memory.
    """
    maker, every = defining_op(op.operands[number]), [(op, number)]
    if maker is not None and maker.name == "tensor.concat":
        every = [(maker, part) for part in range(len(maker.operands))]
    return [(user, n) for user, n in every if defining_op(user.operands[n]) is None and _odd_rows(user.operands[n])]


def _placed(value: ir.Value, location: ir.Location) -> ir.Value:
    """A tensor in wider rows: a weight for all who read it, of anything else a copy."""
    shape, size = shape_of(value), element_bytes(value.type)
    more = (ROW_BYTES - shape[-1] * size % ROW_BYTES) // size
    maker = defining_op(value)
    with ir.InsertionPoint.at_block_begin(value.owner) if maker is None else ir.InsertionPoint.after(maker), location:
        users = [(use.owner, use.operand_number) for use in value.uses]
        weight = _placed_argument(value, more)
        part = extract_slice(weight if weight is not None else _wider([value], more), [0] * len(shape), shape)
    if weight is not None:
        for user, number in users:
            user.operands[number] = part
        settle_type(value.owner.owner.operation)
    return part


def _odd_rows(value: ir.Value) -> bool:
    """Whether a tensor's rows begin at other addresses than multiples of 16 bytes."""
    maker, shape = defining_op(value), shape_of(value)
    while maker is not None and maker.name == "tensor.extract_slice":
        value, maker = maker.operands[0], defining_op(maker.operands[0])
    return len(shape) > 1 and bool(shape_of(value)[-1] * element_bytes(value.type) % ROW_BYTES)


def _wide_argument(weight: ir.Value, more: int) -> ir.Value | None:
    """The weight itself, with `more` columns from now on; None where others read it, too, or it is not the model's."""
    return _placed_argument(weight, more) if len(list(weight.uses)) == 1 else None


def _placeable(value: ir.Value) -> bool:
    """Whether a value is a weight of the model in its usual order."""
    block = value.owner
    if not isinstance(block, ir.Block):
        return False
    function = block.owner.operation
    if function.name != "func.func":
        return False
    number = ir.BlockArgument(value).arg_number
    held = attributes_of(function, number)
    return is_weight(function, number) and ORDER not in held and PADDED not in held


def _placed_argument(weight: ir.Value, more: int) -> ir.Value | None:
    """A weight itself, with `more` columns from now on, which who reads it must not mind; None where it cannot be placed so."""
    if not _placeable(weight):
        return None
    function, number = weight.owner.owner.operation, ir.BlockArgument(weight).arg_number
    shape = [*shape_of(weight)[:-1], shape_of(weight)[-1] + more]
    weight.set_type(ir.RankedTensorType.get(shape, ir.ShapedType(weight.type).element_type))
    set_attribute(function, number, PADDED, shape)
    settle_type(function)
    return weight


def _wider(parts: list[ir.Value], more: int) -> ir.Value:
    """Parts of rows joined, with `more` elements of zero."""
    element = ir.ShapedType(parts[0].type).element_type
    outer = shape_of(parts[0])[:-1]
    zeros = filled([*outer, more], ir.FloatAttr.get(element, 0.0))
    total = sum(shape_of(part)[-1] for part in parts) + more
    return tensor.concat(ir.RankedTensorType.get([*outer, total], element), len(outer), [*parts, zeros])
