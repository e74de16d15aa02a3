"""Reductions in parts give what PyTorch gives, for every combiner, on the host, sizes that parts hardly divide included."""

from collections.abc import Callable

import pytest
import torch

from bench.sweeps import Function
from kitsune_mlir import pipeline
from kitsune_mlir.passes.reductions.associative import NEUTRAL
from test.gpu.reduction_programs import normalised

SIZES = (1, 7, 129, 1000)
PASS = "kitsune-split-reductions"


FLOATS: dict[str, Callable] = {
    "sum over the batch": lambda x: x.sum(0),
    "sum of all": lambda x: x.sum(),
    "rows": lambda x: x.sum(1),
    "maximum": lambda x: x.amax(0),
    "minimum": lambda x: x.amin(0),
    "product": lambda x: (1 + x / 100).prod(0),
    "batch normalisation": normalised,
    "softmax over the batch": lambda x: torch.softmax(x, 0),
    "weight gradient": lambda x: x.T @ torch.tanh(x),
    "positions": lambda x: (x * torch.arange(x.shape[0])[:, None]).sum(0),
}
INTEGERS: dict[str, Callable] = {
    "integer sum": lambda x: x.sum(0),
    "integer maximum": lambda x: x.amax(0),
    "any": lambda x: (x > 60).any(0),
    "all": lambda x: (x > -60).all(0),
}


def compiled(function: Callable, parts: int, *args: torch.Tensor):
    """The program, every reduction in about as many parts."""
    return pipeline.compile(Function(function), args, target="host", options={"passes": {PASS: f"parts={parts}"}})


@pytest.mark.rotated(8)
@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("name", FLOATS)
def test_floats(name: str, rows: int) -> None:
    torch.manual_seed(rows)
    x = torch.randn(rows, 9)
    program = compiled(FLOATS[name], 5, x)
    wanted = FLOATS[name](x.double())
    error = (program(x).double() - wanted).norm() / wanted.norm().clamp_min(1e-6)
    assert error <= 1e-5
    assert ("kitsune.partial" in program.ir("stages")) == (rows > 1 or name in ("rows", "sum of all"))


@pytest.mark.rotated(5)
@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("name", INTEGERS)
def test_integers(name: str, rows: int) -> None:
    torch.manual_seed(rows)
    x = torch.randint(-100, 100, (rows, 5))
    program = compiled(INTEGERS[name], 4, x)
    assert torch.equal(program(x), INTEGERS[name](x))


def test_bfloat16_gradients() -> None:
    torch.manual_seed(0)
    x, g = torch.randn(1000, 24).bfloat16(), torch.randn(1000, 17).bfloat16()
    program = compiled(lambda x, g: (g.T @ x, g.sum(0)), 8, x, g)
    wanted = g.double().T @ x.double(), g.double().sum(0)
    for got, right in zip(program(x, g), wanted, strict=True):
        assert (got.double() - right).norm() / right.norm() <= 2e-2
    assert program.ir("stages").count("kitsune.combine") == 2


def test_every_neutral_element_is_one() -> None:
    """What is in NEUTRAL changes nothing under its combiner: the table's rows, by hand."""
    by_hand = {
        **dict.fromkeys(("arith.addf", "arith.addi", "arith.maxui", "arith.ori", "arith.xori"), 0),
        **dict.fromkeys(("arith.mulf", "arith.muli"), 1),
        **dict.fromkeys(("arith.maximumf", "arith.maxnumf"), float("-inf")),
        **dict.fromkeys(("arith.minimumf", "arith.minnumf"), float("inf")),
        **dict.fromkeys(("arith.andi", "arith.minui"), -1),
        "arith.maxsi": "least",
        "arith.minsi": "most",
    }
    assert by_hand == NEUTRAL
