"""Maxima of windows, and their places, where elements are no numbers or minus infinity: as PyTorch's kernels have them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import kitsune_mlir
from test.numerics.compare import problems
from test.numerics.gradients import HOST
from test.programs.compiled import planned_for_gpu

POOLS: dict[str, tuple[Callable[[Tensor], Any], tuple[int, ...]]] = {
    "lines": (lambda x: F.max_pool1d(x, 3, 2, 1, return_indices=True), (2, 3, 19)),
    "planes": (lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), (2, 3, 9, 7)),
    "gaps": (
        lambda x: F.max_pool2d(x, (3, 2), (1, 2), (1, 0), dilation=(2, 1), ceil_mode=True, return_indices=True),
        (2, 3, 9, 8),
    ),
    "wide": (lambda x: F.max_pool2d(x, 5, 1, 2, return_indices=True), (1, 3, 9, 8)),
    "volumes": (lambda x: F.max_pool3d(x, 3, 2, 1, return_indices=True), (1, 2, 5, 6, 7)),
    "adaptive lines": (lambda x: F.adaptive_max_pool1d(x, 3, True), (2, 3, 9)),
    "adaptive planes": (lambda x: F.adaptive_max_pool2d(x, (4, 3), True), (2, 3, 9, 8)),
    "adaptive volumes": (lambda x: F.adaptive_max_pool3d(x, (2, 4, 3), True), (1, 3, 5, 9, 8)),
    "adaptive, equal volumes": (lambda x: F.adaptive_max_pool3d(x, (2, 3, 2), True), (2, 4, 9, 8)),
}


def odd(shape: tuple[int, ...]) -> Tensor:
    """Random numbers, some nan and some infinite, and one channel of minus infinity."""
    x = torch.randn(shape)
    flat = x.view(-1)
    flat[1::17], flat[5::7], flat[3::11] = math.nan, -math.inf, math.inf
    channel = x[0] if x.ndim == 4 and shape[0] == 2 and shape[1] == 4 else x[:, 1]
    channel.fill_(-math.inf)
    return x


@pytest.mark.parametrize("planned", (False, True), ids=("host", "gpu"))
@pytest.mark.parametrize("name", POOLS)
def test_places_are_those_of_the_maxima(name: str, planned: bool) -> None:
    """Of several elements that are no number it may be another one; all others are PyTorch's."""
    pool, shape = POOLS[name]
    x = odd(shape)
    program = planned_for_gpu(pool, x) if planned else kitsune_mlir.compile(pool, (x,), target="host", options=HOST)
    (values, places), (wanted, own) = program(x), pool(x)
    assert torch.equal(values.nan_to_num(nan=7.5), wanted.nan_to_num(nan=7.5))
    nowhere = wanted.isnan()
    assert nowhere.any() and not nowhere.all()
    assert torch.equal(places[~nowhere], own[~nowhere])
    rank = {"lines": 1, "planes": 2, "gaps": 2, "wide": 2}.get(name.split()[-1], 3)
    there = x.flatten(-rank).gather(-1, places.flatten(-rank)).reshape(values.shape)
    assert torch.equal(there.isnan(), nowhere)


def test_gradients_of_masked_windows() -> None:
    """Windows of minus infinity give theirs to their first elements, none outside of the image."""

    def pooled(x: Tensor, mask: Tensor) -> Tensor:
        return F.max_pool2d(x.masked_fill(mask, -math.inf), 5, 1, 2, return_indices=True)[0]

    x, mask = torch.randn(2, 3, 9, 8), torch.zeros(2, 1, 9, 8, dtype=torch.bool)
    mask[1] = mask[0, :, :4] = True
    leaves = [x.clone().requires_grad_() for _ in range(2)]
    torch._dynamo.reset()
    outs = [f(leaf, mask) for f, leaf in zip((torch.compile(pooled, backend="kitsune"), pooled), leaves, strict=True)]
    given = torch.randn_like(outs[0])
    for out in outs:
        out.backward(given)
    found = problems((outs[0].detach(), leaves[0].grad), (outs[1].detach(), leaves[1].grad))
    assert not found, found
