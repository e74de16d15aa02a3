"""What the host's code generator offers: it takes every stage, as loop nests; here are their tiles."""

from __future__ import annotations

from typing import ClassVar

from kitsune_mlir.codegen.gpu.interface.offer import Candidate, Offer
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions
from kitsune_mlir.codegen.gpu.interface.traits import Traits
from kitsune_mlir.codegen.tile_sizes import contiguous, even, spread
from kitsune_mlir.dialects.iteration import inner_elements
from kitsune_mlir.machine.target import Target

__all__ = ["LoopNests"]

TILE_ELEMENTS = 16384
"""64 KiB of f32: a tile and its neighbours stay in a core's second-level cache."""
MOST = {"m": 64, "n": 256, "batch": 1}
"""Of a product's tile, by what a dimension is to it."""
LEAST = {"m": 16, "n": 64, "batch": 1}


class LoopNests:
    """The host's one engine, by the contract of `codegen/gpu/interface/engine.py`: it declines nothing."""

    name: ClassVar[str] = "host"
    traits: ClassVar[Traits] = Traits(several_products=True)

    def offer(self, candidate: Candidate, machine: Target, options: KernelOptions) -> Offer | Decline:
        """Tiles that stay close to a core, and enough of them for all cores."""
        space = candidate.space
        sizes = [d.size for d in space.dims]
        if candidate.products and sizes:
            roles = candidate.roles(candidate.products[0])
            tile = [min(size, MOST[role]) for size, role in zip(sizes, roles, strict=True)]
            least = [min(LEAST[role], size) for role, size in zip(roles, tile, strict=True)]
            return Offer(self.name, tuple(even(sizes, spread(sizes, tile, 4 * machine.workers, least))))
        inner = inner_elements(space)
        lines = len(sizes) > 1 or inner == 1
        return Offer(self.name, tuple(contiguous(sizes, TILE_ELEMENTS // inner, 2 * machine.workers, lines)))
