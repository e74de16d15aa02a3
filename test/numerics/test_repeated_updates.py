"""An optimizer's update traced once for parameters that are alike: the graph does what one traced for each of them does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim

import kitsune_mlir
from kitsune_mlir.training import repeated_updates, traced
from test.rotation import in_turn

OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "AdamW": lambda p: optim.AdamW(p, 0.01),
    "AdamW, foreach": lambda p: optim.AdamW(p, 0.01, foreach=True),
    "Adam, amsgrad, maximize": lambda p: optim.Adam(p, 0.01, amsgrad=True, weight_decay=0.1, maximize=True),
    "SGD": lambda p: optim.SGD(p, 0.1),
    "SGD, momentum": lambda p: optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "SGD, dampening": lambda p: optim.SGD(p, 0.1, momentum=0.9, dampening=0.5),
    "RMSprop": lambda p: optim.RMSprop(p, 0.01, momentum=0.9, centered=True),
    "Adagrad": lambda p: optim.Adagrad(p, 0.1, lr_decay=0.1),
    "Adadelta": optim.Adadelta,
    "Adamax": lambda p: optim.Adamax(p, foreach=True),
    "NAdam": optim.NAdam,
    "RAdam": optim.RAdam,
    "Rprop": optim.Rprop,
    "ASGD": optim.ASGD,
}


class OwnSgd(optim.SGD):
    """A class of a user's, which may do anything with its parameters."""


def layers(depth: int) -> nn.Module:
    return nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.GELU()) for _ in range(depth)])


@pytest.fixture
def kinds(monkeypatch):
    """The group of each update that is traced by itself. Functional graphs are run by PyTorch."""
    made: list[int] = []
    own = repeated_updates._traced

    def counted(*args: Any) -> Any:
        found = own(*args)
        made.append(args[2])
        return found

    monkeypatch.setattr(repeated_updates, "_traced", counted)
    monkeypatch.setattr("kitsune_mlir.dynamo.compile.compile_graph", lambda graph, *_: graph.forward)
    return made


def three_steps(make: Callable[[Any], optim.Optimizer], depth: int = 2, groups: bool = False) -> list[torch.Tensor]:
    """Weights and state after three steps, of which the last has other numbers."""
    torch.manual_seed(0)
    model = layers(depth)
    given: Any = model.parameters()
    if groups:
        matrices = [p for p in model.parameters() if p.dim() > 1]
        given = [{"params": matrices, "lr": 0.02}, {"params": [p for p in model.parameters() if p.dim() == 1]}]
    optimizer = make(given)
    step = kitsune_mlir.train_step(model, F.mse_loss, optimizer)
    for n in range(3):
        for group in optimizer.param_groups:
            group["lr"] *= 0.5 if n == 2 else 1
        step(torch.randn(5, 6), torch.randn(5, 6))
    assert len(step.reports) <= 2  # of an optimizer that makes its state in the first step
    state = [v for p in model.parameters() for v in optimizer.state[p].values() if isinstance(v, torch.Tensor)]
    return [*model.parameters(), *state]


@pytest.mark.parametrize("name", in_turn(list(OPTIMIZERS), 2))
def test_as_if_traced_for_each(name, kinds, monkeypatch):
    together = three_steps(OPTIMIZERS[name], groups=True)
    assert 0 < len(kinds) <= 4
    monkeypatch.setattr(traced, "update_each", lambda *_: None)
    for one, other in zip(together, three_steps(OPTIMIZERS[name], groups=True), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=5e-6)  # rounded otherwise, then divided by small roots


def test_more_layers_have_no_more_updates_to_trace(kinds):
    three_steps(OPTIMIZERS["AdamW"], 1)
    few = len(kinds)
    three_steps(OPTIMIZERS["AdamW"], 3)
    assert few == 2 and len(kinds) == 2 * few


def test_other_optimizers_are_traced_whole(kinds):
    """A user's class, and hooks."""
    three_steps(lambda p: OwnSgd(p, 0.1))

    def hooked(parameters: Any) -> optim.Optimizer:
        optimizer = optim.SGD(parameters, 0.1)
        optimizer.register_step_pre_hook(lambda *_: None)
        return optimizer

    three_steps(hooked)
    assert not kinds
