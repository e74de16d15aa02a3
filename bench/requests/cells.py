"""Networks of cells with branches whose graph is always the same: controls for windows, which find it anew in each call.

Cells of NASNet-A (arXiv 1707.07012), PNASNet-5 (arXiv 1712.00559), GoogLeNet (arXiv 1409.4842) and SqueezeNet (arXiv
1602.07360), stacked without what changes the image's size; weights are random.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["NASNET", "PNASNET", "CellNet", "Fire", "Inception", "Stacked"]

Block = tuple[str, int, str, int]
"""A sum of two operations, each with the number of the value that it reads: 0 and 1 are a cell's inputs (the latest first), 2
and on the blocks before."""

NASNET: Sequence[Block] = (
    ("separable 3", 0, "same", 0),
    ("separable 3", 1, "separable 5", 0),
    ("average", 0, "same", 1),
    ("average", 1, "average", 1),
    ("separable 5", 1, "separable 3", 1),
)
PNASNET: Sequence[Block] = (
    ("separable 5", 1, "largest", 1),
    ("separable 7", 0, "largest", 0),
    ("separable 5", 0, "separable 3", 0),
    ("separable 3", 4, "largest", 0),
    ("separable 3", 1, "pointwise", 0),
)


def convolution(inputs: int, outputs: int, size: int = 1) -> nn.Sequential:
    """Convolution, normalisation, ReLU."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


def _separable(channels: int, size: int) -> nn.Sequential:
    """ReLU, a convolution of each channel, one across them, normalisation; twice."""
    once = [
        (
            nn.ReLU(),
            nn.Conv2d(channels, channels, size, padding=size // 2, groups=channels, bias=False),
            nn.Conv2d(channels, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
        )
        for _ in range(2)
    ]
    return nn.Sequential(*once[0], *once[1])


def _operation(name: str, channels: int) -> nn.Module:
    kind, _, size = name.partition(" ")
    if kind == "separable":
        return _separable(channels, int(size))
    if kind == "pointwise":
        return nn.Sequential(nn.ReLU(), nn.Conv2d(channels, channels, 1, bias=False), nn.BatchNorm2d(channels))
    return {
        "same": nn.Identity(),
        "average": nn.AvgPool2d(3, 1, 1, count_include_pad=False),
        "largest": nn.MaxPool2d(3, 1, 1),
    }[kind]


class Cell(nn.Module):
    """Two images to one: sums of operations, joined. `blocks` says which."""

    def __init__(self, channels: int, blocks: Sequence[Block]):
        super().__init__()
        self.reads = [(left, right) for _, left, _, right in blocks]
        self.left = nn.ModuleList(_operation(one[0], channels) for one in blocks)
        self.right = nn.ModuleList(_operation(one[2], channels) for one in blocks)
        self.join = nn.Sequential(nn.ReLU(), nn.Conv2d(len(blocks) * channels, channels, 1), nn.BatchNorm2d(channels))

    def forward(self, now: Tensor, before: Tensor) -> Tensor:
        """[batch, channels, height, width], all three."""
        values = [now, before]
        for left, right, (a, b) in zip(self.left, self.right, self.reads, strict=True):
            values.append(left(values[a]) + right(values[b]))
        return self.join(torch.cat(values[2:], 1))


class CellNet(nn.Module):
    """Cells, each of which reads the two before it."""

    def __init__(self, channels: int, cells: int, blocks: Sequence[Block]):
        super().__init__()
        self.stem = convolution(3, channels, 3)
        self.cells = nn.ModuleList(Cell(channels, blocks) for _ in range(cells))

    def forward(self, image: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
        """[1, 3, height, width] to [1, channels]; the path is always the same."""
        before = now = self.stem(image)
        for cell in self.cells:
            before, now = now, cell(now, before)
        return now.mean((2, 3)), ()


class Inception(nn.Module):
    """GoogLeNet's module, of a quarter of the channels each."""

    def __init__(self, channels: int):
        super().__init__()
        part, less = channels // 4, max(1, channels // 8)
        self.paths = nn.ModuleList((
            convolution(channels, part),
            nn.Sequential(convolution(channels, less), convolution(less, part, 3)),
            nn.Sequential(convolution(channels, less), convolution(less, part, 5)),
            nn.Sequential(nn.MaxPool2d(3, 1, 1), convolution(channels, part)),
        ))  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """[batch, channels, height, width] to the same."""
        return torch.cat([path(x) for path in self.paths], 1)


class Fire(nn.Module):
    """SqueezeNet's module."""

    def __init__(self, channels: int):
        super().__init__()
        less = max(1, channels // 8)
        self.squeeze = convolution(channels, less)
        self.one, self.three = convolution(less, channels // 2), convolution(less, channels // 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, channels, height, width] to the same."""
        x = self.squeeze(x)
        return torch.cat((self.one(x), self.three(x)), 1)


class Stacked(nn.Module):
    """Modules of one kind, one after the other."""

    def __init__(self, kind: type[Inception] | type[Fire], channels: int, count: int):
        super().__init__()
        self.stem = convolution(3, channels, 3)
        self.parts = nn.Sequential(*(kind(channels) for _ in range(count)))

    def forward(self, image: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
        """[1, 3, height, width] to [1, channels]; the path is always the same."""
        return self.parts(self.stem(image)).mean((2, 3)), ()
