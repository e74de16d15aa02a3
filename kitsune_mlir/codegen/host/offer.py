"""What the host's code generator offers: it takes every stage, as loop nests, in tiles; and which ops stay apart."""

from __future__ import annotations

from typing import ClassVar

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.interface.offer import Candidate, Offer
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions
from kitsune_mlir.codegen.gpu.interface.traits import Traits
from kitsune_mlir.codegen.tile_sizes import contiguous, even, spread
from kitsune_mlir.dialects.iteration import inner_elements
from kitsune_mlir.dialects.sizes import tensor_bytes
from kitsune_mlir.machine.target import Target

__all__ = ["LoopNests"]

TILE_ELEMENTS = 16384
"""64 KiB of f32: a tile and its neighbours stay in a core's second-level cache."""
MOST = {"m": 64, "n": 256, "batch": 1}
"""Of a product's tile, by what a dimension is to it."""
LEAST = {"m": 16, "n": 64, "batch": 1}


class LoopNests:
    """The host's one engine, by the contract of `codegen/gpu/interface/engine.py`: it declines no stage, only to join ops."""

    name: ClassVar[str] = "host"
    traits: ClassVar[Traits] = Traits(several_products=True)

    def offer(self, candidate: Candidate, machine: Target, options: KernelOptions) -> Offer | Decline:
        """Tiles that stay close to a core, and enough of them for all cores.

        Tiles of whole rows read all weights. Where these do not stay close to a core either, products that are stages of their
        own read less: their tiles are cut along the columns too.
        """
        space = candidate.space
        if candidate.stage is None and candidate.several_passes is not None:
            weights = _read_whole(candidate)
            if weights > machine.fast_bytes:
                reason = f"each tile of rows would read {weights} bytes of weights, {machine.fast_bytes} stay close to a core"
                return Decline(self.name, reason)
        sizes = [d.size for d in space.dims]
        if candidate.products and sizes:
            roles = candidate.roles(candidate.products[0])
            tile = [min(size, MOST[role]) for size, role in zip(sizes, roles, strict=True)]
            least = [min(LEAST[role], size) for role, size in zip(roles, tile, strict=True)]
            return Offer(self.name, tuple(even(sizes, spread(sizes, tile, 4 * machine.workers, least))))
        inner = inner_elements(space)
        lines = len(sizes) > 1 or inner == 1
        return Offer(self.name, tuple(contiguous(sizes, TILE_ELEMENTS // inner, 2 * machine.workers, lines)))


def _read_whole(candidate: Candidate) -> int:
    """Bytes of the products' factors that every tile reads, whichever rows are its own."""
    space, found = candidate.space, dict[ir.Value, int]()
    for op in candidate.contractions:
        number = space.ops.index(op)
        access = space.accesses[number]
        for value, alongs in zip(list(op.operands)[:2], access.operands if access else (), strict=False):
            if all(shared is None for shared, _ in space.along(number, alongs)):
                found[value] = tensor_bytes(value.type)
    return sum(found.values())
