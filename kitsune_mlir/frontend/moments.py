"""Mean and sum of centred squares of many numbers: of parts first, then of the parts together.

A sum of squares is of what differs from the mean, so that numbers are gone over twice. Where no multiprocessor keeps what one
result is made of, memory is read twice, and where there are few results, most multiprocessors wait for two hand-offs. Parts of
a few thousand numbers stay in registers between the two, and each is of a multiprocessor's own; what is left is a small sum
(Chan, Golub, LeVeque, Updating Formulae and a Pairwise Algorithm for Computing Sample Variances, 1979, equation 2.1): the
squares of all are those of each part, and of what the part's mean differs from the whole one, as often as it has elements.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kitsune_mlir.frontend.dtypes import widened

__all__ = ["centred_squares", "moments_by_parts"]

ENOUGH_RESULTS = 132
"""Results, or parts of some, that give all multiprocessors work."""

LONG_ROW, LEAST_PART = 16384, 2048
"""Numbers that lie one after the other: more than a block keeps in registers; of a part at least."""

FEWEST = 4
"""Parts: less are not worth a second sum."""


def centred_squares(x: Tensor, dims: list[int]) -> tuple[Tensor, Tensor]:
    """Mean of a wide tensor, and the sum of the squares of what differs from it, over `dims`, which both keep."""
    mean = x.mean(dims, keepdim=True)
    centred = x - mean
    return mean, (centred * centred).sum(dims, keepdim=True)


def moments_by_parts(x: Tensor, dims: list[int]) -> tuple[Tensor, Tensor] | None:
    """The same of a tensor of any type, by parts; None where these would not be faster.

    Args:
        dims: those that should be cut come first.
    """
    cut = _cut(x.shape, dims)
    if cut is None:
        return None
    dim, parts = cut
    part_dims = [d + (d >= dim) for d in dims]
    mean, squares = centred_squares(widened(x.unflatten(dim, (parts, -1))), part_dims)
    mean, squares = mean.squeeze(dim + 1), squares.squeeze(dim + 1)
    whole, apart = centred_squares(mean, [dim])
    size = math.prod(x.shape[d] for d in dims) // parts
    return whole, squares.sum([dim], keepdim=True) + size * apart


def _cut(shape: torch.Size, dims: list[int]) -> tuple[int, int] | None:
    """The first dimension that can be cut, and into how many parts."""
    count = math.prod(shape[d] for d in dims)
    results = math.prod(shape) // max(count, 1)
    moving = [d for d, extent in enumerate(shape) if extent > 1]
    # What lies apart is gone over twice by blocks that have several results side by side: parts of it were no faster.
    if count < LONG_ROW or results >= ENOUGH_RESULTS or moving[-1] not in dims:
        return None
    for dim in dims:
        sizes = [parts for parts in range(FEWEST, shape[dim] + 1) if shape[dim] % parts == 0 and count // parts >= LEAST_PART]
        enough = [parts for parts in sizes if parts * results >= ENOUGH_RESULTS and count // parts <= LONG_ROW]
        if sizes:
            return dim, min(enough, default=max(sizes))
    return None
