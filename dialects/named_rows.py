"""Gathers whose indices are known before a program starts: which elements of an argument name the rows that a tile reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch_mlir import ir

from .access import WHOLE, Along, is_tensor, shape_of, static_ints
from .deep import postorder
from .iteration import Space, is_trivial_reshape
from .products import body_of, defining_op, is_generic
from .verify import captures

__all__ = ["Named", "named_rows", "rows_read"]

MOST_ROWS = 1 << 22
"""Of a table, whose numbers are tried one by one."""

_PREDICATES = {0: np.equal, 1: np.not_equal, 2: np.less, 3: np.less_equal, 4: np.greater, 5: np.greater_equal}
_ARITHMETIC = {"arith.addi": np.add, "arith.subi": np.subtract, "arith.minsi": np.minimum, "arith.maxsi": np.maximum}
_CASTS = ("arith.index_cast", "arith.extsi", "arith.trunci")
_KNOWN = {*_ARITHMETIC, *_CASTS, "arith.cmpi", "arith.select"}


@dataclass(frozen=True)
class Named:
    """Elements of `indices`, a tensor from outside of the pipeline seen flat, that name the rows which a tile reads.

    They are [start + step * offset, start + step * (offset + tile)) for a tile at `offset` of shared dimension `dim`; where
    `dim` is None, [start, start + step) for every tile. Some between them may name none.
    """

    indices: ir.Value
    dim: int | None
    step: int
    start: int = 0

    def count(self, tile: Sequence[int]) -> int:
        """Elements of a tile of these sizes."""
        return self.step * (1 if self.dim is None else tile[self.dim])


def rows_read(op: ir.Operation, table: ir.Value) -> list[int] | None:
    """Which operands of a generic hold the numbers of all rows of `table` that its body reads; None where it reads others.

    Numbers that count from the end, -1 for the last row, name rows as well. What a body makes of numbers that name no row does
    not matter: it would read outside of the table.
    """
    if not is_generic(op) or table in list(op.operands):
        return None
    block = op.regions[0].blocks[0]
    numbers: list[int] = []
    for inner in body_of(op):
        if table not in list(inner.operands):
            if any(table in captures(inner) for _ in inner.regions):
                return None
            continue
        if inner.name != "tensor.extract" or len(inner.operands) < 2 or table in list(inner.operands)[1:]:
            return None
        argument = _row_argument(inner.operands[1], block, shape_of(table)[0])
        if argument is None:
            return None
        if argument not in numbers:
            numbers.append(argument)
    return numbers or None


def _row_argument(row: ir.Value, block: ir.Block, rows: int) -> int | None:
    """The block argument that holds the number of the row `row`; None where it is any other function of the arguments."""
    if rows > MOST_ROWS:
        return None
    places = np.arange(-rows, rows, dtype=np.int64)
    found: set[int] = set()

    def operands(value: ir.Value) -> list[ir.Value]:
        op = defining_op(value)
        return list(op.operands) if op is not None and op.name in _KNOWN else []

    def evaluated(value: ir.Value) -> np.ndarray | None:
        op = defining_op(value)
        if op is None:
            if not isinstance(value.owner, ir.Block) or value.owner != block:
                return None
            found.add(ir.BlockArgument(value).arg_number)
            return places
        if op.name == "arith.constant":
            attribute = op.attributes["value"]
            return np.full_like(places, attribute.value) if isinstance(attribute, ir.IntegerAttr) else None
        known = [number for operand in operands(value) if (number := numbers[operand]) is not None]
        if op.name not in _KNOWN or len(known) < len(op.operands):
            return None
        if op.name == "arith.select":
            return np.where(known[0] != 0, known[1], known[2])
        if op.name == "arith.cmpi":
            predicate = _PREDICATES.get(ir.IntegerAttr(op.attributes["predicate"]).value)
            return None if predicate is None else predicate(known[0], known[1]).astype(np.int64)
        return known[0] if op.name in _CASTS else _ARITHMETIC[op.name](known[0], known[1])

    numbers: dict[ir.Value, np.ndarray | None] = {}
    for value in postorder([row], operands):
        numbers[value] = evaluated(value)
    read = numbers[row]
    if read is None or len(found) != 1:
        return None
    outside = (read < 0) | (read >= rows)
    right = read == np.where(places < 0, places + rows, places)
    return found.pop() if (right | (outside & (places < 0))).all() else None


def named_rows(space: Space, table: ir.Value) -> list[Named] | None:
    """The indices of all rows of `table`, an outside value, that a stage reads; None where it reads it in another way too."""
    found: list[Named] = []
    for n, op in enumerate(space.ops):
        if table not in [*op.operands, *captures(op)]:
            continue
        numbers, access = rows_read(op, table), space.accesses[n]
        if numbers is None or access is None:
            return None
        for number in numbers:
            parts = [_Part(d, along) for d, along in space.along(n, access.operands[number])]
            named = _flat(space, op.operands[number], parts)
            if named is None:
                return None
            if named not in found:
                found.append(named)
    return found or None


@dataclass(frozen=True)
class _Part:
    """How a tile walks one dimension of a tensor: along shared dimension `dim`, or always elements [start, start + length)."""

    dim: int | None
    along: Along
    start: int = 0
    length: int | None = None


def _flat(space: Space, value: ir.Value, parts: list[_Part]) -> Named | None:
    """A tile's part of `value` as one range of an outside tensor's elements."""
    while all(part.dim is None or part.along.plain for part in parts):
        maker = defining_op(value)
        if maker is None or maker not in space.ops:
            return _range(value, parts)
        kept = iter([part for part, size in zip(parts, shape_of(value), strict=True) if size != 1])
        if is_trivial_reshape(maker):
            parts = [_one() if s == 1 else next(kept) for s in shape_of(maker.operands[0])]
        elif (
            maker.name != "tensor.extract_slice"
            or len(maker.operands) != 1
            or any(s != 1 for s in static_ints(maker, "static_strides"))
        ):
            return None
        else:
            parts = []
            for start, size in zip(static_ints(maker, "static_offsets"), static_ints(maker, "static_sizes"), strict=True):
                part = _one() if size == 1 else next(kept)
                length = part.length if part.length is not None else size
                parts.append(_Part(part.dim, part.along, part.start + start, length))
        value = maker.operands[0]
    return None


def _range(value: ir.Value, parts: list[_Part]) -> Named | None:
    """The same of a value that the stage does not make."""
    if not is_tensor(value) or _is_made(value):
        return None
    shape = shape_of(value)
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    start = sum(part.start * stride for part, stride in zip(parts, strides, strict=True))
    moving = [d for d, part in enumerate(parts) if part.dim is not None]
    if not moving:
        last = sum((_count(part, n) - 1) * s for part, n, s in zip(parts, shape, strides, strict=True))
        return Named(value, None, last + 1, start)
    # Before the dimension along which tiles move there are single places; behind it anything, of which all is taken.
    first = moving[0]
    if len(moving) > 1 or any(_count(part, n) > 1 for part, n in zip(parts[:first], shape, strict=False)):
        return None
    return Named(
        value, parts[first].dim, strides[first], sum(p.start * s for p, s in zip(parts[: first + 1], strides, strict=False))
    )


def _one() -> _Part:
    return _Part(None, WHOLE, length=1)


def _count(part: _Part, size: int) -> int:
    return size if part.length is None else part.length


def _is_made(value: ir.Value) -> bool:
    """Whether a value comes from the pipeline or the stage itself: not an argument, nor a view of one."""
    maker = defining_op(value)
    while maker is not None and maker.name in ("tensor.expand_shape", "tensor.collapse_shape"):
        value = maker.operands[0]
        maker = defining_op(value)
    return maker is not None
