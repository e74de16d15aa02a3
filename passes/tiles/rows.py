"""When layers are done in tiles of a few rows instead of a chain's: where that is faster, all weights for each tile."""

from kitsune_mlir.dialects.access import iterator_kinds
from kitsune_mlir.dialects.iteration import Space
from kitsune_mlir.dialects.products import is_contraction, is_generic
from kitsune_mlir.machine.target import Target
from kitsune_mlir.passes.stages.gemm_chains import FEW_ROWS, chain_seconds, few_rows_reason, few_rows_seconds, layers_of

__all__ = ["few_rows_tile"]

CLEARLY = 0.5
"""Of a chain's time that it must stay below: of equal predictions (512, 256, 1; 2,048 rows) it took 6.2 us, the chain 4.9."""


def few_rows_tile(space: Space, target: Target) -> list[int] | None:
    """The tile of a chain that the `rows` engine does faster; None for any other stage."""
    layers = layers_of(space)
    if isinstance(layers, str) or len(layers) < 2 or few_rows_reason(layers) is not None or _needs_whole_rows(space):
        return None
    if few_rows_seconds(layers, target) >= CLEARLY * chain_seconds(layers, target):
        return None
    return [min(layers[0].rows, FEW_ROWS)]


def _needs_whole_rows(space: Space) -> bool:
    """Whether rows are reduced, joined or added: the engine's warps have some columns each."""
    others = [op for op in space.ops if not is_contraction(op)]
    return any(
        "reduction" in iterator_kinds(op) if is_generic(op) else op.name == "tensor.concat" or "scatter" in op.name
        for op in others
    )
