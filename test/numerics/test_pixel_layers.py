"""Layers over pixels (convolutions of one tap, an activation between them), planned for the GPU and run on the host."""

import pytest
import torch
from torch import Tensor, nn

from test.numerics.compare import exact, problems
from test.programs.compiled import planned_for_gpu


class PixelMLP(nn.Module):
    """Two layers over the pixels of what a convolution makes.

    Args:
        shared: whether the hidden layer is a result, too: it is read by others than the second layer then.
    """

    def __init__(self, channels: int, hidden: int, activation: nn.Module, shared: bool = False):
        super().__init__()
        self.enter, self.activation, self.shared = nn.Conv2d(3, channels, 3, padding=1), activation, shared
        self.first, self.second = nn.Conv2d(channels, hidden, 1), nn.Conv2d(hidden, channels, 1, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = self.enter(x)
        hidden = self.activation(self.first(x))
        made = x + self.second(hidden)
        return (made, hidden) if self.shared else (made,)


def engines_and_result(model: nn.Module, batch: int, height: int, width: int) -> list[str]:
    """The engines that a plan has, where what it computes is right."""
    inputs = (torch.randn(batch, 3, height, width, dtype=next(model.parameters()).dtype),)
    program = planned_for_gpu(model, *inputs)
    assert problems(program(*inputs), exact(model, inputs)) == []
    return [choice["engine"] for choice in program.summary["stages"]]


@pytest.mark.rotated(2)
@pytest.mark.parametrize(
    ("channels", "hidden", "batch", "height", "width"), [(16, 64, 1, 9, 11), (64, 256, 3, 7, 5), (8, 24, 2, 12, 12)]
)
@pytest.mark.parametrize("activation", [nn.GELU(), nn.ReLU()])
def test_products_of_rows(channels: int, hidden: int, batch: int, height: int, width: int, activation: nn.Module) -> None:
    engines = engines_and_result(PixelMLP(channels, hidden, activation).bfloat16().eval(), batch, height, width)
    assert engines.count("conv") == 1


@pytest.mark.rotated(2)
@pytest.mark.parametrize(
    "model",
    [
        PixelMLP(16, 32, nn.SiLU(), shared=True).bfloat16(),
        PixelMLP(16, 32, nn.SiLU()),
        PixelMLP(12, 20, nn.SiLU()).bfloat16(),
    ],
    ids=["hidden layer is a result", "f32", "odd channels"],
)
def test_one_step_beside(model: nn.Module) -> None:
    assert engines_and_result(model.eval(), 2, 6, 7).count("conv") == 3
