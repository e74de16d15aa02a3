"""Convolutions of every kind: their forms for the engines are PyTorch's numbers, and no stage of them is left to loops."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn

import kitsune_mlir
from kitsune_mlir.frontend.convolutions import convolution
from test.gpu.unassembled import unassembled
from test.numerics.compare import exact, problems
from test.rotation import in_turn

aten = torch.ops.aten


def drawn(seed: int) -> tuple:
    """Arguments of `aten.convolution` that PyTorch takes: any kernel, stride, padding, dilation, groups, transposed or not."""
    r = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    spatial, groups, transposed = 1 + seed % 3, r.choice([1, 1, 2, 3]), r.random() < 0.5

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def each(*choices: int) -> list[int]:
        return [r.choice(choices) for _ in range(spatial)]

    channels, out = groups * r.choice([1, 2, 3]), groups * r.choice([1, 2])
    kernel, stride, dilation = each(1, 2, 3, 4, 5), each(1, 2, 3, 4), each(1, 1, 2, 3)
    padding = [r.randrange(d * (k - 1) // 2 + 1) for k, d in zip(kernel, dilation, strict=True)]
    if r.random() < 0.3:
        stride, padding, dilation = list(kernel), [0] * spatial, [1] * spatial
    more = [r.randrange(max(s, d)) if transposed else 0 for s, d in zip(stride, dilation, strict=True)]
    extents = [d * (k - 1) + 1 + r.choice([0, 1, 4, 5]) for k, d in zip(kernel, dilation, strict=True)]
    x = normal(r.choice([1, 2]), channels, *extents)
    weight = normal(*((channels, out // groups) if transposed else (out, channels // groups)), *kernel)
    return x, weight, r.choice([None, normal(out)]), stride, padding, dilation, transposed, more, groups


def test_forms_are_the_convolution() -> None:
    """In float64, without compiling; what stays as it is is a plain convolution of two dimensions."""
    kept = 0
    for seed in range(400):
        args = drawn(seed)
        got = convolution(*args)
        if got is NotImplemented:
            kept += 1
            assert args[0].ndim == 4 and not args[6]
            continue
        wanted = aten.convolution(*args)
        assert got.shape == wanted.shape and torch.allclose(got, wanted), seed
    assert 20 < kept < 100


class Drawn(nn.Module):
    """The convolution of a seed, of one type."""

    def __init__(self, seed: int, dtype: torch.dtype):
        super().__init__()
        self.x, weight, bias, *self.rest = drawn(seed)
        self.x = self.x.to(dtype)
        self.weight = nn.Parameter(weight.to(dtype), requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias.to(dtype), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return aten.convolution(x, self.weight, self.bias, *self.rest)


@pytest.mark.parametrize("seed", in_turn(range(120), 4))
def test_on_the_host(seed: int) -> None:
    model = Drawn(seed, torch.float32 if seed % 2 else torch.bfloat16)
    options = {"convolution_precision": "highest"}
    program = kitsune_mlir.compile(model, (model.x,), target="host", options=options)
    # Not beside eager: on processors with AMX, oneDNN of PyTorch 2.13 reads what it has not written in grouped bf16 volumes.
    assert problems(program(model.x), exact(model, (model.x,))) == []


KINDS = {
    "patches": (lambda: nn.Conv2d(3, 96, 16, 16), (4, 3, 224, 224)),
    "one line": (lambda: nn.Conv1d(64, 64, 3, padding=2, dilation=2), (16, 64, 1000)),
    "depth": (lambda: nn.Conv3d(16, 32, 3, padding=1), (2, 16, 8, 32, 32)),
    "transposed": (lambda: nn.ConvTranspose2d(128, 64, 4, stride=2, padding=1), (8, 128, 16, 16)),
    "grouped line": (lambda: nn.Conv1d(128, 128, 9, padding=4, groups=4), (8, 128, 200)),
    "transposed line": (lambda: nn.ConvTranspose1d(64, 32, 5, stride=3), (8, 64, 129)),
}


@pytest.mark.rotated(5)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", KINDS)
def test_no_loops(name: str, dtype: torch.dtype) -> None:
    make, shape = KINDS[name]
    model = make().to(dtype).eval().requires_grad_(False)
    with unassembled():
        program = kitsune_mlir.compile(model, (torch.randn(shape, dtype=dtype),), target="h200")
    engines = {choice["engine"] for choice in program.summary["engines"]}
    assert engines & {"mma", "conv", "chain"} and engines <= {"mma", "conv", "chain", "simt"}
