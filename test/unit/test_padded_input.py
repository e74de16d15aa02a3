"""Inputs that are copied into larger ones: together, or each by itself."""

import random

import torch

from kitsune_mlir.sized.padded_input import PaddedInput, copied

DTYPES = [torch.float32, torch.int64, torch.bfloat16, torch.uint8, torch.bool, torch.float64, torch.complex64]


def drawn(rng):
    """A larger size, strides in any order, and an input of any layout."""
    larger = [rng.randint(1, 6) for _ in range(rng.randint(1, 4))]
    order = rng.sample(range(len(larger)), len(larger))
    stride, step = [0] * len(larger), 1
    for dim in reversed(order if rng.random() < 0.3 else range(len(larger))):
        stride[dim], step = step, step * larger[dim]
    given = (50 * torch.randn([rng.randint(1, n) for n in larger])).to(rng.choice(DTYPES))
    return PaddedInput(
        tuple(larger), tuple(stride)
    ), given.mT.contiguous().mT if given.dim() > 1 and rng.random() < 0.3 else given


def inside(whole, shape):
    for dim, n in enumerate(shape):
        whole = whole.narrow(dim, 0, n)
    return whole


def test_copied_together():
    rng = random.Random(random.random())
    for _ in range(200):
        inputs = [drawn(rng) for _ in range(rng.randint(1, 4))]
        for _ in range(2):
            for (how, given), whole in zip(inputs, copied(inputs), strict=True):
                assert torch.equal(inside(whole, given.shape), given)
                if whole is not given:
                    behind = torch.ones(how.size, dtype=torch.bool)
                    inside(behind, given.shape).fill_(False)
                    assert not whole[behind].any() and whole.stride() == how.stride


def test_most_are_copied_at_once(monkeypatch):
    """Rows of nodes, and pairs of edges: three pieces of memory."""
    found, really = [], torch._foreach_copy_
    monkeypatch.setattr(torch, "_foreach_copy_", lambda to, of: found.append(len(to)) or really(to, of))
    nodes, edges = PaddedInput((32, 64), (64, 1)), PaddedInput((2, 128), (128, 1))
    given = torch.randn(8, 64), torch.randint(8, (2, 27))
    for how, value in zip(given, copied([(nodes, given[0]), (edges, given[1])]), strict=True):
        assert torch.equal(inside(value, how.shape), how)
    assert found == [3]
    nodes, given = PaddedInput((4096, 64), (64, 1)), (torch.randn(1000, 64), given[1])  # one launch is slower for many bytes
    copied([(nodes, given[0]), (edges, given[1])])
    assert found == [3, 2]
