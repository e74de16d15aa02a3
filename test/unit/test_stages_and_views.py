"""Tensors that are read as they are and through a view of other dimensions: whoever reads the view is another stage."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import kitsune_mlir
from test.gpu.unassembled import unassembled
from test.numerics.compare import exact, problems
from test.programs.compiled import planned_for_gpu


class Gated(nn.Module):
    """Images [n, channels, height, width], each channel times a gate of its mean; the mean is taken of flattened images."""

    def __init__(self, layers: int):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [n, 5, height, width]."""
        y = F.silu(x)
        gate = y.flatten(2).mean(-1)
        for layer in self.layers:
            gate = torch.relu(layer(gate))
        return y * torch.sigmoid(gate)[:, :, None, None]


class Resized(nn.Module):
    """Images enlarged, normalised in groups, and added to what was normalised."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [n, 6, height, width]."""
        y = F.interpolate(x, scale_factor=2, mode="nearest")
        return y + F.group_norm(y, 3) * y.flatten(1).sum(-1)[:, None, None, None]


CASES = {
    "gate": (Gated(0), (3, 5, 7, 9)),
    "gate of two layers": (Gated(2), (3, 5, 7, 9)),
    "one image": (Gated(2), (1, 5, 14, 14)),
    "resized": (Resized(), (2, 6, 5, 3)),
}


@pytest.mark.rotated(3)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("target", ["host", "sm_90a"])
def test_a_view_of_what_is_read_as_it_is(name: str, target: str) -> None:
    model, shape = CASES[name]
    x = torch.randn(shape)
    with torch.no_grad():
        program = kitsune_mlir.compile(model, (x,), target=target)
        if target == "host":
            assert problems(program(x), exact(model, (x,)), model(x)) == []


class Towers(nn.Module):
    """Messages as PNAConv makes them: the ends of an edge side by side, with a dimension of one tower."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(128, 64)

    def forward(self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ends = torch.cat([x[target][:, None], x[source][:, None]], -1)
        y = self.layer(ends[:, 0])
        total = torch.zeros(x.shape[0], 64).index_add(0, target, y.float())
        return total, torch.zeros(x.shape[0], 64, dtype=y.dtype).index_add(0, target, y * y)


def test_what_a_chain_reads_through_a_view_stays_in_it():
    """The concatenation is no result of the chain, which reads it without the dimension of one."""
    torch.manual_seed(0)
    model = Towers().bfloat16().requires_grad_(False)
    args = (torch.randn(2000, 64).bfloat16(), *(torch.randint(0, 2000, (60_000,)) for _ in range(2)))
    program = planned_for_gpu(model, *args)
    assert problems(program(*args), exact(model, args), model(*args)) == []
    stages = [stage["ops"] for stage in program.summary["stages"]]
    assert any("concat" in ops and "product" in ops for ops in stages)


class Excited(nn.Module):
    """The gate of a squeezed image, as EfficientNet has it: a convolution of one pixel, of few channels."""

    def __init__(self, squeezed: int):
        super().__init__()
        self.narrow, self.wide = nn.Conv2d(96, squeezed, 1), nn.Conv2d(squeezed, 96, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [n, 96, height, width]."""
        return x * torch.sigmoid(self.wide(F.silu(self.narrow(x.mean((2, 3), keepdim=True)))))


@pytest.mark.rotated(2)
@pytest.mark.parametrize("squeezed", [4, 8, 24])
def test_a_gate_is_not_made_again_for_every_pixel(squeezed: int):
    torch.manual_seed(0)
    model, args = Excited(squeezed).bfloat16().requires_grad_(False), (torch.randn(1, 96, 30, 30).bfloat16(),)
    with unassembled():
        summary = kitsune_mlir.compile(model, args, target="h200", options={"cache": False}).summary
    assert "replanned" not in summary and "generic" not in {choice["engine"] for choice in summary["engines"]}
    program = planned_for_gpu(model, *args)
    assert problems(program(*args), exact(model, args), model(*args)) == []
