"""What an evaluation of tensors finds ready: windows of shared memory, and values that the block has made for all rows."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.simt.affine_index import Index, Linear
from kitsune_mlir.codegen.gpu.engines.simt.column_affine import Fold
from kitsune_mlir.codegen.gpu.engines.simt.graph import Graph, Reduction
from kitsune_mlir.codegen.gpu.engines.simt.memory import CrossedWindow, SharedWindow
from kitsune_mlir.codegen.gpu.engines.simt.scalar_body import Lanes
from kitsune_mlir.dialects.deep import Steps
from kitsune_mlir.dialects.tile_records import Offset, Store

__all__ = ["Coordinates", "Kept", "PointEvaluator", "Windows"]

Coordinates = tuple[Index, ...]

Windows = Mapping[ir.Value | Store, SharedWindow | CrossedWindow]
"""Windows in shared memory: of loads by the tensor that is loaded, of stores by the store."""


@dataclasses.dataclass(frozen=True)
class Kept:
    """Values of bodies that the block has made for all rows (`simt.hoisted`).

    Attributes:
        windows: where they are in shared memory, by the value.
        index: coordinates there, of an operation's loop indices.
        folds: by the operation whose result it makes, an fma of a value of the body and two coefficients.
        coefficients: these two, at the coordinates.
        meet: emits the barrier after which they are there, before the first one is read; None: they are.
    """

    windows: Mapping[ir.Value, SharedWindow]
    index: Callable[[ir.Operation, Sequence[Index]], Coordinates]
    folds: Mapping[ir.Operation, Fold] = dataclasses.field(default_factory=dict)
    coefficients: Callable[[Fold, Coordinates], tuple[Lanes, Lanes]] | None = None
    meet: Callable[[], None] | None = None


class PointEvaluator(Protocol):
    """What movements of tensors and reductions of single threads ask of the evaluator that asks for them (`simt.evaluate`).

    Attributes:
        graph: the body.
        width: points of a vector.
    """

    graph: Graph
    width: int

    def tensor_steps(self, tensor: ir.Value, coordinates: Coordinates) -> Steps[Lanes]:
        """The elements of a tensor at coordinates."""
        ...

    def outer(self, offset: Offset) -> Linear:
        """An offset of a slice, as an index."""
        ...

    def splat(self, value: ir.Value) -> Lanes:
        """A value that is the same for all points."""
        ...

    def loops_of(self, op: ir.Operation, tensor: ir.Value, coordinates: Coordinates) -> list[Index]:
        """The loop indices of a generic at coordinates of its result."""
        ...

    def body(self, op: ir.Operation, loops: list[Index], wanted: Sequence[ir.Value]) -> list[Lanes]:
        """Values of a generic's body at loop indices."""
        ...

    def initial(self, op: ir.Operation, tensor: ir.Value, coordinates: Coordinates) -> Lanes:
        """What a reduction's result starts from."""
        ...

    def divided(self, reduction: Reduction, coordinates: Coordinates, values: Lanes) -> Lanes:
        """The result, where one of several blocks has the start."""
        ...

    def scope(self) -> contextlib.AbstractContextManager[None]:
        """Inside, what is computed is forgotten at the end."""
        ...
