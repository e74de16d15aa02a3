"""What is made of the bits of numbers, and divisors of integers: as in PyTorch, bit for bit."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import kitsune_mlir
from bench.sweeps import Function
from kitsune_mlir.frontend.divisors import steps_of
from test.gpu.unassembled import unassembled
from test.programs.compiled import planned_for_gpu
from test.rotation import in_turn

WHOLE = {torch.float32: torch.int32, torch.float64: torch.int64, torch.bfloat16: torch.int16, torch.float16: torch.int16}
FLOATS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "signbit": lambda x, y: torch.signbit(x),
    "nextafter": torch.nextafter,
    "nextafter a row": lambda x, y: torch.nextafter(x, y[:1]),
    "frexp": lambda x, y: torch.frexp(x),
}
INTEGERS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "gcd": torch.gcd,
    "lcm": torch.lcm,
    "gcd of a column": lambda x, y: torch.gcd(x[:, :1], y),
    "signbit": lambda x, y: torch.signbit(x),
    "or": lambda x, y: x | 5,
    "xor": lambda x, y: x ^ 6,
}
SHAPES = [(1, 1), (7, 1), (3, 43), (40, 25)]


def check(function: Callable[..., Any], *args: Tensor) -> None:
    """Both programs give PyTorch's bits."""
    wanted = tree_leaves(function(*args))
    for program in (kitsune_mlir.compile(Function(function), args, target="host"), planned_for_gpu(Function(function), *args)):
        for found, right in zip(tree_leaves(program(*args)), wanted, strict=True):
            assert found.dtype == right.dtype and found.shape == right.shape
            if right.is_floating_point():
                assert torch.equal(torch.isnan(found), torch.isnan(right))
                found, right = (
                    v.nan_to_num(nan=0, posinf=math.inf, neginf=-math.inf).view(WHOLE[v.dtype]) for v in (found, right)
                )
            assert torch.equal(found, right)


def bits(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Any numbers of a floating type, with the special ones first."""
    known = torch.iinfo(WHOLE[dtype])
    found = torch.randint(known.min, known.max, shape, dtype=WHOLE[dtype]).view(dtype).flatten()
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 1e-39, 1, -1, 3.4e38]).to(dtype)
    special = special[torch.randperm(len(special))][: len(found) // 2]
    found[: len(special)] = special
    return found.reshape(shape)


@pytest.mark.parametrize(
    ("form", "dtype", "shape"),
    in_turn([c for c in itertools.product(FLOATS, WHOLE, SHAPES) if "next" not in c[0] or c[1] != torch.float16], 10),
    ids=str,
)
def test_floats(form: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    torch.manual_seed(len(form) + shape[0])
    x, y = bits(shape, dtype), bits(shape, dtype)
    y = torch.where(torch.rand(shape) < 0.2, x, y)
    check(FLOATS[form], x, y)


@pytest.mark.parametrize(
    ("form", "dtype", "shape"),
    in_turn([*itertools.product(INTEGERS, [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8], SHAPES)], 10),
    ids=str,
)
def test_integers(form: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    torch.manual_seed(len(form) + shape[0])
    known = torch.iinfo(dtype)
    x, y = (torch.randint(known.min, known.max, shape, dtype=dtype) for _ in range(2))
    y = torch.where(torch.rand(shape) < 0.2, torch.randint(0, 13, shape).to(dtype), y)
    x = torch.where(torch.rand(shape) < 0.2, y * 2, x)
    check(INTEGERS[form], x, y)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_divisors_that_take_most_steps(dtype: torch.dtype) -> None:
    """Neighbours in Fibonacci's sequence do, and the ends of the range."""
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    numbers = [1, 1]
    while numbers[-1] + numbers[-2] <= most:
        numbers.append(numbers[-1] + numbers[-2])
    some = [0, 1, 5, least, most, least + 1, *numbers[-6:]]
    pairs = torch.tensor([*itertools.product(some, some)], dtype=dtype)
    check(torch.gcd, pairs[:, 0].contiguous(), pairs[:, 1].contiguous())
    assert steps_of(torch.iinfo(dtype).bits) >= len(numbers)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int32, torch.int64], ids=str)
def test_on_the_gpu(dtype: torch.dtype) -> None:
    """All forms have code in one engine."""
    forms = FLOATS if dtype.is_floating_point else INTEGERS
    x = torch.ones(33, 129, dtype=dtype)
    with unassembled():
        program = kitsune_mlir.compile(Function(lambda x, y: [form(x, y) for form in forms.values()]), (x, x), target="h200")
    assert {engine["engine"] for engine in program.summary["engines"]} == {"simt"}


def test_torch_compile_has_no_islands() -> None:
    def every(x: Tensor, y: Tensor, i: Tensor, j: Tensor) -> Any:
        return torch.nextafter(x, y), *torch.frexp(x), torch.signbit(x), torch.gcd(i, j), torch.lcm(i, j), i ^ 3

    torch.manual_seed(0)
    args = *torch.randn(2, 5, 33), *torch.randint(-99, 99, (2, 5, 33))
    fast = torch.compile(every, backend="kitsune", options={"require_full": True})
    for found, wanted in zip(fast(*args), every(*args), strict=True):
        assert torch.equal(found, wanted)
