"""Radiance fields and what else works on rows of points: published widths, sines, radial bases, hash grids."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.modules import mlp

__all__ = ["HashGridField", "PointNet", "RadialBasis", "Siren", "SwiGLURows"]


class Siren(nn.Module):
    """Sines between layers (Sitzmann et al., arXiv 2006.09661)."""

    def __init__(self, fan_in: int, width: int, depth: int, out: int):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(fan_in if i == 0 else width, width) for i in range(depth))
        self.last = nn.Linear(width, out)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.sin(30.0 * layer(x))
        return self.last(x)


class RadialBasis(nn.Module):
    """Distances to centres as features of a small network."""

    def __init__(self, size: int, centres: int, width: int):
        super().__init__()
        self.centres = nn.Parameter(torch.randn(centres, size))
        self.head = mlp(centres, width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.exp(-((x[:, None] - self.centres) ** 2).sum(-1)))


class HashGridField(nn.Module):
    """A field over a multiresolution hash table (Müller et al., arXiv 2201.05989), its corners looked up without blending."""

    def __init__(self, levels: int, entries: int, features: int, width: int):
        super().__init__()
        self.tables = nn.ParameterList(nn.Parameter(torch.randn(entries, features)) for _ in range(levels))
        self.entries = entries
        self.head = mlp(levels * features, width, width, 4)

    def forward(self, points: Tensor) -> Tensor:
        """points: [n, 3] in [0, 1], f32."""
        found = []
        for level, table in enumerate(self.tables):
            cell = (points * (16 * 2**level)).to(torch.int64)
            index = (cell[:, 0] ^ (cell[:, 1] * 2654435761) ^ (cell[:, 2] * 805459861)) % self.entries
            found.append(table[index])
        return self.head(torch.cat(found, -1))


class PointNet(nn.Module):
    """Layers on points, the largest value over each cloud, layers on clouds (Qi et al., arXiv 1612.00593)."""

    def __init__(self) -> None:
        super().__init__()
        self.points, self.clouds = mlp(3, 64, 64, 128, 1024), mlp(1024, 512, 256, 40)

    def forward(self, x: Tensor) -> Tensor:
        """x: [clouds, points, 3]."""
        return self.clouds(self.points(x).amax(1))


class SwiGLURows(nn.Module):
    """Gated layers of odd widths with a norm in front of each."""

    def __init__(self, width: int, hidden: int, depth: int):
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(depth))
        self.gates = nn.ModuleList(nn.Linear(width, hidden) for _ in range(depth))
        self.ups = nn.ModuleList(nn.Linear(width, hidden) for _ in range(depth))
        self.downs = nn.ModuleList(nn.Linear(hidden, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for norm, gate, up, down in zip(self.norms, self.gates, self.ups, self.downs, strict=True):
            h = norm(x)
            x = x + down(F.silu(gate(h)) * up(h))
        return x
