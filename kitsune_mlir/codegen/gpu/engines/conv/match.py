"""Reading the body of a task that is a convolution: which loop walks what, where the image begins, what follows it.

The convolution is a `linalg.generic`

    out[pixel.., channel] += image[pixel*stride + tap*dilation.., c] * weight[channel, tap.., c]

or, where it is depthwise,

    out[pixel.., channel] += image[pixel*stride + tap*dilation.., channel] * weight[tap.., channel]

or, of groups of channels with a weight each, one of which a tile is of: then the group is one more pixel dimension.

Its image may be a window of a padded tensor; the padding becomes a distance from the image's first element. Everything else
in the body is element-wise work on the result, every dimension of every tensor named by the *side* of the tile that it lies
along: a pixel dimension (the number of the image's dimension), or `CHANNEL`.
"""

from __future__ import annotations

import dataclasses

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.contraction.axes import Sides
from kitsune_mlir.codegen.gpu.contraction.elementwise import Body, check_outputs, read_step
from kitsune_mlir.dialects.access import loop_sizes, shape_of, static_ints
from kitsune_mlir.dialects.contraction import ConvDims, conv_dims
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.dialects.products import is_contraction
from kitsune_mlir.dialects.tile_records import Load, Offset, TaskView

__all__ = ["CHANNEL", "Axis", "Convolution", "match"]

CHANNEL = -1

_DTYPES = ("bf16", "f16", "f32")
_DYNAMIC = ir.ShapedType.get_dynamic_size()


@dataclasses.dataclass(frozen=True, eq=False)
class Axis:
    """One dimension of the image but its channels: batch, rows, columns, ...

    Attributes:
        size: pixels of the tile along it.
        stride: from one pixel to the next, in elements of the image.
        taps: of the weight along it; 1 for a batch.
        dilation: from one tap to the next.
        starts: these, added up, are the first element that tap 0 of the tile's first pixel reads ...
        low: ... but for this much padding before the image.
        padded: there is padding, before or after.
    """

    size: int
    stride: int
    taps: int
    dilation: int
    starts: tuple[Offset, ...]
    low: int
    padded: bool

    @property
    def reach(self) -> int:
        """Elements that the tile's pixels read together."""
        return (self.size - 1) * self.stride + (self.taps - 1) * self.dilation + 1


@dataclasses.dataclass(frozen=True, eq=False)
class Convolution:
    """A body that was understood.

    Attributes:
        task: where it comes from.
        op: the convolution.
        image, weight: what it reads.
        axes: one for each dimension of the image but the last, which holds the channels.
        channels: that are summed, C; 1 of a depthwise convolution.
        features: channels of the tile's result.
        dtype: of both factors, "bf16", "f16" or "f32".
        body: the element-wise steps around it; their sides are pixels, by the number of the image's dimension, or `CHANNEL`.
        depthwise: every channel has a weight of its own.
        grouped: the weight's first dimension are groups, of which the tile has one.
    """

    task: TaskView
    op: ir.Operation
    image: Load
    weight: Load
    axes: tuple[Axis, ...]
    channels: int
    features: int
    dtype: str
    body: Body
    depthwise: bool = False
    grouped: bool = False

    @property
    def taps(self) -> int:
        """All positions of the weight."""
        total = 1
        for axis in self.axes:
            total *= axis.taps
        return total


def match(task: TaskView, depthwise: bool = False) -> Convolution:
    """Read the body of a task.

    Args:
        depthwise: only a depthwise convolution is taken, else only one of all channels.

    Raises:
        MatchFailure: it is no single convolution of bf16, f16 or f32 with channels innermost and element-wise work after it.
    """
    products = [op for op in task.work() if is_contraction(op)]
    if len(products) != 1:
        raise MatchFailure(f"{len(products)} products in one task; one is done")
    found = _convolution(task, products[0], depthwise)
    check_outputs(found.body, {found.op.results[0]: found.op.operands[2]}, set(found.body.sides.names.values()))
    return found


def _convolution(task: TaskView, op: ir.Operation, depthwise: bool) -> Convolution:
    types = [str(ir.ShapedType(value.type).element_type) for value in op.operands]
    if types[0] != types[1] or types[0] not in _DTYPES or types[2] != "f32":
        raise MatchFailure(f"a convolution of {types[0]} and {types[1]} into {types[2]}; bf16, f16 or f32 into f32 are done")
    dims, sizes = conv_dims(op), loop_sizes(op)
    if dims.depthwise != depthwise:
        raise MatchFailure(f"the convolution is {'depthwise' if dims.depthwise else 'of all channels'}")
    image, starts, lows, padded = _image(task, op.operands[0])
    taps = [1 if tap is None else sizes[tap] for tap in dims.taps]
    lengths = [sizes[loop] for loop in dims.pixels]
    axes = tuple(map(Axis, lengths, dims.strides, taps, dims.dilations, starts, lows, padded))
    own = 1 if dims.group is None else 2  # dimensions of the weight that say whose it is
    if dims.group is not None and sizes[dims.pixels[dims.group]] != 1:
        raise MatchFailure("a tile of several groups, each with a weight of its own")
    shared = slice(0, -1) if depthwise else slice(own, None)  # dimensions of the weight that every feature has
    weight, rank = task.load_of(op.operands[1]), len(shape_of(op.operands[1]))
    if weight is None or list(weight.sizes[shared]) != list(weight.buffer.shape[shared]) or len(weight.sizes) != rank:
        raise MatchFailure("the weight is not read from memory, whole but for its features")
    channels = 1 if depthwise else sizes[dims.channels]
    return Convolution(
        *(task, op, image, weight, axes, channels, sizes[dims.features], types[0], _body(task, op, dims), depthwise),
        grouped=dims.group is not None,
    )


def _body(task: TaskView, op: ir.Operation, dims: ConvDims) -> Body:
    """The element-wise steps around a convolution, and which of its pixels or channels each of their tensors lies along."""
    sides, steps = Sides(task), {}
    for other in task.work():
        step = read_step(other, sides, positions=False) if other != op else None
        if step is not None:
            steps.update(dict.fromkeys(other.results, step))
    sides.generic(op, (2,))
    sizes = loop_sizes(op)
    for loop, name in (*((loop, number) for number, loop in enumerate(dims.pixels)), (dims.features, CHANNEL)):
        if sizes[loop] != 1:
            sides.call((op, loop), name)
    return Body(task, steps, sides)


def _image(task: TaskView, value: ir.Value) -> tuple[Load, list[tuple[Offset, ...]], list[int], list[bool]]:
    """The load behind an image; for each of its dimensions where it begins in the buffer, the padding before it, and whether
    there is any."""
    rank = len(shape_of(value))
    starts: list[tuple[Offset, ...]] = [()] * rank
    lows = [0] * rank
    padded = [False] * rank
    while (load := task.load_of(value)) is None:
        op = value.owner
        if isinstance(op, ir.Block) or op.name not in ("tensor.extract_slice", "tensor.pad"):
            raise MatchFailure("the image is computed in the task")
        if op.name == "tensor.pad":
            if len(op.operands) != 1 or not _pads_with_zero(op):
                raise MatchFailure("the image is padded with something else than zeros")
            low, high = static_ints(op, "static_low"), static_ints(op, "static_high")
            lows = [a + b for a, b in zip(lows, low, strict=True)]
            padded = [p or a != 0 or b != 0 for p, a, b in zip(padded, low, high, strict=True)]
        else:
            if any(stride != 1 for stride in static_ints(op, "static_strides")) or len(shape_of(op.operands[0])) != rank:
                raise MatchFailure("a strided slice of the image")
            dynamic = iter(list(op.operands)[1:])
            offsets = [next(dynamic) if n == _DYNAMIC else n for n in static_ints(op, "static_offsets")]
            starts = [(*start, offset) for start, offset in zip(starts, offsets, strict=True)]
        value = op.operands[0]
    if len(load.sizes) != rank:
        raise MatchFailure("the image drops a dimension of its buffer")
    for dim, (size, extent) in enumerate(zip(load.sizes, load.buffer.shape, strict=True)):
        if padded[dim] and size != extent:
            raise MatchFailure("a part of the image is padded")
        starts[dim] = (*starts[dim], load.offsets[dim])
    return load, starts, lows, padded


def _pads_with_zero(pad: ir.Operation) -> bool:
    value = list(pad.regions[0].blocks[0].operations)[-1].operation.operands[0]
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != "arith.constant":
        return False
    return ir.FloatAttr(owner.attributes["value"]).value == 0
