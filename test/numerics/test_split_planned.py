"""Reductions that the GPU's planner does in parts, run on the host, against float64: the parts are the planner's own choice."""

import pytest
import torch

from test.numerics.compare import exact, problems
from test.programs.compiled import planned_for_gpu


class Gradient(torch.nn.Module):
    """A layer's weight gradient, and its bias gradient."""

    def forward(self, gradient: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return gradient.T @ x, gradient.sum(0)


class Narrow(torch.nn.Module):
    """A weight's gradient alone."""

    def forward(self, gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return gradient.T @ x


class BatchNormalised(torch.nn.Module):
    """Statistics over the batch, and the batch normalised with them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt()


class BatchSoftmax(torch.nn.Module):
    """Softmax over the batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, 0)


CASES = {
    "gradient": (Gradient(), (40000, 13), (40000, 7)),
    "batch norm": (BatchNormalised(), (20000, 33)),
    "softmax": (BatchSoftmax(), (30000, 35)),
    "softmax of lines": (BatchSoftmax(), (20000, 64)),
}


@pytest.mark.parametrize("name", CASES)
def test_planned_for_the_gpu(name: str) -> None:
    model, *shapes = CASES[name]
    torch.manual_seed(1)
    args = tuple(torch.randn(*shape) for shape in shapes)
    remarks: list[str] = []
    program = planned_for_gpu(model, *args, on_remark=lambda r: remarks.append(str(r)))
    assert any(" parts: " in r and "instead of" in r for r in remarks)
    assert "kitsune.partial" in program.ir("stages") and "kitsune.combine" in program.ir("stages")
    fresh = tuple(torch.randn(*shape) for shape in shapes)
    assert problems(program(*fresh), exact(model, fresh), model(*fresh)) == []


@pytest.mark.parametrize("widths", [(129, 255), (136, 131)])
def test_gradients_of_odd_rows_read_copies_along_the_sum(widths: tuple[int, int]) -> None:
    """Beside one whose rows TMA reads, too."""
    model = Narrow()
    args = [torch.randn(8192, width, dtype=torch.bfloat16) for width in widths]
    program = planned_for_gpu(model, *args)
    copies = [width for width in widths if f"tensor<{width}x8192xbf16>" in program.ir("stages")]
    assert copies == [width for width in widths if width % 8]
    fresh = [torch.randn_like(arg) for arg in args]
    assert problems(program(*fresh), exact(model, tuple(fresh)), model(*fresh)) == []


@pytest.mark.parametrize("mode", ["separate", "spatial"])
def test_modes_say_who_not_what(mode: str) -> None:
    """A program planned for another mode is right where the target runs all tasks in order."""
    args = (torch.randn(20000, 33),)
    program = planned_for_gpu(BatchNormalised(), *args, schedule=mode)
    assert f'kitsune.mode = "{mode}"' in program.ir("tiles")
    assert problems(program(*args), exact(BatchNormalised(), args), BatchNormalised()(*args)) == []
