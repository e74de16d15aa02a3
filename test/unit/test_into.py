"""`Program.run(into=...)`: results are written where the caller says."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

import kitsune_mlir
from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.runtime.program import Program


class One(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.rand(8))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale  # type: ignore[operator]


class Several(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        return {"sum": x + y, "pair": (x.sum(0), x), "n": 3, "same": x + y}


class Changing(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x.add_(y)
        return y @ y


@pytest.fixture(scope="module")
def one() -> Program:
    return kitsune_mlir.compile(One(), (torch.rand(4, 8),), target="host")


@pytest.fixture(scope="module")
def several() -> Program:
    return kitsune_mlir.compile(Several(), (torch.rand(4, 8), torch.rand(4, 8)), target="host")


def test_one_tensor(one: Program) -> None:
    x, into = torch.rand(4, 8), torch.full((4, 8), -1.0)
    with patch("torch.empty", side_effect=AssertionError("a result was allocated")):
        got = one.run(x, into=into)
    assert got is into
    torch.testing.assert_close(into, one(x))
    torch.testing.assert_close(one.run(x), one(x))
    torch.testing.assert_close(one.run(x, into=None), one(x))


def test_nested_and_partly(several: Program) -> None:
    x, y = torch.rand(4, 8), torch.rand(4, 8)
    want = several(x, y)
    total, rows, same = torch.empty(4, 8), torch.empty(8), torch.empty(4, 8)
    got = several.run(x, y, into={"sum": total, "pair": (None, None), "n": None, "same": same})
    assert got["sum"] is total and got["same"] is same and got["pair"][1] is x and got["n"] == 3
    torch.testing.assert_close((total, same, got["pair"][0]), (want["sum"], want["sum"], want["pair"][0]))
    got = several.run(x, y, into={"sum": None, "pair": (rows, None), "n": None, "same": None})
    assert got["pair"][0] is rows and got["sum"] is not total
    torch.testing.assert_close((rows, got["sum"]), (want["pair"][0], want["sum"]))
    assert got["sum"].data_ptr() != got["same"].data_ptr()


def test_arrays_of_other_libraries(one: Program) -> None:
    x = torch.rand(4, 8)
    into = torch.zeros(4, 8).numpy()
    assert one.run(x, into=into) is into
    torch.testing.assert_close(torch.from_numpy(into), one(x))


def test_beside_an_argument_that_is_changed() -> None:
    program = kitsune_mlir.compile(Changing(), (torch.rand(8, 8), torch.rand(8, 8)), target="host")
    assert [output.in_place for output in program.signature.outputs] == [False, True]
    x, y, into = torch.rand(8, 8), torch.rand(8, 8), torch.empty(8, 8)
    new = x + y
    program.run(x, y, into=into)
    torch.testing.assert_close((x, into), (new, y @ y))
    with pytest.raises(ArgumentError, match="into shares memory with input 'x'"):
        program.run(x, y, into=x)


def test_other_orders_in_memory() -> None:
    class Turned(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x * 2).transpose(0, 1)

    program = kitsune_mlir.compile(Turned(), (torch.rand(4, 8),), target="host")
    x = torch.rand(4, 8)
    got = program(x)
    into = torch.empty_strided(got.shape, got.stride())
    assert program.run(x, into=into) is into
    torch.testing.assert_close(into, got)
    wrong = torch.empty_strided(got.shape, (1, 8) if got.stride() == (8, 1) else (4, 1))
    with pytest.raises(ArgumentError, match=r"into has strides .*, the result has "):
        program.run(x, into=wrong)


def wrong_cases() -> dict[str, tuple[Any, str]]:
    x = torch.rand(4, 8)
    return {
        "shape": (torch.empty(8, 4), r"into has shape \[8, 4\], the result has \[4, 8\]"),
        "dtype": (torch.empty(4, 8, dtype=torch.float64), "into is torch.float64, the result is torch.float32"),
        "device": (torch.empty(4, 8, device="meta"), "into is on meta, the program runs on cpu"),
        "strides": (torch.empty(8, 4).t(), r"into has strides \(1, 4\), the result has \(8, 1\)"),
        "alignment": (torch.empty(33)[1:].view(4, 8), "into begins 4 bytes behind a multiple of 16"),
        "gradient": (torch.empty(4, 8, requires_grad=True), "into requires a gradient"),
        "layout": (x.to_sparse(), "into has layout torch.sparse_coo"),
        "no tensor": (3, "into is 3, a tensor was expected"),
        "nested": ((torch.empty(4, 8),), "into is a tuple, a tensor was expected"),
    }


@pytest.mark.parametrize("name", wrong_cases())
def test_what_does_not_fit(name: str, one: Program) -> None:
    into, message = wrong_cases()[name]
    with pytest.raises(ArgumentError, match=message):
        one.run(torch.rand(4, 8), into=into)


def test_memory_that_is_used(one: Program, several: Program) -> None:
    x = torch.rand(4, 8)
    with pytest.raises(ArgumentError, match="into shares memory with input 'x'"):
        one.run(x, into=x)
    memory = torch.rand(5, 8)
    with pytest.raises(ArgumentError, match="into shares memory with input 'x'"):
        one.run(memory[:4], into=memory[1:])
    y, both = torch.rand(4, 8), torch.empty(4, 8)
    with pytest.raises(ArgumentError, match=r"into\[\d\] shares memory with into\[\d\]"):
        several.run(x, y, into={"sum": both, "pair": (None, None), "n": None, "same": both})
    with pytest.raises(ArgumentError, match=r"into\[\d\] is given, and this output is argument 'x' itself: give None"):
        several.run(x, y, into={"sum": None, "pair": (None, torch.empty(4, 8)), "n": None, "same": None})
    with pytest.raises(ArgumentError, match=r"into\[\d\] is given, and this output is 3: give None"):
        several.run(x, y, into={"sum": None, "pair": (None, None), "n": torch.empty(()), "same": None})
    with pytest.raises(ArgumentError, match="into has the structure"):
        several.run(x, y, into={"sum": both})
    model = One()
    model.scale = torch.rand(4, 8)
    program = kitsune_mlir.compile(model, (x,), target="host")
    with pytest.raises(ArgumentError, match="into shares memory with weight 'scale'"):
        program.run(x, into=model.scale)
