"""Scatters of every form against torch: by the host's code, by the GPU's plan, and that no form is left to one block."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import kitsune_mlir
from bench.sweeps import Function
from test.programs.compiled import planned_for_gpu
from test.rotation import todays

SIZES = [(7, 1, 1), (129, 1000, 7), (1, 129, 3), (300, 129, 64)]
"""Rows of the result, rows that are added, columns."""


def forms(n: int, e: int, d: int, dtype: torch.dtype) -> dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]]:
    """Functions and their inputs, by name."""

    def number(*sizes: int) -> Tensor:
        return (8 * torch.randn(*sizes)).to(dtype)

    def index(most: int, *sizes: int) -> Tensor:
        return torch.randint(0, most, sizes)

    x, y, rows, edges, full = number(n, d), number(e, d), index(n, e), index(n, 2, e), index(n, e, d)
    part = full[: e // 2 + 1, : max(1, d - 1)]
    found = {
        "expanded": (lambda x, i, y: x.scatter_add(0, i[:, None].expand(e, d), y), (x, rows, y)),
        "expanded slice": (lambda x, i, y: x.scatter_add(0, i[1][:, None].expand(-1, d), y), (x, edges, y)),
        "rows by a slice": (lambda x, i, y: x.index_add(0, i[1], y), (x, edges, y)),
        "ones": (lambda x, i: x.index_add(0, i, torch.ones(e, d, dtype=x.dtype)), (x, rows)),
        "elements": (lambda x, i, y: x.scatter_add(0, i, y), (x, full, y)),
        "elements of a part": (lambda x, i, y: x.scatter_add(0, i, y), (x, part, y)),
        "along columns": (lambda x, i, y: x.scatter_add(1, i, y), (x, index(d, n, 5), number(n, 5))),
        "expanded columns": (lambda x, i, y: x.scatter_add(-1, i.expand(n, -1), y), (x, index(d, 9), number(n, 9))),
        "three dimensions": (lambda x, i, y: x.scatter_add(1, i, y), (number(3, n, d), index(n, 3, 4, d), number(3, 4, d))),
        "vector": (lambda x, i, y: x.scatter_add(0, i, y), (number(n), rows, number(e))),
    }
    if dtype.is_floating_point:
        for reduce in ("sum", "mean"):
            for own in (True, False):
                given = {"reduce": reduce, "include_self": own}
                found[f"{reduce} {own}"] = (lambda x, i, y, g=given: x.scatter_reduce(0, i, y, **g), (x, full, y))
                found[f"{reduce} {own} of rows"] = (
                    lambda x, i, y, g=given: x.scatter_reduce(0, i[:, None].expand(e, d), y, **g),
                    (x, rows, y),
                )
    return found


@pytest.mark.parametrize(
    "sizes, dtype", todays([(s, t) for s in SIZES for t in (torch.float32, torch.float64, torch.int64)], 2), ids=str
)
def test_scatters_are_torchs(sizes, dtype):
    torch.manual_seed(sum(sizes))
    for name, (function, args) in forms(*sizes, dtype).items():
        wide = [a.double() if a.is_floating_point() else a for a in args]
        wanted = function(*wide)
        for program in (
            kitsune_mlir.compile(Function(function), args, target="host"),
            planned_for_gpu(Function(function), *args),
        ):
            found = program(*args)
            assert found.dtype == dtype and found.shape == wanted.shape, name
            limit = 1e-5 if dtype == torch.float32 else 1e-12
            assert (found.double() - wanted).abs().max() <= limit * max(1.0, float(wanted.abs().max())), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_no_scatter_is_left_to_one_block(dtype):
    """Sums of rows and of elements are dealt out; indices that are slices, and rows that are constants, too."""
    for name, (function, args) in forms(500, 3000, 16, dtype).items():
        program = kitsune_mlir.compile(Function(function), args, target="sm_90a")
        slow = [task for task in program.summary["engines"] if task["engine"] == "generic"]
        assert not slow, f"{name}: {slow}"
        assert any(task["engine"] == "scatter" and task["tiles"] > 1 for task in program.summary["engines"]), name
