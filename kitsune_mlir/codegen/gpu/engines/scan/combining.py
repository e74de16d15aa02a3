"""How a scan combines two elements: by a reduction that the hardware has, or by the operation's own body."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.contraction.scalar_body import emit_body
from kitsune_mlir.codegen.gpu.emit.operation import create
from kitsune_mlir.codegen.gpu.emit.reduce import combine, identity, tree
from kitsune_mlir.codegen.gpu.emit.value import Value
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.dialects.attribute_table import NEUTRAL

__all__ = ["Combining", "combining", "neutral"]


@dataclasses.dataclass(frozen=True)
class Combining:
    """An associative operation on numbers.

    Attributes:
        two: (an element or several, what comes after) -> both. neutral: what changes nothing. type: of numbers.
    """

    two: Callable[[Value, Value], Value]
    neutral: Value
    type: ir.Type

    def __call__(self, before: Value, after: Value) -> Value:
        """Both combined."""
        return self.two(before, after)

    def all(self, values: Sequence[Value]) -> Value:
        """All of them, in their order, as a tree."""
        return tree(self.two, values)


def neutral(op: ir.Operation, kind: str | None, type: ir.Type) -> Value:
    """The number that changes nothing; as `combining`."""
    if kind is not None:
        return identity(kind, type)
    return create("arith.constant", [], [type], {"value": op.attributes[NEUTRAL]})[0]


def combining(op: ir.Operation, kind: str | None, type: ir.Type, tile: TileContext) -> Combining:
    """Emits the neutral number.

    Args:
        op: a scan. kind: of `emit.reduce`; None: as the body of the scan says, with its `NEUTRAL`. type: of its elements.
    """

    def two(a: Value, b: Value) -> Value:
        return combine(kind, a, b) if kind is not None else emit_body(op, [a, b], tile, _nowhere)[0]

    return Combining(two, neutral(op, kind, type), type)


def _nowhere(loop: int) -> Value:
    raise ValueError(f"a scan's body asks where it is along loop {loop}")
