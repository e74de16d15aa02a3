"""A model of layers that become one chain."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["Layers"]


class Layers(nn.Module):
    """`count` linear layers of one width, each with a ReLU."""

    def __init__(self, count: int, width: int = 64):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x
