"""A radiance field as it is trained: an analytic scene, rays through it, and a network that learns what they see.

Points lie in the cube from -1 to 1. Colours are from 0 to 1, densities are per unit of length.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.modules import NeRF

__all__ = ["NEAR", "FAR", "RadianceField", "camera", "composite", "scene", "seen"]

NEAR, FAR = 1.0, 4.0
"""Where along a ray there may be something."""
BALLS = ((-0.45, -0.25, 0.1, 0.40), (0.40, -0.30, -0.20, 0.35), (0.05, 0.45, 0.05, 0.30))
"""Centres and radii."""
COLOURS = ((0.9, 0.25, 0.2), (0.2, 0.55, 0.9), (0.95, 0.8, 0.25))


def scene(points: Tensor) -> tuple[Tensor, Tensor]:
    """Colours [..., 3] and densities [...] of three striped balls at points [..., 3]."""
    balls = torch.tensor(BALLS, dtype=points.dtype, device=points.device)
    colours = torch.tensor(COLOURS, dtype=points.dtype, device=points.device)
    inside = balls[:, 3] - (points[..., None, :] - balls[:, :3]).norm(dim=-1)
    densities = 25 * torch.sigmoid(30 * inside)
    stripes = 0.75 + 0.25 * torch.sin(9 * points[..., 1:2])
    mixed = (densities @ colours) / densities.sum(-1, keepdim=True).clamp_min(1e-6)
    return mixed * stripes, densities.sum(-1)


def composite(colours: Tensor, densities: Tensor, step: float) -> Tensor:
    """What rays see of samples that lie `step` apart, in front of white: [rays, samples, 3], [rays, samples] -> [rays, 3]."""
    depth = densities * step
    before = torch.cumsum(depth, 1) - depth
    weights = torch.exp(-before) * (1 - torch.exp(-depth))
    return (weights[..., None] * colours).sum(1) + (1 - weights.sum(1, keepdim=True))


def camera(angle: float, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Origins and directions [size * size, 3] of a picture's rays, row by row from above; the camera looks at the middle.

    Args:
        angle: of the camera on its circle, in radians.
    """
    position = torch.tensor([2.2 * math.sin(angle), 0.8, 2.2 * math.cos(angle)], device=device)
    forward = -F.normalize(position, dim=0)
    right = F.normalize(torch.linalg.cross(forward, torch.tensor([0.0, 1.0, 0.0], device=device)), dim=0)
    up = torch.linalg.cross(right, forward)
    at = (torch.arange(size, device=device) + 0.5) / size * 2 - 1
    down, across = torch.meshgrid(at, at, indexing="ij")
    directions = F.normalize(forward + 0.5 * (across[..., None] * right - down[..., None] * up), dim=-1).reshape(-1, 3)
    return position.expand_as(directions), directions


def seen(origins: Tensor, directions: Tensor, samples: int = 128) -> Tensor:
    """Colours [rays, 3] that rays see of the scene itself."""
    step = (FAR - NEAR) / samples
    at = NEAR + (torch.arange(samples, device=origins.device) + 0.5) * step
    return composite(*scene(origins[:, None] + at[:, None] * directions[:, None]), step)


def _waves(x: Tensor, octaves: int) -> Tensor:
    """A position and its sines and cosines: [..., 3] -> [..., 3 + 6 octaves]."""
    angles = torch.cat([x * (math.pi * 2**n / 2) for n in range(octaves)], -1)
    return torch.cat([x, torch.sin(angles), torch.cos(angles)], -1)


class RadianceField(nn.Module):
    """NeRF's network with what is around it: waves of positions and directions in front, compositing behind.

    Args:
        width: of its layers.
        samples: points on a ray.
        octaves: of positions; directions have two.
    """

    def __init__(self, width: int, samples: int, octaves: int):
        super().__init__()
        self.field = NeRF(3 + 6 * octaves, 15, width)
        self.samples, self.octaves = samples, octaves
        for layer in [m for m in self.modules() if isinstance(m, nn.Linear)]:
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)

    def forward(self, origins: Tensor, directions: Tensor, shifts: Tensor) -> Tensor:
        """Colours of rays.

        Args:
            origins, directions: [rays, 3].
            shifts: [rays, samples], from 0 to 1: where in its interval each sample lies.
        """
        step = (FAR - NEAR) / self.samples
        at = NEAR + (torch.arange(self.samples, device=shifts.device) + shifts) * step
        points = (origins[:, None] + at[..., None] * directions[:, None]).flatten(0, 1)
        views = directions[:, None].expand(-1, self.samples, -1).flatten(0, 1)
        colours, densities = self.field(_waves(points, self.octaves), _waves(views, 2))
        colours = torch.sigmoid(colours).unflatten(0, shifts.shape)
        return composite(colours, F.softplus(densities - 1).reshape(shifts.shape), step)
