"""Index arithmetic of a task, evaluated for all its tiles at once.

The coordinates of a tile are small integers, so offsets and slots need no symbolic algebra: each value is an array with one
axis a grid dimension, of length 1 along the dimensions that it does not depend on. A task of 100,000 tiles whose offsets follow
one coordinate each costs a few short arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from torch_mlir import ir

from kitsune_mlir.dialects.deep import postorder
from kitsune_mlir.dialects.products import defining_op

__all__ = ["Array", "Points", "TileIndices"]

Array = np.ndarray


def _unsigned(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """The operation on two's complement bits: -1 is the largest value, as in arith's `ui` ops."""
    return lambda a, b: function(a.astype(np.uint64), b.astype(np.uint64)).astype(np.int64)


def _toward_zero(a: Array, b: Array) -> Array:
    return np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))


def _ceiling(a: Array, b: Array) -> Array:
    return -(-a // b)


_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "arith.addi": np.add,
    "arith.subi": np.subtract,
    "arith.muli": np.multiply,
    "arith.minsi": np.minimum,
    "arith.maxsi": np.maximum,
    "arith.minui": _unsigned(np.minimum),
    "arith.maxui": _unsigned(np.maximum),
}
_DIVISION: dict[str, Callable[[Array, Array], Array]] = {
    "arith.divui": _unsigned(np.floor_divide),
    "arith.remui": _unsigned(np.remainder),
    "arith.ceildivui": _ceiling,  # of coordinates, which are never negative
    "arith.divsi": _toward_zero,
    "arith.floordivsi": np.floor_divide,
    "arith.ceildivsi": _ceiling,
    "arith.remsi": lambda a, b: a - b * _toward_zero(a, b),
}
_CASTS = ("arith.index_cast", "arith.index_castui")


def _is_arithmetic(op: ir.Operation) -> bool:
    return op.name in _BINARY or op.name in _DIVISION or op.name in _CASTS or op.name.startswith("affine.")


class TileIndices:
    """Values of index arithmetic over the grid `extents`, whose coordinates are the block arguments `coordinates`."""

    def __init__(self, extents: tuple[int, ...], coordinates: Iterable[ir.Value]):
        self.extents = extents
        self._known: dict[ir.Value, Array | None] = {}
        for axis, value in enumerate(coordinates):
            shape = [1] * len(extents)
            shape[axis] = extents[axis]
            self._known[value] = np.arange(extents[axis], dtype=np.int64).reshape(shape)

    def constant(self, number: int) -> Array:
        """A number that is the same for all tiles."""
        return np.full((1,) * len(self.extents), number, np.int64)

    def define(self, value: ir.Value, array: Array) -> None:
        """Say what a value is that no index arithmetic makes."""
        self._known[value] = array

    def of(self, value: ir.Value) -> Array | None:
        """The value for each tile; None where it depends on data or on an operation that is not known here."""
        for each in postorder([value], self._operands):
            if each not in self._known:
                self._known[each] = self._evaluate(each)
        return self._known[value]

    def _operands(self, value: ir.Value) -> list[ir.Value]:
        op = defining_op(value) if value not in self._known else None
        return list(op.operands) if op is not None and _is_arithmetic(op) else []

    def _evaluate(self, value: ir.Value) -> Array | None:
        op = defining_op(value)
        if op is None:
            return None  # an argument of an inner block: a loop's counter
        if op.name == "arith.constant":
            attribute = op.attributes["value"]
            return self.constant(attribute.value) if isinstance(attribute, ir.IntegerAttr) else None
        if not _is_arithmetic(op):
            return None
        operands = [self._known[v] for v in op.operands]
        known = [o for o in operands if o is not None]
        if len(known) < len(operands):
            return None
        if op.name in _BINARY:
            return _BINARY[op.name](*known)
        if op.name in _DIVISION:
            return None if (known[1] == 0).any() else _DIVISION[op.name](*known)
        return known[0] if op.name in _CASTS else self._affine(op, known)

    def _affine(self, op: ir.Operation, operands: list[Array]) -> Array | None:
        if op.name not in ("affine.apply", "affine.min", "affine.max"):
            return None
        map_ = ir.AffineMapAttr(op.attributes["map"]).value
        results = [self._expression(e, operands[: map_.n_dims], operands[map_.n_dims :]) for e in map_.results]
        reduce = np.maximum if op.name == "affine.max" else np.minimum
        total = results[0]
        for result in results[1:]:
            total = reduce(total, result)
        return total

    def _expression(self, expr: ir.AffineExpr, dims: list[Array], symbols: list[Array]) -> Array:
        if isinstance(expr, ir.AffineConstantExpr):
            return self.constant(expr.value)
        if isinstance(expr, ir.AffineDimExpr):
            return dims[expr.position]
        if isinstance(expr, ir.AffineSymbolExpr):
            return symbols[expr.position]
        a, b = (self._expression(e, dims, symbols) for e in (expr.lhs, expr.rhs))
        if isinstance(expr, ir.AffineAddExpr):
            return a + b
        if isinstance(expr, ir.AffineMulExpr):
            return a * b
        if isinstance(expr, ir.AffineModExpr):
            return a % b
        return _ceiling(a, b) if isinstance(expr, ir.AffineCeilDivExpr) else a // b


@dataclass(frozen=True)
class Points:
    """One tile for each value of the `used` coordinates of a grid (the others are 0): all that some arrays can tell apart."""

    extents: tuple[int, ...]
    used: tuple[bool, ...]

    @staticmethod
    def telling(extents: tuple[int, ...], arrays: Iterable[Array]) -> Points:
        """The fewest points that show all values which `arrays` take together."""
        used = [False] * len(extents)
        for array in arrays:
            used = [u or n > 1 for u, n in zip(used, array.shape, strict=True)]
        return Points(extents, tuple(used))

    @staticmethod
    def every(extents: tuple[int, ...]) -> Points:
        """All tiles."""
        return Points(extents, (True,) * len(extents))

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the used coordinates, 1 for the others."""
        return tuple(e if u else 1 for e, u in zip(self.extents, self.used, strict=True))

    @property
    def count(self) -> int:
        """How many points there are."""
        return int(np.prod(self.shape))

    @property
    def repeats(self) -> int:
        """How many tiles each point stands for."""
        return int(np.prod(self.extents)) // self.count

    def take(self, array: Array) -> Array:
        """The values of `array` (which uses no other coordinates), one a point, in row-major order."""
        return np.broadcast_to(array, self.shape).ravel()

    def index_in(self, coarser: Points) -> Array:
        """For each point the number of its point in `coarser`, which uses a part of the coordinates."""
        return self.take(np.arange(coarser.count).reshape(coarser.shape))

    def tile(self, point: int) -> tuple[int, ...]:
        """The coordinates of a point."""
        return tuple(int(c) for c in np.unravel_index(point, self.shape))
