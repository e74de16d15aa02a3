"""What an evaluation of tensors finds ready: windows of shared memory, and values that the block has made for all rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.simt_affine import Fold
from kitsune_mlir.codegen.gpu.simt_index import Index
from kitsune_mlir.codegen.gpu.simt_memory import CrossedWindow, SharedWindow
from kitsune_mlir.codegen.gpu.simt_scalar import Lanes
from kitsune_mlir.codegen.gpu.tasks import Store

__all__ = ["Coordinates", "Kept", "Windows"]

Coordinates = tuple[Index, ...]

Windows = Mapping[ir.Value | Store, SharedWindow | CrossedWindow]
"""Windows in shared memory: of loads by the tensor that is loaded, of stores by the store."""


@dataclasses.dataclass(frozen=True)
class Kept:
    """Values of bodies that the block has made for all rows (`simt_hoist`).

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
