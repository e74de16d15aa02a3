"""Element-wise steps after a convolution, evaluated for a few of its results at a time by pulling: from what is stored through
the operations that make it, down to loads and the convolution's sums.

What such a few results are (a *block*) is for the engine to say: here it is a list of values of a fixed length.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.contraction.elementwise import is_constant, read_operands
from kitsune_mlir.codegen.gpu.contraction.scalar_body import constant_of, emit_body, is_zero
from kitsune_mlir.codegen.gpu.emit.control_flow import if_
from kitsune_mlir.codegen.gpu.emit.memory import offset
from kitsune_mlir.codegen.gpu.emit.value import Value, i64
from kitsune_mlir.codegen.gpu.engines.conv.match import CHANNEL, Convolution
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.codegen.gpu.interface.window import multiple_of
from kitsune_mlir.dialects.sizes import element_bytes, wide_dims
from kitsune_mlir.dialects.tile_records import Load, Store

__all__ = ["Block", "Sides", "Steps", "guarded", "neighbours_align"]

Block = list[Value]
Sides = tuple[int, ...]
"""Of each dimension longer than 1: the image's dimension whose pixels are walked, or `CHANNEL`."""


class Steps:
    """Evaluates blocks of `count` values of one tile; subclasses say how a block is read and where the sums are.

    Attributes:
        known: blocks that were evaluated; those of other pixels are dropped by `next_pixels`.
    """

    def __init__(self, conv: Convolution, tile: TileContext, count: int):
        self.conv, self.tile, self.count = conv, tile, count
        self.known: dict[tuple, Block] = {}

    def sums(self) -> Block:
        """The convolution's sums."""
        raise NotImplementedError

    def read(self, load: Load, sides: Sides) -> Block:
        """A block of a tensor in memory."""
        raise NotImplementedError

    def next_pixels(self) -> None:
        """What follows is for other pixels: what is the same for all of them stays known."""
        self.known = {key: value for key, value in self.known.items() if not key[-1]}

    def evaluate(self, value: ir.Value, sides: Sides) -> Block:
        """The block's elements of a tensor of the task."""
        if is_constant(value):
            return [constant_of(value)] * self.count
        key = (value, sides, any(side != CHANNEL for side in sides))
        if key not in self.known:
            load = self.conv.task.load_of(value)
            if value == self.conv.op.results[0]:
                self.known[key] = self._product()
            elif load is not None:
                self.known[key] = self.read(load, sides)
            else:
                self.known[key] = self._step(value)
        return self.known[key]

    def _product(self) -> Block:
        start = self._operand(self.conv.op, 2)
        if all(is_zero(value.ir) for value in start):
            return self.sums()
        return [total + begin for total, begin in zip(self.sums(), start, strict=True)]

    def _step(self, value: ir.Value) -> Block:
        op = value.owner
        result = list(op.results).index(value)
        if op.name in ("tensor.expand_shape", "tensor.collapse_shape"):
            return self._operand(op, 0)
        if op.name == "linalg.fill":
            return [constant_of(op.operands[0])] * self.count
        read = read_operands(op)
        blocks = [self._operand(op, n) if n in read else None for n in range(len(op.operands))]
        found: Block = []
        done: dict[tuple[int, ...], Value] = {}
        for element in range(self.count):
            taken = [None if block is None else block[element] for block in blocks]
            same = tuple(id(item) for item in taken)
            if same not in done:
                done[same] = emit_body(op, taken, self.tile, _no_index)[result]
            found.append(done[same])
        return found

    def _operand(self, op: ir.Operation, operand: int) -> Block:
        value = op.operands[operand]
        if not isinstance(value.type, ir.ShapedType):
            return [constant_of(value)] * self.count
        return self.evaluate(value, self.conv.body.operand_sides(op, operand))

    # --- memory ----------------------------------------------------------------------------------------------------------

    def strides(self, record: Load | Store, sides: Sides) -> dict[int, int]:
        """Elements of a buffer from one element to the next along each side."""
        strides: dict[int, int] = {}
        for dim, side in zip(wide_dims(record.sizes), sides, strict=True):
            strides[side] = strides.get(side, 0) + record.buffer.strides[dim]
        return strides

    def start(self, record: Load | Store) -> Value:
        """Pointer to the tile's first element."""
        pointer = self.tile.pointer(record.buffer)
        size = element_bytes(record.buffer.element)
        for start, stride in zip(record.offsets, record.buffer.strides, strict=True):
            pointer = offset(
                pointer, start * stride * size if isinstance(start, int) else i64(self.tile.index(start)) * (stride * size)
            )
        return pointer


def neighbours_align(record: Load | Store, count: int) -> bool:
    """Whether every `count`-th element along the last dimension of what is loaded or stored lies at a multiple of `count`."""
    size = element_bytes(record.buffer.element)
    parts = []
    for dim, (start, stride) in enumerate(zip(record.offsets, record.buffer.strides, strict=True)):
        parts.append(stride * multiple_of(start))
        if stride != 1 and record.sizes[dim] != 1:
            parts.append(stride)
    return record.buffer.offset % (count * size) == 0 and all(part % count == 0 for part in parts)


def guarded(write: Callable[[], None], *conditions: Value | None) -> None:
    """Emit `write` under all conditions that there are."""
    wanted = [condition for condition in conditions if condition is not None]
    if not wanted:
        write()
        return
    if_(functools.reduce(lambda a, b: a & b, wanted), write)


def _no_index(loop: int) -> Value:
    raise AssertionError(f"no body that was taken asks for loop {loop}")
