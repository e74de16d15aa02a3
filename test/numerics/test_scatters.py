"""Scatters of every form against torch: by the host's code, by the GPU's plan, and that no form is left to one block."""

from __future__ import annotations

import zlib

import pytest
import torch
from torch import Tensor

import kitsune_mlir
from bench.sweeps import Function
from test.gpu.unassembled import unassembled
from test.numerics.compare import beside_eager
from test.programs.compiled import planned_for_gpu
from test.programs.scatters import forms
from test.rotation import in_turn

SIZES = [(7, 1, 1), (129, 300, 7), (1, 129, 3), (60, 129, 64)]
"""Rows of the result, rows that are put there, columns."""
DTYPES = [torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.float16, torch.int32, torch.bool, torch.uint8]
LIMITS = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
CASES = [(s, t, name) for t in DTYPES for name in forms(7, 3, 2, t) for s in SIZES]
EVERYWHERE = ("expanded", "amax alone of rows", "index_put", "index_copy of columns")
"""Forms that each turn has, of f32."""
THIS_TURN = [(SIZES[1], torch.float32, name) for name in EVERYWHERE] + in_turn(CASES, 9)


def torchs(function, args) -> Tensor | None:
    """What torch gives in f64; None where it does not take the types."""
    try:
        return function(*(a.double() if a.is_floating_point() else a for a in args))
    except (RuntimeError, IndexError):
        return None


@pytest.mark.parametrize("sizes, dtype, name", THIS_TURN, ids=str)
def test_scatters_are_torchs(sizes, dtype, name):
    torch.manual_seed(zlib.crc32(f"{sizes} {dtype} {name}".encode()))
    rows, updates, columns = sizes
    function, args = forms(rows, updates, columns, dtype)[name]
    if (wanted := torchs(function, args)) is None:
        return
    for program in (
        kitsune_mlir.compile(Function(function), args, target="host"),
        planned_for_gpu(Function(function), *args),
    ):
        found = program(*args)
        assert found.dtype == dtype and found.shape == wanted.shape
        limit = LIMITS.get(dtype, 1e-12 if dtype.is_floating_point else 0.0)
        scale = max(1.0, float(wanted.double().abs().max()))
        assert (found.double() - wanted.double()).abs().max() <= limit * scale


@pytest.mark.rotated(3)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["index_add", "scatter_add", "scatter_reduce"])
def test_sums_of_many_are_rounded_once_on_the_host(name: str, dtype: torch.dtype) -> None:
    """100 numbers a place: sums that are rounded each time are five times as far off as PyTorch's."""
    torch.manual_seed(0)
    index, more = torch.randint(0, 3, (300,)), {"scatter_reduce": ("sum",)}.get(name, ())

    class Sums(torch.nn.Module):
        def forward(self, x: Tensor, y: Tensor, at: Tensor) -> Tensor:
            return getattr(torch, name)(x, 0, at if name == "index_add" else at[:, None].expand(-1, 8), y, *more)

    args = (torch.randn(3, 8).to(dtype), torch.randn(300, 8).to(dtype), index)
    assert beside_eager(Sums(), args, kitsune_mlir.compile(Sums(), args, target="host")(*args)) == []


@pytest.mark.rotated(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16, torch.bool], ids=str)
def test_no_scatter_is_left_to_one_block(dtype):
    """Sums of rows and of elements are dealt out; indices that are slices, and rows that are constants, too."""
    all_forms = forms(500, 3000, 16, dtype)
    for name in sorted(in_turn(list(all_forms), 5)):
        function, args = all_forms[name]
        if torchs(function, args) is None:
            continue
        with unassembled():
            program = kitsune_mlir.compile(Function(function), args, target="sm_90a")
        slow = [task for task in program.summary["engines"] if task["engine"] == "generic"]
        assert not slow, f"{name}: {slow}"
        assert not program.summary.get("slow"), f"{name}: {program.summary['slow']}"
        scattered = [task for task in program.summary["engines"] if task["engine"] == "scatter"]
        assert all(task["tiles"] > 1 for task in scattered), name
