"""Calls that change what they are given: counted as PyTorch counts, by the quick way, or copied where nothing is in place."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

import kitsune_mlir
from test.programs.changes import Cache, Of, step


def test_changes_are_counted() -> None:
    model = Cache("index_put")
    program = kitsune_mlir.compile(model, step(), target="host")
    before = model.k._version
    program(*step())
    assert model.k._version > before
    with torch.inference_mode():
        program = kitsune_mlir.compile(Of(lambda x: (x.add_(1), None)[1]), (torch.zeros(8),), target="host")
        x = torch.zeros(8)
        program(x)
        assert x.tolist() == [1.0] * 8


def test_the_quick_way_through_a_call() -> None:
    """Steps whose arguments fit take it; where two share memory, the general one does."""
    model = Cache("index_copy")
    eager = copy.deepcopy(model)
    program = kitsune_mlir.compile(model, step(), target="host")
    assert program._direct is not None
    args = step()
    got = program._direct(args)
    torch.testing.assert_close(got, eager(*args))
    torch.testing.assert_close(model.k, eager.k)
    program = kitsune_mlir.compile(Of(lambda x, y: (x.add_(y), y * 3)[1]), (torch.ones(8), torch.ones(8)), target="host")
    x, y = torch.ones(8), torch.ones(8)
    assert program._direct is not None
    version = x._version
    assert program._direct((x, y)).tolist() == [3.0] * 8 and x.tolist() == [2.0] * 8 and x._version > version
    assert program._direct((x, x)) is None and x.tolist() == [2.0] * 8
    assert program(x, x).tolist() == [6.0] * 8 and x.tolist() == [4.0] * 8
    program = kitsune_mlir.compile(Of(lambda x, y: (x.add_(y), None)[1]), (torch.ones(8), torch.ones(8)), target="host")
    assert program(x, y) is None and x.tolist() == [5.0] * 8


def test_the_quick_way_copies_what_is_not_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the run; arguments that share memory take the general way where one of them is written in place."""
    given = torch.randn(8, 8), torch.randn(8, 8), torch.randn(6)

    def function(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        made = x.t() + y
        x.copy_(made)
        z.mul_(2)
        return made * 3

    program = kitsune_mlir.compile(Of(function), tuple(t.clone() for t in given), target="host")
    assert [o.in_place for o in program.signature.outputs if o.mutates] == [False, True]
    assert program._quick is not None and program.direct is None, "who uses the parts of a call would have to copy"
    with monkeypatch.context() as patched:
        patched.setattr(type(program), "_call", lambda *_: pytest.fail("the general way was taken"))
        ours, own = [t.clone() for t in given], [t.clone() for t in given]
        for _ in range(3):
            before = [t._version for t in ours]
            torch.testing.assert_close(program(*ours), function(*own))
            torch.testing.assert_close(ours, own)
            assert [now._version > old for now, old in zip(ours, before, strict=True)] == [True, False, True]
        program.uncounted()
        versions = [t._version for t in ours]
        program(*ours)
        assert [t._version for t in ours] == versions
    x, _, z = (t.clone() for t in given)
    torch.testing.assert_close(program(x, x, z), 3 * (given[0].t() + given[0]))
    torch.testing.assert_close(x, given[0].t() + given[0])
