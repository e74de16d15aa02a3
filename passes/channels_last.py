"""`kitsune-channels-last`: convolutions for tensor cores read and write images with the channels innermost."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir
from torch_mlir.dialects import linalg, tensor

from kitsune_mlir.dialects.access import affine_maps, shape_of, static_ints
from kitsune_mlir.dialects.attribute_table import CALLER_ORDER, ORDER
from kitsune_mlir.dialects.iteration import is_reshape
from kitsune_mlir.dialects.products import defining_op, fills_zero
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.machine.target import find_target

from .base import Pass
from .layouts.argument_orders import attributes_of, given_in, is_weight, result_attributes, set_attribute, settle_type
from .layouts.by_index import block_diagonal, padded_by_index
from .layouts.flat_images import FlatWork, flat_work, image_of_view, over_images, with_rows
from .layouts.groups import by_group, image_of, is_grouped, joined_groups, parted, side_by_side
from .layouts.images import (
    channels_of,
    images_read_by_index,
    is_convolution,
    is_depthwise,
    is_element_wise,
    is_image,
    is_one_pixel,
)
from .layouts.nhwc import FIRST, LAST, like, product_of_pixels, summed, walked_last, zero_of
from .layouts.pads import padded, padding_value
from .layouts.permute import permuted, transposed
from .layouts.pixel_layers import pixel_layers
from .layouts.split_views import Form, read_forms, split_view
from .layouts.weight_places import line_order, take_side_by_side
from .remarks import remark

TAPS_FIRST = (2, 3, 0, 1)  # of a depthwise convolution's weight: its channels innermost
POOLINGS = ("linalg.pooling_nchw_max", "linalg.pooling_nchw_sum")
COLUMNS = 2  # the last dimension but the channels


class _Rewriter:
    """Walks a function in order; `twins` holds the channels-last form of values that have one."""

    def __init__(self, function: ir.Operation):
        self.function = function
        self.block = function.regions[0].blocks[0]
        self.twins: dict[ir.Value, ir.Value] = {}
        self.borrowed: set[ir.Value] = set()  # values whose twin is a transposed copy
        self.widened: dict[ir.Value, ir.Value] = {}
        self.orders: dict[ir.Value, Sequence[int]] = {}  # of twins that are not `LAST`
        self.parts: dict[ir.Value, Form] = {}  # images with split dimensions
        self.layers: set[ir.Value] = set()  # what layers over pixels make
        self.joined: list[tuple[ir.Value, int, int]] = []  # weights with groups side by side, rows of a group, how many

    def run(self) -> None:
        operations = [o.operation for o in self.block.operations]
        convolved = any(is_convolution(op) or is_grouped(op) or is_depthwise(op) for op in operations)
        if not convolved and not any(given_in(self.function, number, LAST) for number in range(len(self.block.arguments))):
            return
        self._open_arguments()
        self.layers = pixel_layers(operations)
        for op in operations:
            with op.location:
                self._visit(op)
        self._order_weights()
        self._order_results()
        settle_type(self.function)

    def _visit(self, op: ir.Operation) -> None:
        if is_convolution(op):
            (image, weight, start), pixels = op.operands, is_one_pixel(op) or op.results[0] in self.layers
            builder, twin = (product_of_pixels, self._twin) if pixels else (linalg.conv_2d_nhwc_fhwc, self._wide_twin)
            self._convolution(op, op, builder, twin(image), twin(weight), start)
        elif is_depthwise(op):
            image, weight, start = op.operands
            collapse = weight.owner.operation
            self._convolution(op, op, linalg.depthwise_conv_2d_nhwc_hwc, self._twin(image), self._taps_first(collapse), start)
            if not list(collapse.results[0].uses):
                collapse.erase()
        elif op.name == "tensor.collapse_shape" and is_grouped(defining_op(op.operands[0])):
            if (image := joined_groups(op)) is not None:
                self._grouped(image, image.operands[0].owner.operation)
        elif op.name in POOLINGS and self._native(op.operands[0]):
            self._pooling(op)
        elif op.name == "tensor.concat" and is_image(op.results[0]) and any(map(self._native, op.operands)):
            self._concat(op)
        elif is_reshape(op) and is_image(op.results[0]):
            self._view_back(op)
        elif (flat := flat_work(op)) is not None and any(image is not None and self._native(image) for image in flat.images):
            self._flat(op, flat)
        elif op.name == "tensor.expand_shape" and (op.operands[0] in self.parts or self._native(op.operands[0])):
            self._split(op)
        elif op.name == "linalg.generic":
            if is_element_wise(op) and any(map(self._native, [*op.operands, *images_read_by_index(op)])):
                self._element_wise(op)
            elif any(self._native(value) or value in self.parts for value in op.operands):
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
        elif (line := line_order(self.function, maker, LAST)) is not None and maker.operands[0] not in self.twins:
            made = self._line(maker, *line)
        elif maker.name in ("tensor.empty", "linalg.fill"):
            made = like(maker)
        else:
            with ir.InsertionPoint.after(maker):
                made = transposed(value, LAST)
        return made

    def _line(self, expand: ir.Operation, order: list[int], parts: list[list[int]]) -> ir.Value:
        """The channels-last form of a weight along one dimension, seen as one of two after it is transposed."""
        argument = expand.operands[0]
        with ir.InsertionPoint.at_block_begin(self.block):
            turned = self._borrow(argument, transposed(argument, order))
            self.orders[argument] = order
        shape, element = permuted(shape_of(expand.results[0]), LAST), ir.ShapedType(turned.type).element_type
        with ir.InsertionPoint.after(turned.owner):
            return tensor.expand_shape(ir.RankedTensorType.get(shape, element), turned, parts, [], shape)

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
            zero = zero_of(ir.ShapedType(value.type).element_type)
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
        """Groups, as many of them side by side as tensor cores would multiply anyway: their weight has zeros between them."""
        image, weight = image_of(op.operands[0]), image_of(op.operands[1], weight=True)
        maker = op.operands[2].owner.operation
        start = maker.operands[0] if maker.name == "tensor.expand_shape" else op.operands[2]
        groups, rows = shape_of(op.operands[1])[:2]
        count = side_by_side(op)
        assert count is not None
        dense = self._twin(weight)
        if count > 1:
            maker = defining_op(dense)
            with ir.InsertionPoint.at_block_begin(self.block) if maker is None else ir.InsertionPoint.after(maker):
                dense = block_diagonal(dense, count, rows)
            self.joined.append((dense, rows, count))
        if count == groups:
            self._convolution(collapse, op, linalg.conv_2d_nhwc_fhwc, self._twin(image), dense, start)
        else:
            with ir.InsertionPoint(op):
                dense = parted(dense, 0, groups // count)
            self._convolution(collapse, op, by_group, self._parted_twin(image, groups // count), dense, start)
        parts = [value.owner.operation for value in list(op.operands)[:2]]
        op.erase()
        for part in parts:
            if not list(part.results[0].uses):
                part.erase()

    def _parted_twin(self, value: ir.Value, groups: int) -> ir.Value:
        """The channels-last form of an image with its channels in so many groups."""
        pad = defining_op(value)
        if pad is not None and pad.name == "tensor.pad" and len(pad.operands) == 1:
            low, high = (permuted(static_ints(pad, f"static_{end}"), LAST) for end in ("low", "high"))
            if not low[3] and not high[3]:
                source = self._parted_twin(pad.operands[0], groups)
                with ir.InsertionPoint.after(pad), pad.location:
                    return padded(source, [*low[:3], 0, 0], [*high[:3], 0, 0], padding_value(pad))
        source = self._twin(value)
        maker = defining_op(source)
        with ir.InsertionPoint.at_block_begin(self.block) if maker is None else ir.InsertionPoint.after(maker):
            return parted(source, 3, groups)

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
            zeros = linalg.fill(zero_of(ir.F32Type.get()), outs=[empty])
            made = builder(images, weights, outs=[zeros], **keep)
            addend = self._addend(start)
            if addend is not None:
                made = summed(made, *addend)
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
        operands, result = [self._twin(value) for value in op.operands], op.results[0]
        type_ = ir.RankedTensorType.get(permuted(shape_of(result), LAST), ir.ShapedType(result.type).element_type)
        with ir.InsertionPoint(op):
            made = tensor.concat(type_, LAST.index(ir.IntegerAttr(op.attributes["dim"]).value), operands)
        self._replace(op, [made])

    def _element_wise(self, op: ir.Operation) -> None:
        """The same work on channels-last tensors: loops in the order LAST."""
        of_images, maps = affine_maps(op)[-1], affine_maps(op)
        inputs = [
            v for v, map_ in zip(op.operands, maps, strict=True) if is_image(v) and (self._native(v) or map_ == of_images)
        ]
        twins = {value: self._twin(value) for value in [*inputs, *filter(self._native, images_read_by_index(op))]}
        self._replace(op, list(walked_last(op, twins).results))

    def _view_back(self, op: ir.Operation) -> None:
        """An image that was seen as rows and is seen as an image again is that image."""
        if (image := image_of_view(op.operands[0])) is not None and self._native(image) and image.type == op.results[0].type:
            op.results[0].replace_all_uses_with(image)

    def _flat(self, op: ir.Operation, work: FlatWork) -> None:
        """Work over rows that are images, as work over the images."""
        for old, new in zip(op.results, over_images(op, work, self._twin), strict=True):
            if not work.reduces:
                with ir.InsertionPoint(op):
                    back = transposed(new, FIRST)
                    self.twins[back] = new
                    new = with_rows(back, shape_of(old))
            old.replace_all_uses_with(new)
        op.erase()

    def _read_native(self, op: ir.Operation) -> None:
        """Read the channels-last forms, where the op itself stays as it is."""
        images = {value: (self._twin(value), LAST) for value in op.operands if is_image(value) and self._native(value)}
        read_forms(op, self.parts | images)

    def _split(self, op: ir.Operation) -> None:
        """An image with split dimensions, read as such."""
        source = op.operands[0]
        form = self.parts.get(source) or (self._twin(source), LAST)
        with ir.InsertionPoint(op):
            self.parts[op.results[0]] = split_view(op, form)

    # --- the function's boundary ---------------------------------------------------------------------------------------

    def _open_arguments(self) -> None:
        """Inputs that the caller has in channels-last memory are taken so."""
        for number, argument in enumerate(self.block.arguments):
            if not given_in(self.function, number, LAST):
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
            if not is_weight(self.function, number):
                continue
            for user in [use.owner.operation for use in argument.uses]:
                if is_reshape(user) and not list(user.results[0].uses):
                    user.erase()
            users, twin = [use.owner.operation for use in argument.uses], self.twins.get(argument)
            if twin is None or not users or any(user.results[0] != twin for user in users if user.results):
                continue
            argument.set_type(twin.type)
            twin.replace_all_uses_with(argument)
            users[0].erase()
            set_attribute(self.function, number, ORDER, self.orders.get(argument, LAST))
        for dense, rows, count in self.joined:
            take_side_by_side(self.function, dense, rows, count)

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


@dataclass(frozen=True)
class ChannelsLast(Pass):
    """Rewrite convolutions of bf16, f16 and f32, in groups or not, for a GPU to channels-last images, and what lies between.

    Element-wise work, padding, pooling, what reads images by index and concatenation follow, and work over images as rows;
    transpositions are left where images come in or leave in the usual order. Weights, and inputs that the caller has in
    channels-last memory, become arguments in that order (attribute `kitsune.dim_order`). Option: `target`; nothing changes for
    the host.
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
