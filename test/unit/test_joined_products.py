"""Sums of two products that share a factor are one product (`frontend/joined_products.py`)."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import kitsune_mlir
from kitsune_mlir.dialects import new_context
from kitsune_mlir.frontend.importer import import_model


def products(function: Callable[..., Tensor], *args: Tensor) -> int:
    """How many there are."""
    text = str(import_model(function, args, context=new_context()).module)
    return sum(text.count(f"linalg.{name} ") for name in ("matmul", "batch_matmul"))


JOINED: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]]]] = {
    "right": (lambda a, b, v: a @ v + b @ v, [(7, 5), (7, 5), (5, 9)]),
    "left": (lambda v, a, b: v @ a + v @ b, [(129, 7), (7, 33), (7, 33)]),
    "gram": (lambda g, v: g @ v + (v.transpose(1, 2) @ g).transpose(1, 2), [(3, 7, 7), (3, 7, 33)]),
    "turned": (lambda a, b, v: (v.t() @ a.t()).t() + b.t() @ v, [(7, 5), (5, 7), (5, 9)]),
}


@pytest.mark.parametrize("name", JOINED)
def test_one_product_gives_the_same(name: str) -> None:
    function, shapes = JOINED[name]
    torch.manual_seed(0)
    args = [torch.randn(shape) for shape in shapes]
    assert products(function, *args) == 1
    found = kitsune_mlir.compile(function, tuple(args), target="host", options={"cache": False})(*args)
    torch.testing.assert_close(found.double(), function(*(a.double() for a in args)), rtol=1e-5, atol=1e-5)


def test_gradients_of_a_matrix_with_its_own_transpose() -> None:
    v = torch.nn.Parameter(torch.randn(3, 7, 33))
    exact = v.detach().double().requires_grad_()
    loss = lambda x: ((x @ x.transpose(1, 2)) ** 3).sum()  # noqa: E731
    loss(exact).backward()
    torch.compile(loss, backend="kitsune", options={"guard": False, "cache": False})(v).backward()
    assert v.grad is not None and exact.grad is not None
    torch.testing.assert_close(v.grad.double(), exact.grad, rtol=1e-4, atol=1e-2)


APART: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]]]] = {
    "no common factor": (lambda a, b, v: a @ v + v.t() @ b, [(5, 5), (5, 5), (5, 5)]),
    "large factors": (lambda a, b, v: a @ v + b @ v, [(7, 500), (7, 500), (500, 9)]),
    "a product that is read elsewhere": (lambda a, b, v: (a @ v + b @ v) * (a @ v), [(7, 5), (7, 5), (5, 9)]),
    "a scaled sum": (lambda a, b, v: torch.add(a @ v, b @ v, alpha=2), [(7, 5), (7, 5), (5, 9)]),
    "a sum of other shapes": (lambda a, b, v: a @ v + b @ v, [(7, 5), (1, 5), (5, 9)]),
}


@pytest.mark.parametrize("name", APART)
def test_what_stays_two_products(name: str) -> None:
    function, shapes = APART[name]
    assert products(function, *[torch.randn(shape) for shape in shapes]) == 2
