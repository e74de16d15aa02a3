"""Rows that are put at others, of which a call has fewer than a GPU's kernel was compiled for, run on the processor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kitsune_mlir.frontend.scatter_rows import counted
from kitsune_mlir.frontend.valid_rows import valid_rows
from test.programs.emulated import emulated, engines
from test.programs.live import compiled, ends

R = torch.randn


def summed(x: Tensor, w: Tensor, index: Tensor, start: Tensor, count: Tensor) -> tuple[Tensor, ...]:
    """Messages summed at nodes: the first `count` of them."""
    sent = torch.softmax(x * w, -1)
    with counted(count, len(x)) as rows:
        total = start.index_add(0, index, sent)
    assert rows.used == [True]
    return (torch.tanh(total),)


def check(program: Any, args: tuple[Tensor, ...], counts: tuple[int, ...]) -> None:
    """What is behind the count is numbers that would show, and places out of range."""
    x, w, index, start = args
    for n in counts:
        worse, there = x.clone(), index.clone()
        worse[n:], there[n:] = float("nan"), 7_000_000
        sent = torch.softmax(x[:n].double() * w.double(), -1)
        want = torch.tanh(start.double().index_add(0, index[:n].long(), sent))
        (got,) = emulated(program, (worse, w, there, start, torch.tensor(n)), [want.float()])
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.rotated(1)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_messages_end_at_their_count(dtype: torch.dtype):
    """What makes them does no more than are counted, and nothing behind is put anywhere."""
    args = R(200, 24), R(24), torch.randint(0, 30, (200,), dtype=dtype), R(30, 24)
    program = compiled(summed, *args, torch.tensor(200))
    assert sum("at the count" in words for words in ends(program)) >= 2
    check(program, args, (0, 1, 63, 64, 129, 199, 200))


def test_rows_in_memory():
    """Rows that another stage makes are put there by a stage of their own, whose tiles end where they do."""

    def function(x: Tensor, w: Tensor, index: Tensor, start: Tensor, count: Tensor) -> tuple[Tensor, ...]:
        sent = torch.softmax(x * w, -1)
        with counted(count, len(x)):
            total = start.index_add(0, index, sent)
        return torch.tanh(total), valid_rows(sent, count, len(x))

    x, w, index, start = args = R(150, 16), R(16), torch.randint(0, 9, (150,)), R(9, 16)
    program = compiled(function, *args, torch.tensor(150))
    assert engines(program)[0] == "simt" and "scatter" in engines(program)
    assert all("at the count" in ends(program)[number] for number in (0, engines(program).index("scatter")))
    for n in (1, 64, 65, 150):
        worse, there = x.clone(), index.clone()
        worse[n:], there[n:] = float("nan"), -1
        sent = torch.softmax(x[:n].double() * w.double(), -1)
        want = torch.tanh(start.double().index_add(0, index[:n], sent))
        like = [want.float(), torch.empty(150, 16)]
        got, rows = emulated(program, (worse, w, there, start, torch.tensor(n)), like)
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(rows[:n].double(), sent, rtol=1e-5, atol=1e-5)
        assert n <= int(rows.isfinite().all(-1).sum()) < 150 or n == 150


def test_where_no_atomic_does_it_all_rows_are_looked_at():
    program = compiled(summed, R(90, 8), R(8), torch.randint(0, 12, (90,)), R(12, 8), torch.tensor(90), deterministic=True)
    assert "ordered" in engines(program) and not any("at the count" in words for words in ends(program))
