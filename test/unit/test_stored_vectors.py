"""A vector that is made, stored and added to many rows leaves the rows their tiles."""

import torch
from torch import Tensor

import kitsune_mlir
from bench.sweeps import Function
from test.numerics.compare import exact, problems
from test.programs.compiled import planned_for_gpu


def stored(x: Tensor, y: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """As in a step of training: a weight in f32 is read by what comes later, too."""
    wide = torch.exp(v)
    return x * wide + y, wide


def test_rows_keep_their_tiles() -> None:
    args = torch.randn(65_536, 128), torch.randn(65_536, 128), torch.randn(128)
    stages = kitsune_mlir.compile(Function(stored), args, target="sm_90a").summary["stages"]
    assert max(stage["tasks"] for stage in stages) >= 132


def test_against_float64() -> None:
    model, args = Function(stored), (torch.randn(20_001, 96), torch.randn(20_001, 96), torch.randn(96))
    assert problems(planned_for_gpu(model, *args)(*args), exact(model, args), model(*args)) == []
