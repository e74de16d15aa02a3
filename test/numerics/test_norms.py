"""Norms, cosines and powers of all exponents with a way of their own, against torch in float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import kitsune_mlir
from bench.sweeps import Function
from test.numerics.compare import exact, problem
from test.programs.compiled import planned_for_gpu
from test.rotation import in_turn

ORDERS = (0, 0.5, 1, 2, 3, float("inf"), float("-inf"))
EXPONENTS = (0, 1, 1.0, 2, 2.0, 3, 4, 0.5, -0.5, -1, -2, 1.7)
FORMS: dict[str, Callable[..., Any]] = {
    **{f"norm {p} of rows": lambda x, y, p=p: torch.linalg.vector_norm(x, p, -1) for p in ORDERS},
    **{f"norm {p} of all": lambda x, y, p=p: torch.linalg.vector_norm(x, p) for p in ORDERS},
    "norm of columns, kept": lambda x, y: x.norm(dim=0, keepdim=True),
    "norm in f32": lambda x, y: torch.linalg.vector_norm(x, dtype=torch.promote_types(x.dtype, torch.float32)),
    "normalize": lambda x, y: F.normalize(x, dim=-1),
    "distance": F.pairwise_distance,
    "cosine": lambda x, y: F.cosine_similarity(x, y, -1),
    "cosine of columns": lambda x, y: F.cosine_similarity(x, y, 0),
    "cosine of all pairs": lambda x, y: F.cosine_similarity(x[:, None], y[None], -1),
    "cosine of short vectors": lambda x, y: F.cosine_similarity(1e-4 * x, y, -1, eps=0.01),
    **{f"power {e!r}": lambda x, y, e=e: x**e for e in EXPONENTS},
}
SHAPES = [(7, 129), (3, 1000), (63, 5), (1, 1)]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
CASES = list(itertools.product(FORMS, SHAPES, DTYPES))


@pytest.mark.parametrize("form, shape, dtype", in_turn(CASES, 4), ids=str)
def test_as_in_float64(form: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """On the host, and as planned for a GPU; with a row of NaN, infinities and a negative zero where there are rows."""
    torch.manual_seed(sum(shape))
    x, y = (torch.randn(shape).to(dtype) for _ in range(2))
    model = Function(FORMS[form])
    for special in (False, True):
        if special:
            if shape[0] < 4 or "of all" in form or (dtype == torch.float16 and "power" in form):
                continue  # PyTorch's own powers of f16 have other roots of infinities and zeros on a processor than on a GPU
            x[0, 0], x[1, 1], x[2, 2], x[3, 3] = float("nan"), float("inf"), -0.0, float("-inf")
        wanted, eager = exact(model, (x, y)), model(x, y)
        for program in (kitsune_mlir.compile(model, (x, y), target="host"), planned_for_gpu(model, x, y)):
            got = program(x, y)
            assert got.dtype == eager.dtype
            assert (found := problem(got, wanted, eager)) is None, found
