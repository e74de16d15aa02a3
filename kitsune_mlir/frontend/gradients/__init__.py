"""Decompositions of the operators that gradients are made of, as AOTAutograd and `torch.export` leave them."""

from __future__ import annotations

from typing import Any

from kitsune_mlir.frontend.gradients.convolutions import CONVOLUTION_GRADIENTS
from kitsune_mlir.frontend.gradients.embedding_bags import BAG_GRADIENTS
from kitsune_mlir.frontend.gradients.grids import GRID_GRADIENTS
from kitsune_mlir.frontend.gradients.losses import LOSS_GRADIENTS
from kitsune_mlir.frontend.gradients.norms import NORM_GRADIENTS
from kitsune_mlir.frontend.gradients.padding import PADDING_GRADIENTS
from kitsune_mlir.frontend.gradients.pooling import POOLING_GRADIENTS
from kitsune_mlir.frontend.gradients.resizing import RESIZING_GRADIENTS
from kitsune_mlir.frontend.gradients.segments import SEGMENT_GRADIENTS

__all__ = ["GRADIENTS"]

GRADIENTS: dict[Any, Any] = {
    **CONVOLUTION_GRADIENTS,
    **POOLING_GRADIENTS,
    **PADDING_GRADIENTS,
    **RESIZING_GRADIENTS,
    **GRID_GRADIENTS,
    **BAG_GRADIENTS,
    **NORM_GRADIENTS,
    **LOSS_GRADIENTS,
    **SEGMENT_GRADIENTS,
}
"""Operator → decomposition; one that returns NotImplemented leaves the operator as it was."""
