"""Recurrent layers and cells as planned for the GPU: PyTorch's numbers, and a stage for each step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from kitsune_mlir.frontend.recurrent import UNROLLED
from test.numerics.compare import exact, problems
from test.programs.compiled import planned_for_gpu
from test.rotation import in_turn

LAYERS = {
    "lstm": ("LSTM", 64, 64, {}, 4, 3, torch.bfloat16),
    "lstm odd": ("LSTM", 7, 33, {"num_layers": 2}, 1, 3, torch.float32),
    "lstm projected": ("LSTM", 16, 32, {"proj_size": 16, "bidirectional": True}, 3, 2, torch.float32),
    "lstm without biases": ("LSTM", 16, 32, {"bias": False}, 64, 3, torch.float16),
    "lstm of many rows": ("LSTM", 16, 32, {}, 65, 2, torch.bfloat16),
    "gru": ("GRU", 64, 64, {}, 3, 4, torch.bfloat16),
    "gru both ways": ("GRU", 24, 48, {"bidirectional": True}, 5, 4, torch.float32),
    "rnn": ("RNN", 10, 24, {"nonlinearity": "relu"}, 2, 5, torch.float32),
    "rnn of two layers": ("RNN", 24, 24, {"num_layers": 2}, 1, 3, torch.bfloat16),
    "lstm of 33 steps": ("LSTM", 13, 129, {"num_layers": 2, "bidirectional": True, "batch_first": True}, 3, 33, torch.float32),
    "lstm of one unit": ("LSTM", 3, 1, {"bias": False}, 5, 7, torch.float32),
    "lstm of 1000 units": ("LSTM", 32, 1000, {}, 2, 5, torch.bfloat16),
    "lstm in f64": ("LSTM", 5, 9, {}, 2, 5, torch.float64),
    "lstm of one step": ("LSTM", 8, 16, {}, 2, 1, torch.bfloat16),
    "gru of 64 rows": ("GRU", 20, 40, {"batch_first": True}, 64, 9, torch.float16),
    "gru of 700 rows": ("GRU", 8, 16, {}, 700, 5, torch.float32),
    "rnn both ways": ("RNN", 7, 33, {"nonlinearity": "relu", "bidirectional": True, "bias": False}, 1, 12, torch.bfloat16),
}


class Given(nn.Module):
    """A layer with the states that it begins with, all of its results."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        given: Any = states if len(states) > 1 else next(iter(states))
        out, final = self.net(x, given)
        return (out, *final) if isinstance(final, tuple) else (out, final)


class Results(nn.Module):
    """A layer without states to begin with, all of its results."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> list[Any]:
        return tree_leaves(self.net(x))


class Cells(nn.Module):
    """A cell called step by step, and a gate written out by hand."""

    def __init__(self, kind: str, width: int):
        super().__init__()
        self.cell = getattr(nn, kind)(width, width)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for step in range(x.shape[0]):
            state = self.cell(x[step], state)
        assert state is not None
        return state[0] if isinstance(state, tuple) else state


@pytest.mark.parametrize("name", in_turn(list(LAYERS), 2))
def test_layers(name: str) -> None:
    kind, width, hidden, settings, batch, length, dtype = LAYERS[name]
    net = getattr(nn, kind)(width, hidden, **settings).to(dtype)
    model = Given(net).eval().requires_grad_(False)
    count = settings.get("num_layers", 1) * (1 + settings.get("bidirectional", False))
    states = [torch.randn(count, batch, settings.get("proj_size", hidden)).to(dtype)]
    if kind == "LSTM":
        states.append(torch.randn(count, batch, hidden).to(dtype))
    steps = (batch, length) if settings.get("batch_first") else (length, batch)
    args = (torch.randn(*steps, width).to(dtype), *states)
    assert problems(planned_for_gpu(model, *args)(*args), exact(model, args), model(*args)) == []


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_without_states(kind: str) -> None:
    model = Results(getattr(nn, kind)(16, 24, 2)).bfloat16().eval().requires_grad_(False)
    args = (torch.randn(9, 3, 16).bfloat16(),)
    assert problems(planned_for_gpu(model, *args)(*args), exact(model, args), model(*args)) == []


@pytest.mark.parametrize("kind", in_turn(["LSTMCell", "GRUCell", "RNNCell"], 1))
def test_cells(kind: str) -> None:
    model = Cells(kind, 32).bfloat16().eval().requires_grad_(False)
    args = (torch.randn(3, 5, 32).bfloat16(),)
    assert problems(planned_for_gpu(model, *args)(*args), exact(model, args), model(*args)) == []


@pytest.mark.rotated(1)
@pytest.mark.parametrize("kind, gates", [("LSTM", 4), ("GRU", 3)])
def test_a_step_of_a_short_layer_is_one_stage(kind: str, gates: int) -> None:
    """But for the first step, whose hidden state is zero: a product of all gates, and what comes of them."""
    model = nn.Sequential(getattr(nn, kind)(64, 64)).bfloat16().eval().requires_grad_(False)
    x = torch.randn(UNROLLED, 4, 64).bfloat16()
    stages = planned_for_gpu(model, x).summary["stages"]
    steps = [stage for stage in stages if stage["ops"].get("product") == gates]
    assert len(steps) == UNROLLED - 1


@pytest.mark.rotated(3)
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("steps", [UNROLLED + 1, 5000])
def test_a_layer_is_two_stages(kind: str, steps: int) -> None:
    """The product of all inputs, and all steps of both directions."""
    model = nn.Sequential(getattr(nn, kind)(64, 64, bidirectional=True)).bfloat16().eval().requires_grad_(False)
    x = torch.randn(steps, 4, 64).bfloat16()
    stages = planned_for_gpu(model, x).summary["stages"]
    assert [stage["engine"] for stage in stages][-1] == "recurrence"
    assert [stage["ops"].get("recurrence", 0) for stage in stages] == [0] * (len(stages) - 1) + [1]
    assert len(stages) <= 3
