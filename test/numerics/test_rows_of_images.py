"""Group norms of one group between convolutions, planned for the GPU and run on the host: rows are channels-last images."""

import pytest
import torch
from torch import Tensor, nn

from test.numerics.compare import exact, problems
from test.programs.compiled import planned_for_gpu


class Mixer(nn.Module):
    """A block of PoolFormer (Yu et al., arXiv 2111.11418): pooling mixes pixels between two norms."""

    def __init__(self, channels: int, groups: int = 1, counts: bool = False):
        super().__init__()
        self.enter, self.leave = nn.Conv2d(3, channels, 3, 2, 1), nn.Conv2d(channels, 2 * channels, 1)
        self.first, self.second = nn.GroupNorm(groups, channels), nn.GroupNorm(groups, channels)
        self.pool = nn.AvgPool2d(3, 1, 1, count_include_pad=counts)
        for norm in (self.first, self.second):
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        y = self.first(x)
        return self.leave(self.second(x + self.pool(y) - y))


class RowNorm(nn.Module):
    """A layer norm of whole images, which are seen as rows of two dimensions and stay rows."""

    def __init__(self, channels: int):
        super().__init__()
        self.enter = nn.Conv2d(4, channels, 3, padding=1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        rows = self.enter(x).flatten(1) + y
        return (rows - rows.mean(1, keepdim=True)) * rows.std(1, keepdim=True)


@pytest.mark.rotated(2)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("batch", "channels", "height", "width"), [(1, 16, 14, 10), (2, 24, 9, 7), (7, 8, 5, 33)])
def test_one_group(batch: int, channels: int, height: int, width: int, dtype: torch.dtype) -> None:
    model, inputs = Mixer(channels).to(dtype).eval(), (torch.randn(batch, 3, height, width, dtype=dtype),)
    program = planned_for_gpu(model, *inputs)
    assert problems(program(*inputs), exact(model, inputs)) == []


@pytest.mark.rotated(1)
@pytest.mark.parametrize(("groups", "counts"), [(4, False), (1, True)])
def test_one_step_beside(groups: int, counts: bool) -> None:
    model, inputs = Mixer(16, groups, counts).bfloat16().eval(), (torch.randn(2, 3, 11, 13).bfloat16(),)
    assert problems(planned_for_gpu(model, *inputs)(*inputs), exact(model, inputs)) == []


def test_rows_that_stay_rows() -> None:
    model, inputs = RowNorm(8).bfloat16().eval(), (torch.randn(3, 4, 6, 5).bfloat16(), torch.randn(3, 240).bfloat16())
    assert problems(planned_for_gpu(model, *inputs)(*inputs), exact(model, inputs)) == []


def test_nothing_is_turned_between_convolutions() -> None:
    model, inputs = Mixer(64).bfloat16().eval(), (torch.randn(4, 3, 64, 64).bfloat16(),)
    stages = planned_for_gpu(model, *inputs).summary["stages"]
    assert [4, 64, 32, 32] not in [stage["sizes"] for stage in stages]
