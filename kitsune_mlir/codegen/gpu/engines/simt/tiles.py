"""Which stages the `simt` engine takes, and their tiles."""

import math

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.simt.fill_idle import tile_for_idle
from kitsune_mlir.codegen.gpu.engines.simt.stage_rows import sums_other_rows
from kitsune_mlir.codegen.gpu.interface.memory_tiles import memory_tile
from kitsune_mlir.codegen.gpu.interface.offer import Candidate, Offer
from kitsune_mlir.codegen.gpu.interface.plan import Decline
from kitsune_mlir.codegen.gpu.interface.tiny_products import is_tiny
from kitsune_mlir.dialects.access import access_of, iterator_kinds
from kitsune_mlir.dialects.products import is_projected_product
from kitsune_mlir.dialects.stage_graph import yielded
from kitsune_mlir.machine.target import Target

__all__ = ["offer"]

WINDOW_TERMS = 64
"""Of a convolution's sum, up to which a thread makes it alone."""


def offer(name: str, candidate: Candidate, machine: Target) -> Offer | Decline:
    """A stage without products, or with sums that a thread makes alone: of vectors, short windows, tiny matrices."""
    space, products = candidate.space, candidate.products
    if candidate.contractions and (reason := candidate.several_passes) is not None:
        return Decline(name, reason)
    if not all(is_tiny(op) or _is_short_window(op) for op in products):
        return Decline(name, "it holds a product for tensor cores")
    if candidate.opaque(pads=not products):
        return Decline(name, "it holds an operation that is no loop nest")
    if (reason := sums_other_rows(space, candidate.stage and yielded(candidate.stage))) is not None:
        return Decline(name, reason)
    tile = memory_tile(candidate, machine)
    if candidate.stage is not None:
        tile = tile_for_idle(candidate.stage, space, tile, candidate.before, machine) or tile
    return Offer(name, tuple(tile))


def _is_short_window(op: ir.Operation) -> bool:
    """Whether a contraction slides over its input and sums so few terms that a thread makes a result alone (depthwise, ...)."""
    access = access_of(op)
    if access is None or is_projected_product(op):
        return False
    kinds = iterator_kinds(op)
    return math.prod(size for size, kind in zip(access.sizes, kinds, strict=True) if kind == "reduction") <= WINDOW_TERMS
