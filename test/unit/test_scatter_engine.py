"""The scatter engine: which reductions it uses, and what it leaves to others."""

import re

import pytest
import torch

import kitsune_mlir
from kitsune_mlir.codegen.gpu.contraction.row_addition import widest
from test.unit.test_scatter_ordered import Sum


def compiled(columns: int, dtype: torch.dtype, updates: int = 1000):
    args = (torch.randn(updates, columns).to(dtype), torch.randint(0, 50, (updates,)))
    return kitsune_mlir.compile(Sum(50, columns, dtype), args, target="sm_90a")


@pytest.mark.parametrize(
    "columns, dtype, reduction",
    [
        (128, torch.bfloat16, "v4.bf16x2"),
        (4, torch.bfloat16, "v2.bf16x2"),
        (6, torch.float16, "f16x2"),
        (128, torch.float32, "v4.f32"),
        (7, torch.float32, "f32"),
    ],
)
def test_the_widest_reduction_that_fits(columns: int, dtype: torch.dtype, reduction: str) -> None:
    program = compiled(columns, dtype)
    engines = {e["task"]: e["engine"] for e in program.summary["engines"]}
    assert engines["scatter_0"] == "scatter"
    assert {
        r.split(".add.")[-1].removeprefix("noftz.") for r in re.findall(r"red\.relaxed\.[a-z0-9._]*", program.ir("ptx"))
    } == {reduction}
    assert program.summary["kernels"][0]["spill_store_bytes"] == 0


def test_odd_rows_of_16_bits_are_added_one_by_one() -> None:
    program = compiled(7, torch.bfloat16)
    task = next(e for e in program.summary["engines"] if e["task"] == "scatter_0")
    assert task["engine"] == "scatter"
    assert "red.relaxed.gpu.global.add.noftz.bf16 " in program.ir("ptx")


def test_offsets_limit_the_width() -> None:
    assert widest("bf16", 64, [0, 256]) == 8
    assert widest("bf16", 64, [8]) == 4
    assert widest("f32", 6, [0]) == 2
    assert widest("bf16", 3, [0]) is None
    assert widest("i1", 4, [0]) is None
