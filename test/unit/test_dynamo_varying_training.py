"""Training through torch.compile with batches of several sizes: as in eager, and few programs for all of them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from kitsune_mlir.dynamo.backend import compiled_graph
from kitsune_mlir.dynamo.drawn import draws_of
from kitsune_mlir.dynamo.graph_options import options_of_backend


class Images(nn.Module):
    """Weights' gradients are convolutions whose channels are samples, of all or of a group of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 4, 3, padding=1, stride=2), nn.BatchNorm2d(4)
        self.grouped = nn.Conv2d(4, 4, 3, groups=2)

    def forward(self, x):
        return torch.relu(self.grouped(torch.relu(self.norm(self.first(x)))))


class Noisy(nn.Module):
    """Dropout, and noise of a size that depends on the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(7, 9), nn.Linear(9, 3)

    def forward(self, x):
        hidden = nn.functional.dropout(torch.relu(self.first(x)), 0.4, self.training)
        return self.second(hidden + 0.1 * torch.randn_like(hidden))


CASES = {
    "images": (Images, (2, 8, 8)),
    "noisy": (Noisy, (7,)),
    "tokens": (lambda: nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.Softmax(-1), nn.Flatten(), nn.Linear(40, 3)), (5, 8)),
}


@pytest.mark.rotated(1)
@pytest.mark.parametrize("name", CASES)
def test_a_last_batch_that_varies(name):
    torch._dynamo.reset()
    torch.manual_seed(0)
    make, shape = CASES[name]
    model, reports = make(), []
    other = copy.deepcopy(model)
    asked = options_of_backend(None, {"threads": 1})
    compiled = torch.compile(model, backend=lambda gm, inputs: compiled_graph(gm, inputs, *asked, keep=reports.append))
    both = [(compiled, torch.optim.SGD(model.parameters(), 0.05)), (other, torch.optim.SGD(other.parameters(), 0.05))]
    steps = 0
    for n in (20, 20, 7, 20, 20, 11, 20, 3):
        x, before, losses = torch.randn(n, *shape), len(reports), []
        for function, optimizer in both:
            torch.manual_seed(n)  # random numbers are eager's
            optimizer.zero_grad()
            loss = function(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        torch.testing.assert_close(losses[0], losses[1], rtol=1e-5, atol=1e-6)
        steps += len(reports) > before
    for one, same in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(one, same, rtol=1e-4, atol=1e-5)
    assert steps <= 3 and all(report.programs and not report.gave_up for report in reports)


def test_what_depends_on_data_is_not_drawn_apart():
    found = []

    def keep(gm, inputs):
        found.append(draws_of(copy.deepcopy(gm)))
        return gm.forward

    from torch._dynamo.backends.common import aot_autograd

    for function in (lambda x: torch.bernoulli(x.sigmoid()), lambda x: x + torch.rand_like(x), torch.sin):
        torch._dynamo.reset()
        torch.compile(function, backend=aot_autograd(fw_compiler=keep), dynamic=True)(torch.randn(5, 3))
    assert [draws is None for draws in found] == [True, False, True]
