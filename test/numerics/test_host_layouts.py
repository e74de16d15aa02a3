"""The host's convolutions along channels, packed panels in parts, and permutations in squares, against float64."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import kitsune_mlir

LAYERS = {
    "channels_17": (nn.Conv2d(19, 17, 3, padding=1), (1, 19, 9, 7)),
    "stride_2": (nn.Conv2d(5, 33, 3, 2, padding=1), (3, 5, 15, 13)),
    "wide_kernel": (nn.Conv2d(3, 64, 7, 2, padding=3), (1, 3, 31, 29)),
    "long_sums": (nn.Conv2d(129, 48, 3), (2, 129, 6, 5)),  # more terms than a panel holds
    "groups": (nn.Conv2d(32, 64, 3, padding=1, groups=2), (1, 32, 8, 11)),
    "dilated": (nn.Conv2d(8, 24, 3, dilation=2), (1, 8, 12, 10)),
    "one_pixel_wide": (nn.Conv2d(32, 48, 1, 2), (1, 32, 9, 2)),
    "line": (nn.Conv1d(7, 40, 5), (2, 7, 65)),
    "volume": (nn.Conv3d(4, 16, 3, padding=1), (1, 4, 5, 6, 7)),
    "back_up": (nn.ConvTranspose2d(16, 24, 4, 2, 1), (1, 16, 5, 7)),
    "deep_product": (nn.Linear(1000, 129), (33, 1000)),
}


def _error(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want).norm() / want.norm())


@pytest.mark.rotated(4)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, torch.float32) for name in LAYERS] + [(n, torch.bfloat16) for n in ("channels_17", "long_sums", "deep_product")],
)
def test_sums_along_channels(name: str, dtype: torch.dtype) -> None:
    layer, shape = LAYERS[name]
    model = nn.Sequential(copy.deepcopy(layer), nn.ReLU()).to(dtype).requires_grad_(False)
    x = torch.randn(shape).to(dtype)
    want = copy.deepcopy(model).double()(x.double())
    program = kitsune_mlir.compile(model, (x,), target="host", options={"cache": False})
    assert _error(program(x), want) <= 2 * max(_error(model(x), want), 1e-7)


class Turned(nn.Module):
    """A permutation with arithmetic around it."""

    def __init__(self, order: tuple[int, ...]):
        super().__init__()
        self.order = order

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x.permute(self.order) * 2 + y


@pytest.mark.rotated(6)
@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((37, 53), (1, 0)),
        ((3, 20, 18, 5), (0, 3, 1, 2)),
        ((2, 7, 9, 40), (0, 3, 1, 2)),
        ((16, 4, 16), (2, 1, 0)),
        ((5, 129, 4), (0, 2, 1)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_permutations(shape: tuple[int, ...], order: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randint(-9, 9, shape).to(dtype)
    y = torch.randint(-9, 9, [shape[d] for d in order]).to(dtype)
    model = Turned(order)
    program = kitsune_mlir.compile(model, (x, y), target="host", options={"cache": False})
    assert torch.equal(program(x, y), model(x, y))
