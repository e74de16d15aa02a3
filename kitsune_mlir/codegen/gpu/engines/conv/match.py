"""Reading the body of a task that is a convolution: which loop walks what, where the image begins, what follows it.

The convolution is a `linalg.generic`

    out[pixel.., channel] += image[pixel*stride + tap*dilation.., c] * weight[channel, tap.., c]

or, where it is depthwise,

    out[pixel.., channel] += image[pixel*stride + tap*dilation.., channel] * weight[tap.., channel]

Its image may be a window of a padded tensor; the padding becomes a distance from the image's first element. Everything else
in the body is element-wise work on the result. It is looked at by pulling: from the stores through the operations down to
loads, every dimension of every tensor named by the *side* of the tile that it lies along: a pixel dimension (the number of
the image's dimension), or `CHANNEL`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.contraction.match import is_constant
from kitsune_mlir.dialects.access import affine_maps, iterator_kinds, loop_sizes, plain_loops, shape_of, static_ints
from kitsune_mlir.dialects.contraction import conv_dims
from kitsune_mlir.dialects.deep import postorder
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.dialects.products import body_of, is_contraction
from kitsune_mlir.dialects.sizes import wide_dims
from kitsune_mlir.dialects.tile_records import Load, Offset, TaskView

__all__ = ["CHANNEL", "Axis", "Convolution", "Side", "Sides", "match", "operand_sides", "stored_sides"]

CHANNEL = -1
Side = int | None
"""The image's dimension whose pixels are walked, `CHANNEL`, or None where the extent is 1."""
Sides = tuple[Side, ...]

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
        sides: of the convolution's result.
        depthwise: every channel has a weight of its own.
    """

    task: TaskView
    op: ir.Operation
    image: Load
    weight: Load
    axes: tuple[Axis, ...]
    channels: int
    features: int
    dtype: str
    sides: Sides
    depthwise: bool = False

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
        Mismatch: it is no single convolution of bf16, f16 or f32 with channels innermost and element-wise work after it.
    """
    products = [op for op in task.work() if is_contraction(op)]
    if len(products) != 1:
        raise MatchFailure(f"{len(products)} products in one task; one is done")
    found = _convolution(task, products[0], depthwise)
    if not task.stores:
        raise MatchFailure("the task stores nothing")
    for store in task.stores:
        if task.load_of(store.tensor) is not None:
            raise MatchFailure("a tensor is copied from memory to memory")
        _check(found, store.tensor, stored_sides(found, store.tensor))
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
    shared = slice(0, -1) if depthwise else slice(1, None)  # dimensions of the weight that every feature has
    weight, rank = task.load_of(op.operands[1]), len(shape_of(op.operands[1]))
    if weight is None or list(weight.sizes[shared]) != list(weight.buffer.shape[shared]) or len(weight.sizes) != rank:
        raise MatchFailure("the weight is not read from memory, whole but for its features")
    sides = {**{loop: number for number, loop in enumerate(dims.pixels)}, dims.features: CHANNEL}
    walked = tuple(sides[loop] if sizes[loop] != 1 else None for loop in plain_loops(affine_maps(op)[2]) if loop is not None)
    channels = 1 if depthwise else sizes[dims.channels]
    return Convolution(task, op, image, weight, axes, channels, sizes[dims.features], types[0], walked, depthwise)


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


# --- what follows the convolution ------------------------------------------------------------------------------------


def operand_sides(op: ir.Operation, number: int, result: int, sides: Sides) -> Sides:
    """The sides of an operand's dimensions, from those of the result of an element-wise op or a reshape by ones.

    Raises:
        Mismatch: a dimension is indexed by more than a loop.
    """
    value = op.operands[number]
    if not isinstance(value.type, ir.ShapedType):
        return ()
    if op.name in ("tensor.expand_shape", "tensor.collapse_shape"):
        wide = [sides[dim] for dim in wide_dims(shape_of(op.results[0]))]
        places = dict(zip(wide_dims(shape_of(value)), wide, strict=True))
        return tuple(places.get(dim) for dim in range(len(shape_of(value))))
    maps = affine_maps(op)
    loops: dict[int, Side] = {}
    for expression, side in zip(maps[len(maps) - len(op.results) + result].results, sides, strict=True):
        if isinstance(expression, ir.AffineDimExpr):
            loops[expression.position] = side
    found: list[Side] = []
    for expression, extent in zip(maps[number].results, shape_of(value), strict=True):
        if extent == 1:
            found.append(None)
        elif isinstance(expression, ir.AffineDimExpr) and expression.position in loops:
            found.append(loops[expression.position])
        else:
            raise MatchFailure(f"an element-wise operand is indexed by {expression}")
    return tuple(found)


def stored_sides(found: Convolution, value: ir.Value) -> Sides:
    """The sides of a stored tensor: followed up from the convolution's result, whose every wide side it must have.

    Raises:
        Mismatch: it is not made from the convolution's result, or not from all of its tile.
    """
    known: dict[ir.Value, Sides] = {found.op.results[0]: found.sides}
    for op in found.task.work():
        if op == found.op or not len(op.results):
            continue
        for number, operand in enumerate(op.operands):
            if operand in known:
                known.update(_forward(op, number, known[operand]))
                break
    if value not in known:
        raise MatchFailure("a result is not made from the convolution's")
    sides = known[value]
    if set(sides) - {None} != set(found.sides) - {None}:
        raise MatchFailure("a result is not a whole tile of the convolution's")
    return sides


def _forward(op: ir.Operation, number: int, sides: Sides) -> dict[ir.Value, Sides]:
    """The sides of an element-wise op's results, from those of one operand."""
    if op.name in ("tensor.expand_shape", "tensor.collapse_shape"):
        wide = [sides[dim] for dim in wide_dims(shape_of(op.operands[0]))]
        if len(wide) != len(wide_dims(shape_of(op.results[0]))):
            return {}
        places = dict(zip(wide_dims(shape_of(op.results[0])), wide, strict=True))
        return {op.results[0]: tuple(places.get(dim) for dim in range(len(shape_of(op.results[0]))))}
    if op.name != "linalg.generic":
        return {}
    maps = affine_maps(op)
    loops = {e.position: s for e, s in zip(maps[number].results, sides, strict=True) if isinstance(e, ir.AffineDimExpr)}
    found = {}
    for index, result in enumerate(op.results):
        out = maps[len(maps) - len(op.results) + index].results
        wide = [extent != 1 for extent in shape_of(result)]
        if all(not w or (isinstance(e, ir.AffineDimExpr) and e.position in loops) for e, w in zip(out, wide, strict=True)):
            found[result] = tuple(loops[e.position] if w else None for e, w in zip(out, wide, strict=True))
    return found


def _check(found: Convolution, value: ir.Value, sides: Sides) -> None:
    """Everything that a value is made of is the convolution, an element-wise step, a load or a constant."""
    for _ in postorder([(value, sides)], lambda walked: _walked_by(found, *walked)):
        pass


def _walked_by(found: Convolution, value: ir.Value, sides: Sides) -> list[tuple[ir.Value, Sides]]:
    """What a value walked along some sides is made of, and the sides that these values are walked along."""
    if not isinstance(value.type, ir.ShapedType) or is_constant(value) or found.task.load_of(value) is not None:
        return []
    if value == found.op.results[0]:
        if [side for side in sides if side is not None] != [side for side in found.sides if side is not None]:
            raise MatchFailure("the convolution's result is read along other dimensions")
        return [(found.op.operands[2], found.sides)]
    op = value.owner
    if isinstance(op, ir.Block):
        raise MatchFailure("an element-wise operand is neither loaded nor computed")
    result = list(op.results).index(value)
    return [(op.operands[number], operand_sides(op, number, result, sides)) for number in _read_operands(op)]


def _read_operands(op: ir.Operation) -> Sequence[int]:
    if op.name in ("tensor.expand_shape", "tensor.collapse_shape", "linalg.fill"):
        return (0,)
    if op.name != "linalg.generic" or any(kind != "parallel" for kind in iterator_kinds(op)):
        raise MatchFailure(f"'{op.name}' is neither the convolution nor element-wise")
    for inner in body_of(op):
        if inner.regions or not inner.name.startswith(("arith.", "math.")):
            raise MatchFailure(f"an element-wise body holds '{inner.name}'")
    arguments = op.regions[0].blocks[0].arguments
    inputs = len(op.operands) - len(op.results)
    return [n for n in range(len(op.operands)) if n < inputs or len(list(arguments[n].uses))]
