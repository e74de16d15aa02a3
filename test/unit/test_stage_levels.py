"""The order of stages on a GPU: what moves much and is read by nobody comes at the end."""

import pytest
import torch
from torch import Tensor, nn

from test.programs.compiled import planned


class Scaled(nn.Module):
    """Many rows times a number that the first of some layers gives: nobody reads them, nor what the layers give."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(6))

    def forward(self, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        first, *others = self.layers
        hidden = torch.relu(first(x))
        scaled = rows * hidden.float().amax().bfloat16()
        for layer in others:
            hidden = torch.relu(layer(hidden))
        return scaled, hidden


@pytest.mark.parametrize(("count", "last"), [(1 << 18, True), (1 << 12, False)])
def test_long_results_that_nobody_reads_come_last(count: int, last: bool) -> None:
    x, rows = torch.zeros(2048, 512, dtype=torch.bfloat16), torch.zeros(count, 128, dtype=torch.bfloat16)
    stages = planned(Scaled().to(torch.bfloat16), x, rows, passes={"kitsune-form-stages": "cut=products:1"}).summary["stages"]
    (scaled,) = [n for n, stage in enumerate(stages) if stage["sizes"][:1] == [count] or stage["sizes"] == [count, 128]]
    assert (scaled == len(stages) - 1) == last, [(stage["name"], stage["sizes"]) for stage in stages]
