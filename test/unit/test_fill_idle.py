"""Stages of arguments alone behind one with few tiles: a wave on the idle multiprocessors, where it is soon over."""

import pytest
import torch
from torch import Tensor, nn

from test.programs.compiled import planned


class Beside(nn.Module):
    """A product of few tiles, and rows that are made of other arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(256, 64)

    def forward(self, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(x), torch.cat([rows, rows.sin()], 1)


@pytest.mark.parametrize(("count", "idle"), [(8_192, True), (262_144, False)])
def test_long_work_is_for_all_multiprocessors(count: int, idle: bool) -> None:
    x, rows = torch.zeros(1024, 256, dtype=torch.bfloat16), torch.zeros(count, 128, dtype=torch.bfloat16)
    program = planned(Beside().to(torch.bfloat16), x, rows)
    product, joined = program.summary["stages"]
    tiles = count / joined["tile"][0]
    assert product["engine"] == "mma" and joined["sizes"] == [count]
    assert tiles < 132 if idle else tiles > 8 * 132
