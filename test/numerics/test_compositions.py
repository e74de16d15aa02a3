"""Operators that are sums, products and searches: covariances, distances, histograms, small systems, what is not zero."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import kitsune_mlir
from bench.sweeps import Function
from kitsune_mlir.errors import FrontendError
from test.gpu.unassembled import unassembled
from test.numerics.gradients import wrong
from test.programs.compiled import planned_for_gpu
from test.rotation import in_turn

solve = torch.linalg.solve_triangular


def near_one(x: Tensor, n: int) -> Tensor:
    """A square matrix of which neither triangle is near singular."""
    return x[:n, :n] / n + 2 * torch.eye(n, dtype=x.dtype)


FORMS: dict[str, Callable[[Tensor], Any]] = {
    "cov": torch.cov,
    "cov of all": lambda x: torch.cov(x, correction=0),
    "cov of a vector": lambda x: torch.cov(x[0]),
    "cov of one observation": lambda x: torch.cov(x[:, :1]),
    "corrcoef": torch.corrcoef,
    "corrcoef of a vector": lambda x: torch.corrcoef(x[1]),
    "rrelu": lambda x: F.rrelu(x, 0.1, 0.4, training=False),
    "gaussian loss": lambda x: F.gaussian_nll_loss(x, x * 2, x.abs()),
    "gaussian loss of rows": lambda x: F.gaussian_nll_loss(x, x * 2, x.abs()[:, 0], full=True, eps=0.1, reduction="sum"),
    "gaussian loss, one variance": lambda x: F.gaussian_nll_loss(x, x * 2, x.abs()[:, :1], reduction="none"),
    "gaussian loss, a number": lambda x: F.gaussian_nll_loss(x, x * 2, 0.5),
    "gaussian loss, a module": lambda x: nn.GaussianNLLLoss()(x, x * 2, x.exp()),
    "pdist": torch.pdist,
    "pdist 1": lambda x: torch.pdist(x, 1.0),
    "pdist 3": lambda x: torch.pdist(x, 3.0),
    "pdist, largest": lambda x: torch.pdist(x, math.inf),
    "pdist, counts": lambda x: torch.pdist(x.round(), 0.0),
    "lower": lambda x: solve(near_one(x, 8), x[:8], upper=False),
    "upper": lambda x: solve(near_one(x, 3), x[:3], upper=True),
    "lower, ones": lambda x: solve(near_one(x, 5), x[:5, :1], upper=False, unitriangular=True),
    "upper from the right": lambda x: solve(near_one(x, 4), x[:, :4], upper=True, left=False),
    "systems of a batch": lambda x: solve(torch.stack([near_one(x, 4), near_one(-x, 4)]), x[:4], upper=False),
    "not zero": lambda x: torch.nonzero_static(x > 0.5, size=40),
    "not zero, fewer": lambda x: torch.nonzero_static(x > 0.5, size=3000, fill_value=-7),
    "not zero in 3 dimensions": lambda x: torch.nonzero_static(x.round().reshape(3, -1, x.shape[1]), size=50),
}
HISTOGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "histogram": lambda x: torch.histogram(x, 10, range=(-2.0, 2.0)),
    "many bins": lambda x: torch.histogram(x, 200, range=(-1.5, 2.0)),
    "all": lambda x: torch.histogram(x, 10),
    "one number": lambda x: torch.histogram(x * 0 + 3, 4),
    "weights": lambda x: torch.histogram(x, 7, range=(-2.0, 2.0), weight=x.abs()),
    "density": lambda x: torch.histogram(x, 7, range=(-2.0, 2.0), density=True),
    "edges": lambda x: torch.histogram(x, torch.tensor([-1.0, 0.0, 0.5, 2.0], dtype=x.dtype)),
}
SHAPES = [(9, 11), (12, 129), (33, 1000)]


def by_both(function: Callable[..., Any], *args: Tensor) -> list[list[Tensor]]:
    """Results of the host's program, and of the one that was planned for a GPU."""
    program = kitsune_mlir.compile(Function(function), args, target="host")
    return [tree_leaves(p(*args)) for p in (program, planned_for_gpu(Function(function), *args))]


@pytest.mark.parametrize(
    ("form", "shape", "dtype"),
    in_turn([(f, s, d) for f in FORMS for s in SHAPES for d in (torch.float32, torch.float64)], 12),
    ids=str,
)
def test_against_float64(form: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(sum(shape))
    x = torch.randn(shape, dtype=dtype)
    wanted, plain = tree_leaves(FORMS[form](x.double())), tree_leaves(FORMS[form](x))
    close = 1e-5 if dtype == torch.float32 else 1e-12
    for results in by_both(FORMS[form], x):
        for found, right, eager in zip(results, wanted, plain, strict=True):
            assert found.dtype == eager.dtype
            torch.testing.assert_close(found.double(), right.double(), rtol=close, atol=close, equal_nan=True)


@pytest.mark.parametrize(
    ("form", "shape", "dtype"),
    in_turn([(f, s, d) for f in HISTOGRAMS for s in SHAPES for d in (torch.float32, torch.float64)], 6),
    ids=str,
)
def test_histograms(form: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Counts and edges of PyTorch; numbers on edges, outside and without an order among them."""
    torch.manual_seed(sum(shape))
    x = torch.randn(shape, dtype=dtype)
    if form not in ("all", "one number"):
        x[0, :4] = torch.tensor([-2.0, 2.0, 0.5, math.nan], dtype=dtype)
    counts, edges = HISTOGRAMS[form](x)
    for found, found_edges in by_both(HISTOGRAMS[form], x):
        torch.testing.assert_close(found_edges, edges, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(found, counts, rtol=1e-5, atol=1e-5)


def test_a_negative_variance_gives_no_number() -> None:
    """For which PyTorch raises an error."""
    x, var = torch.randn(3, 5), torch.ones(3, 5)
    var[1, 2] = -1
    for (found,) in by_both(lambda x, var: F.gaussian_nll_loss(x, x + 1, var, reduction="none"), x, var):
        assert torch.equal(torch.isnan(found), var < 0)
    with pytest.raises(FrontendError, match="incorrect size"):
        kitsune_mlir.compile(lambda x, var: F.gaussian_nll_loss(x, x, var), (x, torch.ones(2, 5)), target="host")
    with pytest.raises(ValueError, match="negative"):  # PyTorch's own is there again
        F.gaussian_nll_loss(x, x, var)


def test_a_singular_system_gives_infinities_as_in_pytorch() -> None:
    a, b = torch.tensor([[1.0, 0], [2, 0]]), torch.tensor([[1.0], [3]])
    for (found,) in by_both(lambda a, b: solve(a, b, upper=False), a, b):
        assert torch.equal(found, solve(a, b, upper=False))


TRAINED = ("rrelu", "pdist", "pdist 1", "pdist 3", "pdist, largest", "lower", "upper from the right", "systems of a batch")


@pytest.mark.parametrize("form", TRAINED)
def test_gradients(form: str) -> None:
    torch.manual_seed(0)
    assert wrong(FORMS[form], [torch.randn(9, 9)]) == []


def test_torch_compile_has_no_islands() -> None:
    def every(x: Tensor) -> Any:
        return [FORMS[form](x) for form in (*TRAINED, "not zero")] + [*HISTOGRAMS["histogram"](x)]

    torch.manual_seed(0)
    x = torch.randn(9, 33)
    fast = torch.compile(every, backend="kitsune", options={"require_full": True}, fullgraph=True)
    for found, wanted in zip(fast(x), every(x), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_on_the_gpu() -> None:
    """All have code, and but for the search and its counts, in one engine."""

    def every(x: Tensor) -> Any:
        return [function(x) for function in FORMS.values()]

    with unassembled():
        program = kitsune_mlir.compile(Function(every), (torch.rand(9, 33),), target="h200")
    assert {engine["engine"] for engine in program.summary["engines"]} <= {"simt", "scan", "mma", "generic"}
