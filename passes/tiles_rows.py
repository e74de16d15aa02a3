"""When layers are done in tiles of a few rows instead of a chain's: where that is faster, all weights for each tile."""

from kitsune_mlir.dialects.iteration import Space
from kitsune_mlir.target import Target

from .gpu_chains import FEW_ROWS, chain_seconds, few_rows_reason, few_rows_seconds, layers_of

__all__ = ["few_rows_tile"]


def few_rows_tile(space: Space, target: Target) -> list[int] | None:
    """The tile of a chain that the `rows` engine does faster; None for any other stage."""
    layers = layers_of(space)
    if isinstance(layers, str) or len(layers) < 2 or few_rows_reason(layers) is not None:
        return None
    if few_rows_seconds(layers, target) >= chain_seconds(layers, target):
        return None
    return [min(layers[0].rows, FEW_ROWS)]
