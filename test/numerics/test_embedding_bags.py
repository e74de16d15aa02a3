"""Bags of embeddings against torch: bags of one size and of any, weighted, with padding, empty ones."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kitsune_mlir
from bench.sweeps import Function
from test.gpu.unassembled import unassembled
from test.programs.compiled import planned_for_gpu
from test.rotation import in_turn

LIMITS = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float64: 1e-12}
CASES = list(itertools.product(("sum", "mean", "max"), (None, 3), (1, 7, 64), LIMITS, ("matrix", "offsets", "last offset")))


def call(mode: str, padding: int | None, width: int, dtype: torch.dtype, form: str) -> tuple[Any, tuple[Tensor, ...]]:
    """A function and its inputs."""
    table, indices = torch.randn(50, width).to(dtype), torch.randint(0, 50, (19, 5))
    indices[2] = 3  # a bag of nothing but padding
    weights = [(1 + torch.rand(indices.shape)).to(dtype)] if mode == "sum" else []
    given: dict[str, Any] = {"mode": mode, "padding_idx": padding, "include_last_offset": form == "last offset"}
    if form == "matrix":
        return (
            lambda t, i, *w: F.embedding_bag(i, t, per_sample_weights=w[0] if w else None, **given),
            (table, indices, *weights),
        )
    starts = torch.tensor([0, 4, 4, 5, 41, 90, *([95] if form == "last offset" else [])])
    return (
        lambda t, i, o, *w: F.embedding_bag(i, t, o, per_sample_weights=w[0] if w else None, **given),
        (table, indices.reshape(-1), starts, *(w.reshape(-1) for w in weights)),
    )


@pytest.mark.parametrize("mode, padding, width, dtype, form", in_turn(CASES, 2), ids=str)
def test_bags_are_torchs(mode: str, padding: int | None, width: int, dtype: torch.dtype, form: str) -> None:
    torch.manual_seed(width)
    function, args = call(mode, padding, width, dtype, form)
    wanted = function(*(a.double() if a.is_floating_point() else a for a in args))
    for program in (
        kitsune_mlir.compile(Function(function), args, target="host"),
        planned_for_gpu(Function(function), *args),
    ):
        found = program(*args)
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), wanted, rtol=LIMITS[dtype], atol=LIMITS[dtype] * float(wanted.abs().max()))


class Bags(nn.Module):
    """Bags of several tables side by side."""

    def __init__(self, tables: int, rows: int, width: int, mode: str):
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode=mode) for _ in range(tables))

    def forward(self, indices: Tensor) -> tuple[Tensor, ...]:
        return tuple(bag(indices[n]) for n, bag in enumerate(self.bags))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_one_size_are_read_and_reduced_at_once(mode: str) -> None:
    model = Bags(26 if mode == "sum" else 3, 1000, 64, mode)
    indices = torch.randint(0, 1000, (len(model.bags), 2048, 10))
    with unassembled():
        program = kitsune_mlir.compile(model, (indices,), target="sm_90a")
    engines = [task["engine"] for task in program.summary["engines"]]
    assert set(engines) == {"simt"} and len(engines) <= len(model.bags)
    assert not program.summary["slow"]


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_between_offsets_are_left_to_no_single_block(mode: str) -> None:
    args = (torch.randn(2000, 64), torch.randint(0, 2000, (40_000,)), torch.arange(0, 40_000, 10))
    with unassembled():
        program = kitsune_mlir.compile(Function(lambda t, i, o: F.embedding_bag(i, t, o, mode=mode)), args, target="sm_90a")
    assert not [task for task in program.summary["engines"] if task["engine"] == "generic"]
    assert not program.summary["slow"]
