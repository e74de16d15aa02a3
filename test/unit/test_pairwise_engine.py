"""The pairwise engine: which reductions it takes, and its kernels on emulated blocks."""

import itertools

import pytest
import torch

from test.programs.emulated import compiled, emulated, engines
from test.rotation import in_turn

BF16, F32, F64, I64 = torch.bfloat16, torch.float32, torch.float64, torch.int64


def squares(a, b, v):
    return ((a.unsqueeze(-2) - b.unsqueeze(-3)) ** 2).sum(-1)


def additive(a, b, v):
    return (v * torch.tanh(a.unsqueeze(-2) + b.unsqueeze(-3))).sum(-1)


def farthest(a, b, v):
    return (a.unsqueeze(-2) - b.unsqueeze(-3)).abs().amax(-1).sqrt()


def within(a, b, v):
    return ((a.unsqueeze(-2) - b.unsqueeze(-3)).abs().sum(-1) < 20).to(a.dtype)


SHAPES = [((33, 16), (129, 16)), ((2, 36), (300, 36)), ((7, 500), (130, 500)), ((2, 9, 24), (2, 260, 24))]


@pytest.mark.parametrize(
    "function, shapes, dtype", in_turn([*itertools.product([squares, additive, farthest], SHAPES, [F32, BF16])], 7)
)
def test_against_float64(function, shapes, dtype):
    a, b = shapes
    torch.manual_seed(0)
    args = [torch.randn(a).to(dtype), torch.randn(b).to(dtype), torch.randn(a[-1]).to(dtype)]
    program = compiled(function, args)
    assert "pairwise" in engines(program)
    like = function(*args)
    exact = function(*(x.double() for x in args))
    (found,) = emulated(program, args, [like])
    own = (like.double() - exact).norm()
    assert (found.double() - exact).norm() <= 2 * own + 2e-7 * exact.norm()


def test_maps_before_and_after():
    torch.manual_seed(0)
    a, b, v = torch.randn(40, 32), torch.randn(150, 32), torch.randn(32)
    program = compiled(lambda a, b, v: within(a.exp(), b * v, v) * 2 + 1, [a, b, v])
    assert "pairwise" in engines(program) and "generic" not in engines(program)
    want = within(a.exp(), b * v, v) * 2 + 1
    (found,) = emulated(program, [a, b, v], [want])
    assert (found != want).sum() <= 1  # where rounding decides


@pytest.mark.rotated(3)
@pytest.mark.parametrize(
    "a, b, function",
    [
        ((33, 16), (100, 16), squares),  # too few columns
        ((33, 3), (129, 3), squares),  # a thread makes so few terms alone
        ((33, 17), (129, 17), squares),  # no vectors
        ((33, 16), (129, 16), lambda a, b, v: a @ b.t()),
        ((33, 16), (33, 16), lambda a, b, v: ((a - b) ** 2).sum(-1)),
        ((33, 16), (129, 16), lambda a, b, v: torch.softmax(a.unsqueeze(-2) + b.unsqueeze(-3), -1)),
    ],
)
def test_what_others_do(a, b, function):
    args = [torch.randn(a), torch.randn(b), torch.randn(a[-1])]
    assert "pairwise" not in engines(compiled(function, args))
