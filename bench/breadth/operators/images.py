"""Operators on images, lines and volumes: pooling, resizing, sampling, convolutions."""

from __future__ import annotations

import torch.nn.functional as F
from torch import nn

from bench.breadth.operators.table import layers, table
from bench.case import BenchCase

__all__ = ["images"]

LINE, LINES = (2, 5, 27), (32, 64, 8192)
IMAGE, IMAGES = (2, 5, 13, 11), (32, 64, 112, 112)
VOLUME, VOLUMES = (1, 3, 5, 9, 7), (8, 16, 16, 64, 64)


def _pools() -> list[BenchCase]:
    lines = {
        "max_1d": lambda x: F.max_pool1d(x, 2),
        "avg_1d": lambda x: F.avg_pool1d(x, 3, 2, 1),
        "max_1d_overlapping": lambda x: F.max_pool1d(x, 5, 1, 2),
        "adaptive_1d": lambda x: F.adaptive_avg_pool1d(x, 8),
    }
    plane = {
        "max_2d": lambda x: F.max_pool2d(x, 2),
        "avg_2d": lambda x: F.avg_pool2d(x, 2),
        "max_overlapping": lambda x: F.max_pool2d(x, 3, 2, 1),
        "avg_overlapping": lambda x: F.avg_pool2d(x, 3, 1, 1),
        "max_13": lambda x: F.max_pool2d(x, 13, 1, 6) if x.shape[-1] > 20 else F.max_pool2d(x, 7, 1, 3),
        "max_dilated": lambda x: F.max_pool2d(x, 3, 1, 1, dilation=2),
        "global": lambda x: F.adaptive_avg_pool2d(x, 1),
        "adaptive_7": lambda x: F.adaptive_avg_pool2d(x, 7),
        "adaptive_max_5": lambda x: F.adaptive_max_pool2d(x, 5),
        "global_max": lambda x: x.amax((2, 3)),
        "lp": lambda x: F.lp_pool2d(x.abs() + 0.1, 2, 2),
        "max_indices": lambda x: F.max_pool2d(x, 2, return_indices=True),
    }
    volumes = {
        "max_3d": lambda x: F.max_pool3d(x, 2),
        "avg_3d": lambda x: F.avg_pool3d(x, 2),
        "max_3d_overlapping": lambda x: F.max_pool3d(x, 3, 1, 1),
        "adaptive_3d": lambda x: F.adaptive_avg_pool3d(x, 4),
    }
    return [*table("pool", lines, LINES, LINE), *table("pool", plane, IMAGES, IMAGE), *table("pool", volumes, VOLUMES, VOLUME)]


def _resizing() -> list[BenchCase]:
    def by(mode: str, factor: float, align: bool | None = None):
        return lambda x: F.interpolate(x, scale_factor=factor, mode=mode, align_corners=align)

    plane = {
        "nearest": by("nearest", 2),
        "nearest_half": by("nearest", 0.5),
        "nearest_odd": lambda x: F.interpolate(x, size=(37, 51)),
        "bilinear": by("bilinear", 2),
        "bilinear_aligned": by("bilinear", 2, True),
        "bilinear_half": by("bilinear", 0.5),
        "bicubic": by("bicubic", 2),
        "area": by("area", 0.5),
    }

    def grid(x, theta):
        return F.grid_sample(x, F.affine_grid(theta, list(x.shape), align_corners=False), align_corners=False)

    samples = {
        "bilinear": lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False),
        "nearest": lambda x, g: F.grid_sample(x, g.tanh(), mode="nearest", align_corners=False),
        "border": lambda x, g: F.grid_sample(x, g, padding_mode="border", align_corners=True),
    }
    return [
        *table("resize", {"linear": by("linear", 2), "nearest_1d": by("nearest", 2)}, LINES, LINE),
        *table("resize", plane, (16, 64, 64, 64), IMAGE),
        *table("resize", {"trilinear": by("trilinear", 2), "nearest_3d": by("nearest", 2)}, (4, 16, 16, 32, 32), VOLUME),
        *table("sample", samples, [(16, 32, 128, 128), (16, 128, 128, 2)], [IMAGE, (2, 7, 5, 2)]),
        *table("sample", {"affine": grid}, [(16, 32, 128, 128), (16, 2, 3)], [IMAGE, (2, 2, 3)]),
    ]


def _convolutions() -> list[BenchCase]:
    plane = {
        "3x3": lambda: nn.Conv2d(64, 64, 3, padding=1),
        "1x1": lambda: nn.Conv2d(64, 128, 1),
        "5x5": lambda: nn.Conv2d(64, 32, 5, padding=2),
        "stride": lambda: nn.Conv2d(64, 128, 3, 2, 1),
        "dilated": lambda: nn.Conv2d(64, 64, 3, padding=2, dilation=2),
        "grouped": lambda: nn.Conv2d(64, 64, 3, padding=1, groups=4),
        "depthwise": lambda: nn.Conv2d(64, 64, 3, padding=1, groups=64),
        "transposed": lambda: nn.ConvTranspose2d(64, 32, 4, 2, 1),
        "transposed_2": lambda: nn.ConvTranspose2d(64, 32, 2, 2),
    }
    lines = {
        "1d": lambda: nn.Conv1d(64, 64, 3, padding=1),
        "1d_stride": lambda: nn.Conv1d(64, 128, 4, 4),
        "1d_depthwise": lambda: nn.Conv1d(64, 64, 4, padding=3, groups=64),
        "1d_dilated": lambda: nn.Conv1d(64, 64, 3, padding=8, dilation=8),
        "1d_transposed": lambda: nn.ConvTranspose1d(64, 32, 4, 2, 1),
    }
    volumes = {"3d": lambda: nn.Conv3d(16, 32, 3, padding=1), "3d_transposed": lambda: nn.ConvTranspose3d(16, 8, 2, 2)}
    large = (16, 64, 56, 56)
    return [
        *layers("conv", plane, large, (1, 64, 9, 7)),
        *layers("conv_last", {n: plane[n] for n in ("3x3", "stride", "depthwise")}, large, (1, 64, 9, 7), last=True),
        *layers("conv", {"stem": lambda: nn.Conv2d(3, 64, 7, 2, 3)}, (16, 3, 224, 224), (1, 3, 33, 31)),
        *layers("conv", {"patches": lambda: nn.Conv2d(3, 384, 16, 16)}, (32, 3, 224, 224), (1, 3, 32, 48)),
        *layers("conv", lines, (16, 64, 4096), (1, 64, 28)),
        *layers("conv", volumes, (4, 16, 16, 32, 32), (1, 16, 3, 5, 7)),
    ]


def images() -> list[BenchCase]:
    """All of them."""
    return [*_pools(), *_resizing(), *_convolutions()]
