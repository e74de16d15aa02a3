"""Gradients of images and volumes that are read at points of a grid, between their elements."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.frontend.dtypes import widened
from kitsune_mlir.frontend.grids import CUBIC, NEAREST, Taps, taps_of

__all__ = ["GRID_GRADIENTS"]

aten = torch.ops.aten


def _backward(
    grad: Tensor, x: Tensor, grid: Tensor, mode: int, padding: int, aligned: bool, output_mask: Sequence[bool]
) -> Any:
    """x [N, C, *extents], grid [N, *points, rank], grad [N, C, *points]; output_mask: of the input, of the grid."""
    rank, batch, channels = x.ndim - 2, x.shape[0], x.shape[1]
    if not x.dtype.is_floating_point or 0 in (*x.shape, *grid.shape) or (mode == CUBIC and rank != 2):
        return NotImplemented
    rows = widened(grad).reshape(batch, channels, -1).transpose(1, 2)  # [N, points, C]
    count = rows.shape[1]
    extents = list(x.shape[2:])
    each = taps_of(widened(grid).reshape(batch, count, rank), extents, mode, padding, aligned)
    corners = [_Corner.of(taps, extents) for taps in itertools.product(*each)]
    first = torch.arange(batch, device=x.device).reshape(-1, 1) * math.prod(extents)
    places = torch.stack([corner.place + first for corner in corners])  # [corners, N, points]
    inside = torch.stack([corner.inside for corner in corners])
    of_input = of_grid = None
    if output_mask[0]:
        weights = torch.stack([corner.weight for corner in corners])
        sources = torch.where(inside.unsqueeze(-1), rows * weights.unsqueeze(-1), 0.0)
        into = torch.zeros([batch * math.prod(extents), channels], dtype=rows.dtype, device=x.device)
        into = into.index_add(0, places.reshape(-1), sources.reshape(-1, channels))
        of_input = into.reshape(batch, *extents, channels).movedim(-1, 1).to(x.dtype)
    if output_mask[1] and mode == NEAREST:
        of_grid = torch.zeros_like(grid)
    elif output_mask[1]:
        read = widened(x).movedim(1, -1).reshape(-1, channels)[places]  # [corners, N, points, C]
        dots = torch.where(inside, (read * rows).sum(-1), 0.0)
        slopes = [torch.stack([corner.slope(dim) for corner in corners]) for dim in range(rank)]
        along = [(dots * slope).sum(0) for slope in slopes]
        # The last of a grid's numbers is along the first dimension of an image.
        of_grid = torch.stack(along[::-1], -1).reshape(grid.shape).to(grid.dtype)
    return of_input, of_grid


@dataclasses.dataclass(frozen=True)
class _Corner:
    """One of the elements that a point lies between, for all points: its number, whether there is one, and its weights."""

    place: Tensor
    inside: Tensor
    taps: Sequence[Taps]

    @classmethod
    def of(cls, taps: Sequence[Taps], extents: Sequence[int]) -> _Corner:
        place, inside = taps[0].element, taps[0].inside
        for tap, extent in zip(taps[1:], extents[1:], strict=True):
            place, inside = place * extent + tap.element, inside & tap.inside
        return cls(place, inside, taps)

    @property
    def weight(self) -> Tensor:
        return math.prod((tap.weight for tap in self.taps[1:]), start=self.taps[0].weight)  # pyright: ignore

    def slope(self, dim: int) -> Tensor:
        """How the weight changes with the grid's number along a dimension."""
        total = self.taps[dim].slope
        for number, tap in enumerate(self.taps):
            total = total if number == dim else total * tap.weight
        return total


GRID_GRADIENTS: dict[Any, Any] = {
    aten.grid_sampler_2d_backward.default: _backward,
    aten.grid_sampler_3d_backward.default: _backward,
}
"""Operator → decomposition."""
