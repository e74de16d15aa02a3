"""What the host's code generator offers: it takes every stage, as loop nests, in tiles; and which ops stay apart."""

from __future__ import annotations

import math
from typing import ClassVar

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.interface.offer import Candidate, Offer
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions
from kitsune_mlir.codegen.gpu.interface.traits import Traits
from kitsune_mlir.codegen.tile_sizes import contiguous, even, fit, spread
from kitsune_mlir.dialects.contraction import contraction_dims
from kitsune_mlir.dialects.iteration import inner_elements
from kitsune_mlir.dialects.products import is_projected_product
from kitsune_mlir.dialects.sizes import tensor_bytes
from kitsune_mlir.machine.target import Target

__all__ = ["LoopNests"]

TILE_ELEMENTS = 16384
"""64 KiB of f32: a tile and its neighbours stay in a core's second-level cache."""
MOST = {"m": 64, "n": 256, "batch": 1}
"""Of a product's tile, by what a dimension is to it."""
CHANNELS = 64
"""Most of a convolution's tile."""
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
        images = [op for op in candidate.products if not is_projected_product(op)]
        if candidate.stage is None and candidate.several_passes is not None:
            if images:
                return Decline(self.name, "a convolution's tiles would be whole images")
            weights = _read_whole(candidate)
            if weights > machine.fast_bytes:
                reason = f"each tile of rows would read {weights} bytes of weights, {machine.fast_bytes} stay close to a core"
                return Decline(self.name, reason)
        sizes = [d.size for d in space.dims]
        if images and sizes:
            return Offer(self.name, tuple(_image_tile(candidate, images[0], machine)))
        if candidate.products and sizes:
            roles = candidate.roles(candidate.products[0])
            tile = [min(size, MOST[role]) for size, role in zip(sizes, roles, strict=True)]
            least = [min(LEAST[role], size) for role, size in zip(roles, tile, strict=True)]
            return Offer(self.name, tuple(even(sizes, spread(sizes, tile, 4 * machine.workers, least))))
        inner = inner_elements(space)
        lines = len(sizes) > 1 or inner == 1
        return Offer(self.name, tuple(contiguous(sizes, TILE_ELEMENTS // inner, 2 * machine.workers, lines)))


def _image_tile(candidate: Candidate, op: ir.Operation, machine: Target) -> list[int]:
    """Rows of pixels, and channels where each is a sum over others: so many that what is packed for them serves often."""
    number, dims = candidate.space.ops.index(op), contraction_dims(op)
    sizes = [d.size for d in candidate.space.dims]
    roles = [dims.role(d.loops[number]) if number in d.loops else "batch" for d in candidate.space.dims]
    channels = [i for i, role in enumerate(roles) if role in ("m", "n")]
    if not channels:
        return contiguous(sizes, TILE_ELEMENTS, 4 * machine.workers)
    pixels = [i for i, role in enumerate(roles) if role is None]
    tile = [1] * len(sizes)
    for i in channels:
        tile[i] = min(sizes[i], CHANNELS)
    made = math.prod(tile)
    for i, size in zip(pixels, fit([sizes[i] for i in pixels], TILE_ELEMENTS // made), strict=True):
        tile[i] = size
    least = [min(size, LEAST["m"]) for size in tile]
    for i in pixels:
        least[i] = min(tile[i], max(1, LEAST["n"] // math.prod(tile[j] for j in pixels if j > i)))
    return even(sizes, spread(sizes, tile, 4 * machine.workers, least), unit=1)


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
