"""Products of few rows whose columns are read in parts: right in any form, for one row, one part, one element, too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from bench.sweeps import Function
from test.numerics.compare import exact, problems
from test.programs.compiled import planned_for_gpu

CASES: dict[str, tuple[Callable[..., object], tuple[tuple[int, ...], ...]]] = {
    "one element": (lambda x, w: x @ w, ((1, 1), (1, 1))),
    "one column": (lambda x, w: F.linear(x, w).relu(), ((7, 1), (1, 1))),
    "of columns": (lambda x, w: torch.chunk(x @ w, 2, 1), ((1, 16), (16, 8))),
    "of rows of weights": (lambda x, w: [t.sigmoid() for t in torch.chunk(F.linear(x, w), 4, -1)], ((3, 16), (8, 16))),
    "single columns": (lambda x, w: [t.sigmoid() for t in torch.chunk(F.linear(x, w), 8, -1)], ((3, 16), (8, 16))),
    "gated": (lambda x, w, b: F.glu(F.linear(x, w, b)), ((2, 3, 16), (14, 16), (14,))),
    "three dimensions": (lambda x, w: torch.stack(F.linear(x, w).chunk(3, -1)), ((2, 5, 33), (27, 33))),
    "uneven": (lambda x, w: F.linear(x, w).split([3, 5], -1), ((4, 16), (8, 16))),
}


@pytest.mark.rotated(6)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_against_float64(name: str, dtype: torch.dtype) -> None:
    run, shapes = CASES[name]
    model, args = Function(run), tuple(torch.randn(*shape).to(dtype) for shape in shapes)
    assert problems(planned_for_gpu(model, *args)(*args), exact(model, args), model(*args)) == []
