"""Gradients of weights and biases that read one tangent: planned for a GPU, in one stage, and run here beside float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from test.numerics.compare import exact, problems
from test.programs.compiled import planned_for_gpu

BF16, F16 = torch.bfloat16, torch.float16


class Gradients(torch.nn.Module):
    """Of a layer's weight and bias."""

    def forward(self, dy: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return dy.T @ x, dy.sum(0)


class Updates(torch.nn.Module):
    """What both become, beside a product of the other factor."""

    def forward(self, dy: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return w - 0.125 * (dy.T @ x), dy.sum(0) * 0.5, dy @ w


CASES = {
    "in parts": (Gradients(), BF16, ((100_000, 32), (100_000, 72)), 1),
    "several tiles of columns": (Gradients(), BF16, ((20_000, 136), (20_000, 1000)), 1),
    "odd, turned before the product": (Gradients(), BF16, ((20_000, 129), (20_000, 100)), 0),
    "f16": (Gradients(), F16, ((40_001, 64), (40_001, 7)), 1),
    "updates": (Updates(), BF16, ((30_000, 96), (30_000, 128), (96, 128)), 1),
    "f32": (Gradients(), torch.float32, ((40_000, 33), (40_000, 64)), 0),
    "one row": (Gradients(), BF16, ((3_000_000, 1), (3_000_000, 8)), 0),
}


@pytest.mark.rotated(2)
@pytest.mark.parametrize("name", CASES)
def test_planned_for_the_gpu(name: str) -> None:
    model, dtype, shapes, count = CASES[name]
    torch.manual_seed(2)
    program = planned_for_gpu(model, *(torch.randn(*shape).to(dtype) for shape in shapes))
    stages = program.ir("stages").split('"kitsune.stage"')
    together = [one for one in stages if "kitsune.operand_sum" in one]
    assert len(together) == count and all('engine = "mma"' in one for one in together)
    fresh = tuple(torch.randn(*shape).to(dtype) for shape in shapes)
    assert problems(program(*fresh), exact(model, fresh), model(*fresh)) == []
