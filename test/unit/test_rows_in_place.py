"""Results that are written row by row in the place of others, in one kernel."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from test.numerics.compare import exact, problems
from test.programs.compiled import planned_for_gpu


class Layers(nn.Module):
    """Products of f32 with a function between them, each a stage of its own.

    Args:
        skip: the first layer's result is added to the last one's. mixed: rows are mixed before the last layer.
    """

    def __init__(self, width: int = 32, layers: int = 6, skip: bool = False, mixed: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.skip, self.mixed = skip, mixed

    def forward(self, x: Tensor) -> Tensor:
        first, *others, last = self.layers
        kept = x = torch.sin(first(x))
        for layer in others:
            x = torch.sin(layer(x))
        if self.mixed:
            x = F.softmax(x, 0)
        return torch.sin(last(x)) + kept if self.skip else last(x)


@pytest.mark.rotated(2)
@pytest.mark.parametrize(
    "model, rows, results",
    [
        (Layers(), 1024, 2),  # each result in the place of the one before the last
        (Layers(skip=True), 1024, 3),  # the first one stays where it is
        (Layers(), 1000, 4),  # the last tile has rows of the one before it: only what was read two stages ago is written over
    ],
)
def test_layers_take_each_others_place(model: Layers, rows: int, results: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(rows, 32)
    program = planned_for_gpu(model, x, schedule="temporal", passes={"kitsune-place-buffers": "apart=0"})
    stages = program.ir("stages")
    assert int(re.findall(r"arena = (\d+)", stages)[0]) == results * x.numel() * 4
    assert (re.findall(r"after = \[([^\]]+)\]", stages) == []) == (rows % 128 == 0)
    assert problems(program(x), exact(model, (x,))) == []


def test_rows_that_others_read_are_not_written_over() -> None:
    """What reads all rows waits for all of them, and so does who writes there."""
    torch.manual_seed(0)
    model, x = Layers(mixed=True), torch.randn(512, 32)
    program = planned_for_gpu(model, x, schedule="temporal", passes={"kitsune-place-buffers": "apart=0"})
    assert problems(program(x), exact(model, (x,))) == []
