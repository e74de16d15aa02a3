"""Windows of global memory as tensor cores see them: each dimension with the side of the tile that it lies along."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.memory import offset
from kitsune_mlir.codegen.gpu.emit.value import Value, i64
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.codegen.gpu.sm90.tensor_map import TensorMap
from kitsune_mlir.dialects.deep import postorder
from kitsune_mlir.dialects.sizes import element_bytes, wide_dims
from kitsune_mlir.dialects.tile_records import Buffer, Load, Offset, Store
from kitsune_mlir.errors import CompileError

__all__ = ["Dim", "Window", "multiple_of", "tensor_map_of"]

BASE_ALIGN = 256
"""What divides the address of every program argument, as far as it matters here: at most 16 is made use of."""


@dataclasses.dataclass(frozen=True)
class Dim:
    """One dimension of a window.

    Attributes:
        side: "row", "col", "k<loop>", or as the engine names it; "" where the window has one element.
        size: elements in the window.
        extent: elements in the buffer.
        stride: elements between neighbours in memory.
        start: first element of the window in the buffer.
    """

    side: Any
    size: int
    extent: int
    stride: int
    start: Offset


@dataclasses.dataclass(frozen=True)
class Window:
    """A part of a buffer. Dimensions of the buffer that have one element are left out."""

    buffer: Buffer
    dims: tuple[Dim, ...]

    @staticmethod
    def of(record: Load | Store, sides: Sequence[Hashable]) -> Window:
        """The window of a load or store; `sides` are those of the tensor's wide dimensions, in order."""
        named = dict(zip(wide_dims(record.sizes), sides, strict=True))
        buffer = record.buffer
        dims = []
        for dim, (size, extent) in enumerate(zip(record.sizes, buffer.shape, strict=True)):
            if extent != 1:
                dims.append(Dim(named.get(dim, ""), size, extent, buffer.strides[dim], record.offsets[dim]))
        return Window(buffer, tuple(dims))

    @property
    def dtype(self) -> str:
        """Element type, as memory instructions name it."""
        return str(self.buffer.element)

    @property
    def bytes(self) -> int:
        """Bytes of an element."""
        return element_bytes(self.buffer.element)

    @property
    def constant(self) -> bool:
        """Whether nobody writes there while the kernel runs: the program's inputs."""
        return self.buffer.role == "input"

    def stride(self, side: Hashable) -> int:
        """Elements from one element along a side to the next; 0 where the window does not lie along it."""
        return sum(dim.stride for dim in self.dims if dim.side == side)

    def along(self, side: Hashable) -> bool:
        """Whether the window lies along a side."""
        return any(dim.side == side for dim in self.dims)

    def align(self, moving: Sequence[Hashable]) -> int:
        """Bytes, at most 16, that divide the address of every element of the window but for steps along the sides `moving`."""
        parts = [BASE_ALIGN, self.buffer.offset]
        for dim in self.dims:
            parts.append(dim.stride * multiple_of(dim.start) * self.bytes)
            if dim.side != "" and dim.side not in moving:
                parts.append(dim.stride * self.bytes)
        return min(16, math.gcd(*parts) & -math.gcd(*parts))

    def start(self, tile: TileContext) -> Value:
        """Pointer to the window's first element."""
        pointer = tile.pointer(self.buffer)
        for dim in self.dims:
            if isinstance(dim.start, int):
                pointer = offset(pointer, dim.start * dim.stride * self.bytes)
            else:
                pointer = offset(pointer, i64(tile.index(dim.start)) * (dim.stride * self.bytes))
        return pointer


def tensor_map_of(
    window: Window, box: Mapping[str, int], swizzle: int = 128, promotion: int = 256, dtype: str | None = None
) -> tuple[TensorMap, tuple[Dim, ...]] | str:
    """TMA's view of a window, and the dimensions that it has; the reason where there is none.

    Args:
        box: elements along the sides that come last, in this order, the last of them neighbours in memory. The window may have
            one element along a side (TMA fills the rest of the box with zeros); of its other dimensions a box has one element.
        swizzle, promotion: as in `TensorMap`.
        dtype: the map's, if not the window's.
    """
    inner = [next((dim for dim in window.dims if dim.side == side), Dim(side, 1, 1, 1, 0)) for side in box]
    others = [dim for dim in window.dims if dim.side not in box]
    if len(others) + sum(map(window.along, box)) != len(window.dims):
        return "it lies along one side twice"
    dims = (*others, *inner)
    if inner[-1].stride != 1:
        return f"neighbours along '{inner[-1].side}' are not neighbours in memory"
    if len(dims) > 5:
        return f"{len(dims)} dimensions; TMA has 5"
    strides = tuple(dim.stride * window.bytes if dim.extent != 1 else 16 for dim in dims[:-1])
    if odd := next((stride for stride in (*strides, window.buffer.offset) if stride % 16), 0):
        return f"a stride or start of {odd} bytes is no multiple of 16 bytes"
    extents = tuple(dim.extent for dim in dims)
    try:
        sizes = (*(1 for _ in others), *box.values())
        return TensorMap(dtype or window.dtype, extents, strides, sizes, swizzle, promotion=promotion), dims
    except CompileError as error:
        return str(error)


def multiple_of(value: Offset) -> int:
    """A number that divides an offset, as far as its arithmetic tells; 0 for the offset 0."""
    if isinstance(value, int):
        return value
    found: dict[ir.Value, int] = {}
    for each in postorder([value], lambda v: [] if isinstance(v.owner, ir.Block) else v.owner.operands):
        op = each.owner
        numbers = [] if isinstance(op, ir.Block) else [found[operand] for operand in op.operands]
        found[each] = 1 if isinstance(op, ir.Block) else _multiple(op, numbers)
    return found[value]


def _multiple(op: ir.Operation, operands: list[int]) -> int:
    if op.name == "arith.constant":
        return ir.IntegerAttr(op.attributes["value"]).value
    if op.name == "arith.muli":
        return operands[0] * operands[1]
    if op.name in ("arith.addi", "arith.subi", "arith.minui", "arith.minsi", "arith.maxui", "arith.maxsi"):
        return math.gcd(*operands)
    return operands[0] if op.name in ("arith.index_cast", "arith.index_castui") else 1
