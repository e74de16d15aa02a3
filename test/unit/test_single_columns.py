"""Sums over rows whose threads have vectors of columns: at the end each has a single one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from test.programs.emulated import compiled, emulated


def step(given: Tensor, mean: Tensor, square: Tensor, old: Tensor, rate: Tensor) -> tuple[Tensor, ...]:
    """A bias's gradient, and what AdamW makes of it."""
    gradient = given.float().sum(0)
    mean, square = torch.lerp(mean.float(), gradient, 0.1), 0.999 * square.float() + 0.001 * gradient * gradient
    return mean.to(old.dtype), square.to(old.dtype), (old.float() - rate * mean / (square.sqrt() + 1e-3)).to(old.dtype)


def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """A gain's gradient and a bias's, and the largest of a column, which is no sum."""
    return (x.float() * y.float()).sum(0).to(x.dtype), x.amax(0)


@pytest.mark.parametrize(("rows", "columns", "dtype"), [
    (2500, 64, torch.bfloat16), (129, 24, torch.bfloat16), (1000, 40, torch.float32), (1, 16, torch.bfloat16),
])  # fmt: skip
def test_an_update_after_sums_over_rows(rows: int, columns: int, dtype: torch.dtype) -> None:
    args = [torch.randn(rows, columns), *(torch.rand(columns) for _ in range(3))]
    args = [*(one.to(dtype) for one in args), torch.tensor(0.1)]
    found = emulated(compiled(step, args), args, [torch.empty(columns, dtype=dtype)] * 3)
    exact = step(*(one.double() for one in args))
    for one, wanted in zip(found, exact, strict=True):
        assert (one.double() - wanted).abs().max() < (0.02 if dtype == torch.bfloat16 else 1e-4) * wanted.abs().max()


@pytest.mark.parametrize(("rows", "columns"), [(600, 40), (7, 1000)])
def test_several_reductions_of_columns(rows: int, columns: int) -> None:
    args = [torch.randn(rows, columns).bfloat16() for _ in range(2)]
    found = emulated(compiled(both, args), args, [torch.empty(columns).bfloat16()] * 2)
    wanted = both(*(one.double() for one in args))
    assert (found[0].double() - wanted[0]).abs().max() < 0.01 * wanted[0].abs().max()
    assert torch.equal(found[1].double(), wanted[1])


def test_blocks_that_share_columns_hand_over_what_each_thread_has() -> None:
    args = [torch.randn(4096, 16).bfloat16(), *(torch.rand(16).bfloat16() for _ in range(3)), torch.tensor(0.1)]
    program = compiled(step, args)
    (task,) = program.summary["engines"]
    assert task["parameters"]["pieces"] > 1 and task["parameters"]["width"] > 1
    for one, wanted in zip(
        emulated(program, args, [torch.empty(16).bfloat16()] * 3, blocks=5), step(*(one.double() for one in args)), strict=True
    ):
        assert (one.double() - wanted).abs().max() < 0.02 * wanted.abs().max()
