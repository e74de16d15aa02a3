"""Calls for any number of rows that are made as an earlier one of the same sizes was (`kitsune_mlir/sized/prepared.py`)."""

import copy
import threading

import pytest
import torch
from torch import nn

from kitsune_mlir.runtime.taken import taking
from kitsune_mlir.sized.prepared import PreparedCall

R = torch.randn


@pytest.fixture
def made(monkeypatch):
    """Whether each prepared call could be made."""
    found, own = [], PreparedCall.__call__

    def call(self, args, stream):
        results = own(self, args, stream)
        found.append(results is not None)
        return results

    monkeypatch.setattr(PreparedCall, "__call__", call)
    return found


def compiled(model):
    torch._dynamo.reset()
    return torch.compile(model, backend="kitsune", dynamic=True, options={"guard": False, "threads": 1})


def model():
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).eval()


def same(step, own, rows):
    x = R(rows, 6)
    torch.testing.assert_close(step(x), own(x), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_sizes_that_come_again(made):
    own = model()
    step, held = compiled(own), []
    for rows in (5, 2, 3, 5, 2, 3, 5):
        x = R(rows, 6)
        held.append((x, step(x)))
    for x, found in held:
        torch.testing.assert_close(found, own(x), atol=1e-5, rtol=1e-5)
    assert made.count(True) >= 3 and all(made)


@torch.no_grad()
def test_weights_that_change(made):
    """A norm is folded into a product, whose weights are copies then."""
    own = model()
    step = compiled(own)
    for _ in range(2):
        same(step, own, 3), same(step, own, 4)
    own[0].weight.mul_(2)
    own[1].running_mean.add_(0.5)
    same(step, own, 4)
    assert all(made)
    own[3].weight.data = R(2, 4)
    same(step, own, 4)
    assert not made[-1]  # they lie elsewhere
    same(step, own, 4)
    same(step, own, 4)
    assert made[-1]


@torch.no_grad()
def test_models_of_one_class(made):
    """They share code, and each has its own weights; what was prepared for one is not called for the other."""
    one, other = model(), model()
    step = compiled(lambda m, x: m(x))
    for turn in range(24):
        own, x = (one, other)[turn % 2], R(3 + turn % 3, 6)
        torch.testing.assert_close(step(own, x), own(x), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_inputs_that_lie_in_another_way():
    own = model()
    step = compiled(own)
    for x in (R(4, 6), R(5, 6), R(5, 6), R(6, 5).t(), R(5, 12)[:, ::2], R(5, 6)):
        torch.testing.assert_close(step(x), own(x), atol=1e-5, rtol=1e-5)


def test_threads_have_calls_of_their_own(made):
    own, wrong = model(), []
    step = compiled(own)
    with torch.no_grad():
        same(step, own, 3), same(step, own, 4)

    def work():
        with torch.no_grad():
            for n in range(60):
                x = R(3 + n % 2, 6)
                wrong.append(not torch.allclose(step(x), own(x), atol=1e-5, rtol=1e-4))

    threads = [threading.Thread(target=work) for _ in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(wrong) == 180 and not any(wrong) and made.count(True) > 150


@torch.no_grad()
def test_who_takes_calls_takes_these(made):
    own, taken = model(), []
    step = compiled(own)
    for rows in (3, 4, 4):
        same(step, own, rows)

    def taker(program, args, kwargs, into):
        taken.append(program)
        return NotImplemented

    with taking(taker):
        same(step, own, 4)
    assert len(taken) == 1 and not made[-1]


@pytest.mark.parametrize("dynamic", [False, True])
def test_outputs_are_changed_in_place_with_gradients(dynamic):
    """They are no views of what was computed without."""
    inner = nn.Linear(4, 6).requires_grad_(False)
    functions = [inner, lambda x: inner(x).t(), lambda x: inner(x).view(-1, 2, 3).transpose(0, 1), lambda x: inner(x)[:, 1:3]]
    for function in functions:
        torch._dynamo.reset()
        step = torch.compile(function, backend="kitsune", dynamic=dynamic, options={"guard": False, "threads": 1})
        for rows in (5, 3, 3) if dynamic else (3, 3):
            x = R(rows, 4)
            found, want = step(x), copy.deepcopy(function(x))
            assert found.stride() == function(x).stride()
            factor = torch.ones_like(want, requires_grad=True)
            for value in (found, want):
                value.mul_(2)
                value.add_(factor)
            torch.testing.assert_close(found, want)
            found.sum().backward()
            torch.testing.assert_close(factor.grad, torch.ones_like(factor))
