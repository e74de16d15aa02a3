"""Resizing, padding, pooling and folding: one kernel or few, wide accesses, and right on emulated blocks.

Beside the shapes that they are measured at: odd extents, windows of all kinds, f32 and bf16.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from test.programs.emulated import compiled, emulated, engines
from test.rotation import in_turn


def resized(**how) -> Callable[[Tensor], Tensor]:
    return lambda x: F.interpolate(x, **how)


RESIZED: dict[str, tuple[Callable, tuple[int, ...]]] = {
    "nearest": (resized(scale_factor=2), (1, 2, 8, 16)),
    "nearest, odd": (resized(size=(7, 11)), (1, 2, 8, 16)),
    "nearest exact": (resized(size=(5, 6, 7), mode="nearest-exact"), (1, 2, 3, 4, 5)),
    "linear": (resized(scale_factor=2, mode="linear"), (2, 3, 27)),
    "bilinear": (resized(scale_factor=2, mode="bilinear"), (1, 2, 8, 16)),
    "bilinear, by 1.7": (resized(scale_factor=1.7, mode="bilinear"), (1, 2, 8, 16)),
    "bilinear, corners aligned": (resized(scale_factor=2, mode="bilinear", align_corners=True), (1, 2, 9, 7)),
    "bilinear, half": (resized(scale_factor=0.5, mode="bilinear"), (1, 2, 16, 32)),
    "trilinear": (resized(scale_factor=2, mode="trilinear"), (1, 1, 3, 4, 8)),
    "bicubic": (resized(scale_factor=2, mode="bicubic"), (1, 2, 4, 8)),
    "bicubic, smaller": (resized(size=(5, 3), mode="bicubic"), (1, 2, 9, 7)),
}
WINDOWS: dict[str, tuple[Callable, tuple[int, ...]]] = {
    "reflected": (lambda x: F.pad(x, (3, 1, 0, 2), mode="reflect"), (2, 3, 9, 7)),
    "replicated": (lambda x: F.pad(x, (1, 2, 3, 1), mode="replicate"), (2, 3, 9, 8)),
    "circular": (lambda x: F.pad(x, (2, 1, 0, 3), mode="circular"), (2, 3, 9, 8)),
    "rolled in two directions": (lambda x: x.roll((3, -5), (0, 1)), (40, 64)),
    "average of neighbours": (lambda x: F.avg_pool2d(x, 3, 1, 1), (2, 3, 13, 16)),
    "dilated": (lambda x: F.max_pool2d(x, 3, 1, 1, dilation=2), (2, 3, 16, 22)),
    "wide maximum": (lambda x: F.max_pool2d(x, 13, 1, 6), (1, 2, 16, 24)),
    "wide, apart": (lambda x: F.max_pool2d(x, 8), (1, 2, 16, 24)),
    "wide average": (lambda x: F.avg_pool2d(x, 5, 2, 2, count_include_pad=False), (1, 2, 16, 25)),
    "to a few": (lambda x: F.adaptive_avg_pool1d(x, 8), (2, 3, 1024)),
    "unequal": (lambda x: F.adaptive_avg_pool2d(x, 3), (1, 3, 13, 11)),
    "folded": (lambda x: F.fold(x, (8, 8), 3, padding=1), (2, 18, 64)),
    "folded apart": (lambda x: F.fold(x, (8, 6), 2, stride=2), (2, 12, 12)),
    "folded, strided": (lambda x: F.fold(x, (9, 10), (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)), (2, 12, 40)),
    "differences": (lambda x: x.diff(), (9, 33)),
}


@pytest.mark.parametrize(
    ("name", "dtype"), in_turn([*itertools.product([*RESIZED, *WINDOWS], [torch.float32, torch.bfloat16])], 4), ids=str
)
def test_right(name: str, dtype: torch.dtype) -> None:
    function, shape = {**RESIZED, **WINDOWS}[name]
    x = torch.randn(shape).to(dtype)
    exact, eager = function(x.double()), function(x)
    program = compiled(function, (x,))
    assert set(engines(program)) == {"simt"}
    (found,) = emulated(program, (x,), [eager])
    assert found.dtype == eager.dtype
    assert (found.double() - exact).abs().max() <= 2 * (eager.double() - exact).abs().max() + 1e-6


@pytest.mark.parametrize("name", in_turn([*RESIZED], 4))
def test_resized_in_one_stage(name: str) -> None:
    """Nothing is widened, and no table of places made, before."""
    function, shape = RESIZED[name]
    assert engines(compiled(function, (torch.randn(shape).bfloat16(),))) == ["simt"]


@pytest.mark.parametrize("function", [F.max_pool2d, F.avg_pool2d])
def test_special_numbers_in_wide_windows(function: Callable) -> None:
    x = torch.randn(1, 1, 16, 24)
    x[0, 0, 3, 5], x[0, 0, 12, 20] = float("nan"), float("-inf")

    def pooled(x: Tensor) -> Tensor:
        return function(x, 7, 1, 3)

    (found,) = emulated(compiled(pooled, (x,)), (x,), [pooled(x)])
    torch.testing.assert_close(found, pooled(x), equal_nan=True)


@pytest.mark.rotated(4)
@pytest.mark.parametrize(
    ("function", "shape", "width"),
    [
        (resized(scale_factor=2), (4, 16, 64, 64), 8),
        (resized(scale_factor=2, mode="bilinear"), (4, 16, 64, 64), 8),
        (resized(scale_factor=0.5, mode="bilinear"), (4, 16, 64, 64), 8),
        (lambda x: F.avg_pool2d(x, 3, 1, 1), (4, 16, 64, 64), 8),
        (lambda x: F.fold(x, (64, 64), 3, padding=1), (4, 144, 4096), 8),
        (lambda x: x.diff(), (256, 1025), 8),
        (lambda x: x.diff(), (256, 1024), 1),
    ],
    ids=["nearest", "bilinear", "bilinear, half", "average", "folded", "differences", "results at odd places"],
)
def test_wide_accesses(function: Callable, shape: tuple[int, ...], width: int) -> None:
    """Only the vectors at an image's edges are read one by one; results at odd places are stored without gaps."""
    (engine,) = compiled(function, (torch.randn(shape).bfloat16(),)).summary["engines"]
    assert engine["parameters"]["width"] == width
