"""Sums of few rows in zeros, of which only the rows that something is added to are in memory (`frontend/touched_rows.py`)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import kitsune_mlir
from kitsune_mlir.dialects import new_context
from kitsune_mlir.frontend import touched_rows
from kitsune_mlir.frontend.importer import import_model
from test.emulators.atomics import AtomicBlock
from test.programs import emulated


class Update(nn.Module):
    """A gradient of some rows, and an optimizer's update that reads it twice."""

    def __init__(self, rows: int, width: int, dtype: torch.dtype = torch.float32, start: float = 0.0):
        super().__init__()
        self.shape, self.dtype, self.start = (rows, width), dtype, start

    def forward(self, p: Tensor, m: Tensor, index: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        sums = torch.full(self.shape, self.start, dtype=self.dtype).index_add(0, index, rows)
        m = m * 0.9 + sums * 0.1
        return p - m / (sums.abs() + 1), m


def args_of(model: Update, count: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    p, m = torch.randn(model.shape, dtype=dtype), torch.randn(model.shape, dtype=dtype)
    # Some rows several times, and the first and the last one.
    index = torch.cat([torch.randint(0, model.shape[0], (count - 2,)), torch.tensor([0, model.shape[0] - 1])])
    index[: count // 3] = index[count // 2 : count // 2 + count // 3]
    return p, m, index, torch.randn(count, model.shape[1], dtype=dtype)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(touched_rows, "LEAST_BYTES", 0)


def is_by_place(model: nn.Module, args: tuple[Tensor, ...]) -> bool:
    """Whether the sums are in a small tensor."""
    text = str(import_model(model, args, context=new_context()).module)
    return text.count("tm_tensor.scatter") == 2


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("rows, count, width", [(1000, 129, 33), (4003, 7, 16), (517, 100, 129)])
def test_sums_of_few_rows(rows: int, count: int, width: int) -> None:
    model = Update(rows, width)
    args = args_of(model, count)
    assert is_by_place(model, args)
    found = kitsune_mlir.compile(model, args, target="host", options={"cache": False})(*args)
    want = Update(rows, width, torch.float64)(*(a.double() if a.is_floating_point() else a for a in args))
    for mine, exact in zip(found, want, strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("rows, count, width", [(700, 33, 16), (129, 7, 64)])
def test_kernels_of_a_gpu(rows: int, count: int, width: int) -> None:
    model = Update(rows, width)
    args = args_of(model, count)
    program = emulated.compiled(model, args)
    assert is_by_place(model, args)
    found = emulated.emulated(program, args, model(*args), block=AtomicBlock)
    want = Update(rows, width, torch.float64)(*(a.double() if a.is_floating_point() else a for a in args))
    for mine, exact in zip(found, want, strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("small")
def test_gradients_of_embeddings() -> None:
    torch.manual_seed(0)
    table = nn.Embedding(1000, 32, padding_idx=3)
    ids, want = torch.randint(0, 1000, (7, 9)), torch.randn(7, 32)
    ids[0] = 3
    other = nn.Embedding(1000, 32, padding_idx=3, dtype=torch.float64)
    other.load_state_dict(table.state_dict())
    loss = lambda found, want: (found.sum(1) - want).square().mean()  # noqa: E731
    step = kitsune_mlir.train_step(table, loss, torch.optim.AdamW(table.parameters(), 1e-2), options={"cache": False})
    optimizer = torch.optim.AdamW(other.parameters(), 1e-2)
    for _ in range(3):
        mine = step(ids, want)
        optimizer.zero_grad()
        exact = loss(other(ids), want.double())
        exact.backward()
        optimizer.step()
        torch.testing.assert_close(mine.double(), exact.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(table.weight.detach().double(), other.weight.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("rows, count, width, start", [(1000, 400, 33, 0.0), (1000, 129, 4, 0.0), (1000, 129, 33, 1.0)])
def test_what_stays_as_it_is(rows: int, count: int, width: int, start: float) -> None:
    """Many rows, short ones, and sums that do not start as zeros."""
    model = Update(rows, width, start=start)
    assert not is_by_place(model, args_of(model, count))


def test_small_tables_stay_as_they_are() -> None:
    model = Update(1000, 33)
    assert not is_by_place(model, args_of(model, 129))


def test_a_large_table_on_a_gpu_has_no_gradient_in_memory() -> None:
    model = Update(300_000, 64, torch.bfloat16)
    args = args_of(model, 2048, torch.bfloat16)
    program = kitsune_mlir.compile(model, args, target="sm_90a", options={"cache": False})
    assert program.summary["arena_bytes"] < 4 << 20
