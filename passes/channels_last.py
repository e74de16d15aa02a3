"""`kitsune-channels-last`: convolutions for tensor cores read and write images with the channels innermost."""

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir
from torch_mlir.dialects import linalg, tensor

from kitsune_mlir.dialects.access import affine_maps, shape_of, static_ints
from kitsune_mlir.dialects.attribute_table import CALLER_ORDER, ORDER
from kitsune_mlir.dialects.products import defining_op, fills_zero
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.machine.target import find_target
from kitsune_mlir.passes.layouts.argument_orders import attributes_of, is_weight, result_attributes, set_attribute, settle_type
from kitsune_mlir.passes.layouts.by_index import block_diagonal, padded_by_index
from kitsune_mlir.passes.layouts.groups import image_of, is_grouped, joined_groups
from kitsune_mlir.passes.layouts.images import (
    channels_of,
    is_convolution,
    is_depthwise,
    is_element_wise,
    is_image,
)
from kitsune_mlir.passes.layouts.permute import permuted, transposed

from .base import Pass
from .remarks import remark

LAST = (0, 2, 3, 1)  # dimension i of the channels-last form is dimension LAST[i] of the usual one
FIRST = (0, 3, 1, 2)  # the inverse
TAPS_FIRST = (2, 3, 0, 1)  # of a depthwise convolution's weight: its channels innermost
POOLINGS = ("linalg.pooling_nchw_max", "linalg.pooling_nchw_sum")
COLUMNS = 2  # the last dimension but the channels

PARALLEL = "#linalg.iterator_type<parallel>"


class _Rewriter:
    """Walks a function in order; `twins` holds the channels-last form of values that have one."""

    def __init__(self, function: ir.Operation):
        self.function = function
        self.block = function.regions[0].blocks[0]
        self.twins: dict[ir.Value, ir.Value] = {}
        self.borrowed: set[ir.Value] = set()  # values whose twin is a transposed copy
        self.widened: dict[ir.Value, ir.Value] = {}
        self.orders: dict[ir.Value, tuple[int, ...]] = {}  # of twins that are not `LAST`

    def run(self) -> None:
        operations = [o.operation for o in self.block.operations]
        convolved = any(is_convolution(op) or is_grouped(op) or is_depthwise(op) for op in operations)
        if not convolved and not self._is_given_native():
            return
        self._open_arguments()
        for op in operations:
            with op.location:
                self._visit(op)
        self._order_weights()
        self._order_results()
        settle_type(self.function)

    def _visit(self, op: ir.Operation) -> None:
        if is_convolution(op):
            image, weight, start = op.operands
            self._convolution(op, op, linalg.conv_2d_nhwc_fhwc, self._wide_twin(image), self._wide_twin(weight), start)
        elif is_depthwise(op):
            image, weight, start = op.operands
            collapse = weight.owner.operation
            made = (linalg.depthwise_conv_2d_nhwc_hwc, self._twin(image), self._taps_first(collapse))
            self._convolution(op, op, *made, start)
            if not list(collapse.results[0].uses):
                collapse.erase()
        elif op.name == "tensor.collapse_shape" and is_grouped(defining_op(op.operands[0])):
            if (image := joined_groups(op)) is not None:
                self._grouped(image, image.operands[0].owner.operation)
        elif op.name in POOLINGS and self._native(op.operands[0]):
            self._pooling(op)
        elif op.name == "tensor.concat" and is_image(op.results[0]) and any(map(self._native, op.operands)):
            self._concat(op)
        elif op.name == "linalg.generic" and any(map(self._native, op.operands)):
            if is_element_wise(op):
                self._element_wise(op)
            else:
                self._read_native(op)

    # --- forms of values -----------------------------------------------------------------------------------------------

    def _native(self, value: ir.Value) -> bool:
        """Whether a value is computed with its channels innermost, and its usual form would be a transposition."""
        while (maker := defining_op(value)) is not None and maker.name == "tensor.pad":
            value = maker.operands[0]
        return value in self.twins and value not in self.borrowed

    def _twin(self, value: ir.Value) -> ir.Value:
        """The channels-last form of a value, made where the value is made."""
        pads: list[ir.Operation] = []
        while value not in self.twins and (maker := defining_op(value)) is not None:
            if maker.name != "tensor.pad" or len(maker.operands) != 1:
                break
            pads.append(maker)
            value = maker.operands[0]
        made = self.twins[value] if value in self.twins else self._borrow(value, self._transposed(value))
        for pad in reversed(pads):
            made = self._borrow(pad.results[0], self._padded(pad, made))
        return made

    def _borrow(self, value: ir.Value, made: ir.Value) -> ir.Value:
        self.twins[value] = made
        self.borrowed.add(value)
        return made

    def _transposed(self, value: ir.Value) -> ir.Value:
        maker = defining_op(value)
        if maker is None:
            with ir.InsertionPoint.at_block_begin(self.block):
                made = transposed(value, LAST)
        elif maker.name in ("tensor.empty", "linalg.fill"):
            made = _like(maker)
        else:
            with ir.InsertionPoint.after(maker):
                made = transposed(value, LAST)
        return made

    def _wide_twin(self, value: ir.Value) -> ir.Value:
        """The channels-last form with zeros as further channels, up to a number that TMA can step over."""
        channels = shape_of(value)[1]
        missing = -channels % channels_of(value)
        if not missing:
            return self._twin(value)
        if value not in self.widened:
            maker = defining_op(value)
            if maker is not None and maker.name == "tensor.pad" and len(maker.operands) == 1:
                # Rows are padded in the copy that is made anyway: all taps of a row are then one run of memory.
                columns = [static_ints(maker, name)[LAST[COLUMNS]] for name in ("static_low", "static_high")]
                wide = self._with_zeros(self._twin(maker.operands[0]), columns, missing)
                self.widened[value] = self._padded(maker, wide, (0, 1))
            else:
                self.widened[value] = self._with_zeros(self._twin(value), [0, 0], missing)
        return self.widened[value]

    def _with_zeros(self, value: ir.Value, columns: list[int], channels: int) -> ir.Value:
        """A channels-last image with columns of zeros before and after, and channels of zeros after its own."""
        maker = defining_op(value)
        with ir.InsertionPoint.at_block_begin(self.block) if maker is None else ir.InsertionPoint.after(maker):
            zero = _zero(ir.ShapedType(value.type).element_type)
            return padded_by_index(value, [0, 0, columns[0], 0], [0, 0, columns[1], channels], zero)

    def _padded(self, pad: ir.Operation, source: ir.Value, dims: tuple[int, ...] = (0, 1, 2, 3)) -> ir.Value:
        """`pad` of a channels-last source, as far as it pads the dimensions `dims` of it."""
        shape = shape_of(source)
        with ir.InsertionPoint.after(pad), pad.location:
            copy = pad.clone().operation
        copy.operands[0] = source
        for name in ("static_low", "static_high"):
            amounts = [n if d in dims else 0 for d, n in enumerate(permuted(static_ints(pad, name), LAST))]
            shape = [size + amount for size, amount in zip(shape, amounts, strict=True)]
            copy.attributes[name] = ir.DenseI64ArrayAttr.get(amounts)
        copy.results[0].set_type(ir.RankedTensorType.get(shape, ir.ShapedType(source.type).element_type))
        return copy.results[0]

    def _replace(self, op: ir.Operation, results: list[ir.Value]) -> None:
        """Let `results`, channels last, stand for those of `op`."""
        for old, new in zip(op.results, results, strict=True):
            with ir.InsertionPoint(op):
                back = transposed(new, FIRST)
            self.twins[back] = new
            old.replace_all_uses_with(back)
        op.erase()

    # --- operations ----------------------------------------------------------------------------------------------------

    def _grouped(self, collapse: ir.Operation, op: ir.Operation) -> None:
        """Few groups: one convolution whose weight has zeros between the groups."""
        image, weight = image_of(op.operands[0]), image_of(op.operands[1], weight=True)
        maker = op.operands[2].owner.operation
        start = maker.operands[0] if maker.name == "tensor.expand_shape" else op.operands[2]
        narrow = self._twin(weight)
        with ir.InsertionPoint.at_block_begin(self.block) if defining_op(narrow) is None else ir.InsertionPoint(op):
            dense = block_diagonal(narrow, shape_of(op.operands[1])[0])
        self._convolution(collapse, op, linalg.conv_2d_nhwc_fhwc, self._twin(image), dense, start)
        parts = [value.owner.operation for value in list(op.operands)[:2]]
        op.erase()
        for part in parts:
            if not list(part.results[0].uses):
                part.erase()

    def _taps_first(self, collapse: ir.Operation) -> ir.Value:
        """Taps by channels, of a depthwise convolution's weight that is channels by 1 by taps and loses the 1."""
        weight = collapse.operands[0]
        if weight not in self.twins:
            maker = defining_op(weight)
            with ir.InsertionPoint.at_block_begin(self.block) if maker is None else ir.InsertionPoint.after(maker):
                self.twins[weight] = transposed(weight, TAPS_FIRST)
            self.borrowed.add(weight)
            self.orders[weight] = TAPS_FIRST
        twin = self.twins[weight]
        shape, element = shape_of(twin), ir.ShapedType(twin.type).element_type
        with ir.InsertionPoint(collapse):
            return tensor.collapse_shape(ir.RankedTensorType.get(shape[:3], element), twin, [[0], [1], [2, 3]])

    def _convolution(
        self, op: ir.Operation, named: ir.Operation, builder, images: ir.Value, weights: ir.Value, start: ir.Value
    ) -> None:
        """`op` gives the result of the convolution `named`."""
        keep = {name: named.attributes[name] for name in ("strides", "dilations")}
        with ir.InsertionPoint(op):
            empty = tensor.empty(permuted(shape_of(op.results[0]), LAST), ir.F32Type.get())
            zeros = linalg.fill(_zero(ir.F32Type.get()), outs=[empty])
            made = builder(images, weights, outs=[zeros], **keep)
            addend = self._addend(start)
            if addend is not None:
                made = _sum(made, *addend)
        remark(op, "images with channels innermost")
        self._replace(op, [made])

    def _addend(self, start: ir.Value) -> tuple[ir.Value, ir.AffineMap] | None:
        """What a convolution starts from, as an operand of an addition afterwards; None for zeros."""
        maker = defining_op(start)
        if fills_zero(maker):
            return None
        if maker is not None and maker.name == "linalg.broadcast" and len(shape_of(maker.operands[0])) == 1:
            kept = set(range(4)) - set(ir.DenseI64ArrayAttr(maker.attributes["dimensions"]))
            return maker.operands[0], ir.AffineMap.get(4, 0, [ir.AffineDimExpr.get(LAST.index(kept.pop()))])
        return self._twin(start), ir.AffineMap.get_identity(4)

    def _pooling(self, op: ir.Operation) -> None:
        builder = getattr(linalg, op.name.removeprefix("linalg.").replace("nchw", "nhwc"))
        keep = {name: op.attributes[name] for name in ("strides", "dilations")}
        source, start = self._twin(op.operands[0]), self._twin(op.operands[2])
        with ir.InsertionPoint(op):
            made = builder(source, op.operands[1], outs=[start], **keep)
        self._replace(op, [made])

    def _concat(self, op: ir.Operation) -> None:
        operands = [self._twin(value) for value in op.operands]
        dim = LAST.index(ir.IntegerAttr(op.attributes["dim"]).value)
        type_ = ir.RankedTensorType.get(permuted(shape_of(op.results[0]), LAST), ir.ShapedType(op.results[0].type).element_type)
        with ir.InsertionPoint(op):
            attributes = {"dim": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim)}
            made = ir.Operation.create("tensor.concat", [type_], operands, attributes)
        self._replace(op, [made.results[0]])

    def _element_wise(self, op: ir.Operation) -> None:
        """The same work on channels-last tensors: loops in the order LAST."""
        maps, operands = affine_maps(op), list(op.operands)
        for number, value in enumerate(operands):
            results = list(maps[number].results)
            if is_image(value) and (self._native(value) or maps[number] == ir.AffineMap.get_identity(4)):
                operands[number], results = self._twin(value), permuted(results, LAST)
            maps[number] = ir.AffineMap.get(4, 0, [_renamed(result) for result in results])
        self._replace(op, list(_rebuilt(op, operands, maps, [value.type for value in operands[-len(op.results) :]]).results))

    def _read_native(self, op: ir.Operation) -> None:
        """Read the channels-last forms by permuted maps, where the op itself stays as it is."""
        maps, operands = affine_maps(op), list(op.operands)
        for number, value in enumerate(operands[: len(operands) - len(op.results)]):
            if is_image(value) and self._native(value):
                operands[number] = self._twin(value)
                maps[number] = ir.AffineMap.get(maps[number].n_dims, 0, permuted(list(maps[number].results), LAST))
        new = _rebuilt(op, operands, maps, [result.type for result in op.results])
        for old, made in zip(op.results, new.results, strict=True):
            old.replace_all_uses_with(made)
        op.erase()

    # --- the function's boundary ---------------------------------------------------------------------------------------

    def _is_native_argument(self, number: int) -> bool:
        attributes = attributes_of(self.function, number)
        return CALLER_ORDER in attributes and tuple(ir.DenseI64ArrayAttr(attributes[CALLER_ORDER])) == LAST

    def _is_given_native(self) -> bool:
        """Whether the caller has some image in channels-last memory."""
        return any(self._is_native_argument(number) for number in range(len(self.block.arguments)))

    def _open_arguments(self) -> None:
        """Inputs that the caller has in channels-last memory are taken so."""
        for number, argument in enumerate(self.block.arguments):
            if not self._is_native_argument(number):
                continue
            shape = shape_of(argument)
            argument.set_type(ir.RankedTensorType.get(permuted(shape, LAST), ir.ShapedType(argument.type).element_type))
            with ir.InsertionPoint.at_block_begin(self.block), ir.Location.unknown():
                usual = transposed(argument, FIRST)
            argument.replace_all_uses_except(usual, usual.owner.operation)
            self.twins[usual] = argument
            set_attribute(self.function, number, ORDER, LAST)

    def _order_weights(self) -> None:
        """Weights that are only read with the channels innermost are taken so: the runtime lays them out once."""
        for number, argument in enumerate(self.block.arguments):
            users = [use.owner.operation for use in argument.uses]
            if not is_weight(self.function, number) or not users:
                continue
            twin = self.twins.get(argument)
            if twin is None or any(user.results[0] != twin for user in users if user.results):
                continue
            argument.set_type(twin.type)
            twin.replace_all_uses_with(argument)
            users[0].erase()
            set_attribute(self.function, number, ORDER, self.orders.get(argument, LAST))

    def _order_results(self) -> None:
        """Where an input is channels last, so are the results that are computed so."""
        if not any(ORDER in attributes_of(self.function, n) and CALLER_ORDER in attributes_of(self.function, n)
                   for n in range(len(self.block.arguments))):  # fmt: skip
            return
        terminator = list(self.block.operations)[-1].operation
        attributes = []
        for number, value in enumerate(terminator.operands):
            native = is_image(value) and value in self.twins and value not in self.borrowed
            if native:
                terminator.operands[number] = self.twins[value]
            order = {ORDER: ir.DenseI64ArrayAttr.get(list(LAST))} if native else {}
            attributes.append(ir.DictAttr.get(result_attributes(self.function, number) | order))
        self.function.attributes["res_attrs"] = ir.ArrayAttr.get(attributes)


def _renamed(expression: ir.AffineExpr) -> ir.AffineExpr:
    """An index of a tensor in terms of loops in the order LAST."""
    if isinstance(expression, ir.AffineDimExpr):
        return ir.AffineDimExpr.get(LAST.index(expression.position))
    names = [ir.AffineDimExpr.get(LAST.index(d)) for d in range(4)]
    return expression.compose(ir.AffineMap.get(4, 0, names))


def _rebuilt(op: ir.Operation, operands, maps, types) -> ir.Operation:
    """A linalg.generic with other operands and maps and the same body, before `op`."""
    with ir.InsertionPoint(op):
        copy = op.clone().operation
    for number, value in enumerate(operands):
        copy.operands[number] = value
    for result, type_ in zip(copy.results, types, strict=True):
        result.set_type(type_)
    copy.attributes["indexing_maps"] = ir.ArrayAttr.get([ir.AffineMapAttr.get(map_) for map_ in maps])
    return copy


def _like(maker: ir.Operation) -> ir.Value:
    """An empty or constant-filled tensor in channels-last form."""
    result = maker.results[0]
    with ir.InsertionPoint.after(maker), maker.location:
        empty = tensor.empty(permuted(shape_of(result), LAST), ir.ShapedType(result.type).element_type)
        return empty if maker.name == "tensor.empty" else linalg.fill(maker.operands[0], outs=[empty])


def _zero(element: ir.Type) -> ir.Value:
    attributes = {"value": ir.FloatAttr.get(element, 0.0)}
    return ir.Operation.create("arith.constant", [element], attributes=attributes).results[0]


def _sum(value: ir.Value, addend: ir.Value, map_: ir.AffineMap) -> ir.Value:
    """value + addend, where `map_` says which loops of the four walk the addend."""
    identity = ir.AffineMap.get_identity(4)
    empty = tensor.empty(shape_of(value), ir.F32Type.get())
    op = ir.Operation.create(
        "linalg.generic",
        [value.type],
        [value, addend, empty],
        {
            "indexing_maps": ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in (identity, map_, identity)]),
            "iterator_types": ir.ArrayAttr.get([ir.Attribute.parse(PARALLEL)] * 4),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([2, 1]),
        },
        regions=1,
    )
    f32 = ir.F32Type.get()
    block = op.regions[0].blocks.append(f32, f32, f32, arg_locs=[ir.Location.current] * 3)
    with ir.InsertionPoint(block):
        total = ir.Operation.create("arith.addf", [f32], list(block.arguments)[:2])
        ir.Operation.create("linalg.yield", [], [total.results[0]])
    return op.results[0]


@dataclass(frozen=True)
class ChannelsLast(Pass):
    """Rewrite convolutions of bf16, f16 and f32 (one group, or a few) for a GPU to channels-last images, and what lies between.

    Element-wise work, padding, pooling and concatenation follow; transpositions are left where images come in or leave in
    the usual order. Weights, and inputs that the caller has in channels-last memory, become arguments in that order
    (attribute `kitsune.dim_order`). Option: `target`; nothing changes for the host.
    """

    name: ClassVar[str] = "kitsune-channels-last"
    target: str = "host"

    def run(self, module: ir.Operation) -> None:
        if not find_target(self.target).is_gpu:
            return
        with module.context, ir.Location.unknown():
            functions = [op for op in walk(module) if op.name == "func.func" and "kitsune.program" not in op.attributes]
            for function in functions:
                if len(function.regions[0].blocks) == 1:
                    _Rewriter(function).run()
