"""Inputs that are copied into larger ones: together, or each by itself."""

import ctypes
import random

import pytest
import torch

from kitsune_mlir.sized import padded_input
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


@pytest.fixture
def together(monkeypatch):
    """What is copied by one launch, as the processor copies it."""
    found = []

    def copy(copies, device, stream):
        found.append(copies)
        for source, target, piece, count, pitch in copies:
            for n in range(count):
                ctypes.memmove(target + n * pitch, source + n * piece, piece)

    monkeypatch.setattr(padded_input, "copy_all", copy)
    return found


def inside(whole, shape):
    for dim, n in enumerate(shape):
        whole = whole.narrow(dim, 0, n)
    return whole


def test_copied_together(together):
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
    assert together and all(0 < len(copies) <= 4 for copies in together)


def test_negated_and_conjugated_inputs(together):
    """Whose memory holds something else."""
    x = torch.randn(3, 4, dtype=torch.complex64)
    how, part = PaddedInput((5, 4), (4, 1)), PaddedInput((5, 4), (4, 1))
    conjugated, negated = copied([(how, x.conj()), (part, x.conj().imag)])
    assert torch.equal(conjugated[:3], x.conj().resolve_conj()) and torch.equal(negated[:3], -x.imag) and not together
