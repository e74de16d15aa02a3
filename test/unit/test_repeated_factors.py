"""Products whose right factor is repeated for several left ones read it once (`frontend/repeated_factors.py`)."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import kitsune_mlir
from kitsune_mlir.dialects import new_context
from kitsune_mlir.frontend.importer import import_model


def repeated(x: Tensor, times: int) -> Tensor:
    """As Transformers repeats heads of keys and values: [B, G, S, E] to [B, G * times, S, E]."""
    batch, groups, length, width = x.shape
    return x[:, :, None].expand(batch, groups, times, length, width).reshape(batch, groups * times, length, width)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    times = q.shape[1] // k.shape[1]
    return F.scaled_dot_product_attention(q, repeated(k, times), repeated(v, times))


SHARED: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]], str]] = {
    "heads": (attention, [(1, 8, 1, 16), (1, 2, 33, 16), (1, 2, 33, 16)], "2x4x33"),
    "one group": (attention, [(1, 4, 3, 8), (1, 1, 7, 8), (1, 1, 7, 8)], "12x7"),
    "batch": (attention, [(4, 4, 1, 8), (4, 2, 129, 8), (4, 2, 129, 8)], "8x2x129"),
    "as it lies": (lambda q, k: torch.bmm(q, k.permute(1, 2, 0)[:, None].expand(2, 3, 5, 7).reshape(6, 5, 7)),
                   [(6, 1, 5), (7, 2, 5)], "2x3x7"),
}  # fmt: skip


@pytest.mark.rotated(2)
@pytest.mark.parametrize("name", SHARED)
def test_a_repeated_factor_is_read_once(name: str) -> None:
    function, shapes, product = SHARED[name]
    torch.manual_seed(0)
    args = [torch.randn(shape) for shape in shapes]
    text = str(import_model(function, tuple(args), context=new_context()).module)
    assert any(product in line.rpartition("->")[2] for line in text.splitlines() if "matmul" in line), text
    found = kitsune_mlir.compile(function, tuple(args), target="host", options={"cache": False})(*args)
    torch.testing.assert_close(found.double(), function(*(a.double() for a in args)), rtol=1e-5, atol=1e-5)


APART: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]]]] = {
    "whole batches repeated": (lambda q, k: torch.bmm(q, k[None].expand(3, 2, 5, 7).reshape(6, 5, 7)), [(6, 1, 5), (2, 5, 7)]),
    "a repeated row": (lambda q, k: torch.bmm(q, k.expand(2, 5, 7)), [(2, 3, 5), (2, 1, 7)]),
}


@pytest.mark.parametrize("name", APART)
def test_what_is_repeated_otherwise_stays(name: str) -> None:
    function, shapes = APART[name]
    args = [torch.randn(shape) for shape in shapes]
    found = kitsune_mlir.compile(function, tuple(args), target="host", options={"cache": False})(*args)
    torch.testing.assert_close(found.double(), function(*(a.double() for a in args)), rtol=1e-5, atol=1e-5)
