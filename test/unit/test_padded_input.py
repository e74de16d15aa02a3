"""Inputs that are copied into larger ones: together, or each by itself."""

import ctypes
import pickle
import random

import pytest
import torch

from kitsune_mlir.sized import padded_input
from kitsune_mlir.sized.padded_input import CopiedTogether, PaddedInput

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


class Launched:
    """In place of `Copies`: the processor copies."""

    made = 0

    def __init__(self, copies, device, stream):
        self.copies = copies
        Launched.made += 1

    def __call__(self, sources):
        assert len(sources) == len(self.copies) <= 8
        for source, (first, target, piece, count, pitch) in zip(sources, self.copies, strict=True):
            assert source % 16 == 0 or source == first
            for n in range(count):
                ctypes.memmove(target + n * pitch, source + n * piece, piece)


@pytest.fixture(autouse=True)
def on_gpu(monkeypatch):
    """As on a GPU."""
    monkeypatch.setattr(padded_input, "Copies", Launched)
    monkeypatch.setattr(padded_input, "KEPT", set())  # other tests' tensors may lie there later
    Launched.made = 0


def copied(together, given):
    """What a program would be called with."""
    args = [None, *given, None]
    together(tuple(value.shape for value in given), args)
    return args[1:-1]


def plan(inputs):
    return CopiedTogether([*enumerate(inputs, 1)])


def inside(whole, shape):
    for dim, n in enumerate(shape):
        whole = whole.narrow(dim, 0, n)
    return whole


def test_copied_together():
    rng = random.Random(random.random())
    for _ in range(200):
        inputs = [drawn(rng) for _ in range(rng.randint(1, 9))]
        together = pickle.loads(pickle.dumps(plan([how for how, _ in inputs])))
        for again in range(3):
            args = [given if again < 2 else (given + 1).to(given.dtype) for _, given in inputs]
            for (how, _), given, whole in zip(inputs, args, copied(together, args), strict=True):
                assert torch.equal(inside(whole, given.shape), given)
                if whole is not given:
                    behind = torch.ones(how.size, dtype=torch.bool)
                    inside(behind, given.shape).fill_(False)
                    assert not whole[behind].any() and whole.stride() == how.stride


def test_one_launch_is_planned_once():
    """For inputs that lie as before; one that lies otherwise, or is no multiple of 16 bytes away, is copied all the same."""
    nodes, edges = PaddedInput((40, 12), (12, 1)), PaddedInput((2, 128), (128, 1))
    together = plan([nodes, edges])
    for _ in range(3):
        given = torch.randn(8, 12), torch.randint(8, (2, 27))
        for value, whole in zip(given, copied(together, given), strict=True):
            assert torch.equal(inside(whole, value.shape), value)
    assert Launched.made == 1
    memory = torch.randn(200)
    for value in (torch.randn(12, 8).T, memory[1:97].view(8, 12), memory[4:100].view(8, 12)):
        given = value, torch.randint(8, (2, 27))
        assert torch.equal(copied(together, given)[0][:8], value)
    given = torch.randn(40, 12), torch.randint(8, (2, 27))  # nodes are as many as they are to be
    for _ in range(2):
        wholes = copied(together, given)
        assert wholes[0] is given[0] and torch.equal(wholes[1][:, :27], given[1])


def test_negated_and_conjugated_inputs():
    """Whose memory holds something else."""
    x = torch.randn(3, 4, dtype=torch.complex64)
    together = plan([PaddedInput((5, 4), (4, 1)), PaddedInput((5, 4), (4, 1))])
    for each in ((x, x.imag.clone()), (x.conj(), x.conj().imag), (x, x.imag.clone()), (x.conj(), x.conj().imag)):
        for value, whole in zip(each, copied(together, each), strict=True):
            assert torch.equal(whole[:3], value.resolve_conj().resolve_neg())


def test_copies_of_equal_tensors(monkeypatch):
    """One launch for all of them, whose addresses may change; others where one is not aligned, or is a negated view."""
    monkeypatch.setattr(padded_input, "_on_gpu", lambda tensor: True)
    monkeypatch.setattr(padded_input, "_place", lambda device: (0, 0, 0))
    places = [torch.zeros(3), torch.zeros(2, 5, dtype=torch.int64), torch.zeros(7, dtype=torch.bool)]
    copy = padded_input.copier(places)
    for turn in range(4):
        values = [torch.randn(3), torch.randint(9, (2, 5)), torch.rand(7) > 0.5]
        if turn == 2:
            values[0] = torch.randn(9)[1:4]
        if turn == 3:
            values[0] = torch.randn(3, 2)[:, 0].to(torch.complex64).mul(1j).conj().imag
        copy(values)
        assert all(torch.equal(place, value) for place, value in zip(places, values, strict=True)), turn
    assert Launched.made == 1
    apart = padded_input.copier([torch.zeros(3, 4).t()])
    apart([torch.ones(4, 3)])
    assert Launched.made == 1


def test_copies_of_later_calls(monkeypatch):
    """What copied a call's inputs copies those of the next calls: one launch, unless they lie otherwise or one is captured."""
    monkeypatch.setattr(padded_input, "_on_gpu", lambda tensor: True)
    monkeypatch.setattr(padded_input, "_place", lambda device: (0, 0, 0))
    captured = False
    monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: captured, raising=False)
    inputs = [(1, PaddedInput((40, 12), (12, 1))), (2, PaddedInput((2, 128), (128, 1)))]

    def call():
        return [None, torch.randn(8, 12), torch.randint(8, (2, 27))]

    args = call()
    larger = list(args)
    CopiedTogether(inputs)(0, larger)
    again = padded_input.copies_into(inputs, args, larger)
    for _ in range(3):
        args = call()
        assert again(args)
        assert torch.equal(larger[1][:8], args[1]) and torch.equal(larger[2][:, :27], args[2])
    assert Launched.made == 2
    memory = torch.randn(200)
    for value in (torch.randn(12, 8).T, memory[1:97].view(8, 12), torch.randn(8, 12).to(torch.complex64).mul(1j).conj().imag):
        before = larger[1].clone()
        assert not again([None, value, args[2]]) and torch.equal(larger[1], before)
    captured = True
    assert not again(call())
    # An input that is as large as it is to be is taken as it is, and none of another call's lies where it did.
    given = [None, torch.randn(40, 12), torch.randint(8, (2, 27))]
    whole = list(given)
    CopiedTogether(inputs)(1, whole)
    assert padded_input.copies_into(inputs, given, whole) is None
