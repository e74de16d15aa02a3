"""Kernels for up to N rows, called for n, run on the processor: valid rows are right, and tiles of the others are not done.

Results hold NaN before a run, so that what is not written shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_mlir import ir

from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions
from kitsune_mlir.codegen.gpu.kernel import executor
from kitsune_mlir.codegen.gpu.kernel.live import rate_of
from kitsune_mlir.dialects import new_context
from kitsune_mlir.frontend.valid_rows import valid_rows
from test.emulators import kernel
from test.emulators.chain import run_chain
from test.numerics.compare import problem
from test.programs.emulated import built, emulated, emulated_launches, engines, words_of
from test.programs.live import compiled, ends

R = torch.randn
Rows = Callable[..., tuple[Tensor, ...]]


def B(*size: int) -> Tensor:
    return R(*size).bfloat16()


def count_of(n: int) -> Tensor:
    return torch.tensor(n, dtype=torch.int64)


def by_roles(program: Any, args: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
    """The results of a kernel whose warpgroups have roles, of bf16."""
    with new_context(), ir.Location.unknown():
        made = built(program, KernelOptions())
        results = [np.zeros_like(words_of(one)) for one in like]
        run_chain(made.module.operation, made.manifest, [words_of(a) for a in args], results)
    return [torch.from_numpy(found).view(one.dtype) for found, one in zip(results, like, strict=True)]


def calls(program: Any, function: Rows, args: tuple[Tensor, ...], sizes: Sequence[int], run: Any = emulated) -> list[int]:
    """Compares the valid rows in calls with other numbers behind them; how many rows of the first result were written."""
    written = []
    for n in sizes:
        wide = function(*(a.double() if a.is_floating_point() else a for a in args), count_of(n))
        like = function(*args, count_of(n))
        x = args[0].clone()
        x[n:] = 100.0
        got = run(program, (x, *args[1:], count_of(n)), like)
        for g, w, eager in zip(got, wide, like, strict=True):
            assert problem(g[:n], w[:n], eager[:n]) is None, n
        written.append(int(got[0].isfinite().all(-1).sum()))
    return written


def test_rows():
    """A tile is a row."""

    def function(x: Tensor, w: Tensor, count: Tensor) -> tuple[Tensor, ...]:
        return (valid_rows(F.layer_norm(torch.softmax(x * w, -1) + x, (40,)), count, 90),)

    args = R(90, 40), R(40)
    program = compiled(function, *args, count_of(90))
    assert engines(program) == ["simt"]
    assert calls(program, function, args, (1, 7, 89, 90)) == [1, 7, 89, 90]


def test_stages_that_wait_for_each_other():
    """Tiles that are left out wait and post, so those behind them end; with fewer blocks than tiles, and more."""

    def function(x: Tensor, w: Tensor, count: Tensor) -> tuple[Tensor, ...]:
        turned = torch.softmax(x * w, -1).view(70, 5, 6).transpose(1, 2).reshape(70, 30)
        return (valid_rows(torch.softmax(turned * w, -1), count, 70),)

    args = R(70, 30), R(30)
    program = compiled(function, *args, count_of(70))
    assert len(engines(program)) > 1 and all("at the count" in words for words in ends(program))
    for blocks in (2, 80):

        def run(*given: Any, blocks: int = blocks) -> list[Tensor]:
            return emulated(*given, blocks=blocks)

        written = calls(program, function, args, (1, 9, 70), run)
        assert written[0] < written[1] < written[2] == 70


def test_products_and_norms():
    """A tile is 64 rows of a product; the softmax between takes other tiles, in step with those that are needed."""

    def function(x: Tensor, w1: Tensor, w2: Tensor, count: Tensor) -> tuple[Tensor, ...]:
        return (valid_rows(torch.softmax(x @ w1, -1) @ w2, count, 150),)

    args = B(150, 64), B(64, 512) / 8, B(512, 64) / 23
    program = compiled(function, *args, count_of(150))
    assert engines(program) == ["mma", "simt", "mma"] and all("at the count" in words for words in ends(program))
    assert calls(program, function, args, (1, 64, 65, 150), by_roles) == [64, 64, 128, 150]


def test_chains():
    def function(x: Tensor, w1: Tensor, w2: Tensor, count: Tensor) -> tuple[Tensor, ...]:
        return (valid_rows(torch.relu(x @ w1) @ w2, count, 300),)

    args = B(300, 64), B(64, 64) / 8, B(64, 64) / 8
    program = compiled(function, *args, count_of(300))
    assert engines(program) == ["chain"]
    assert calls(program, function, args, (7, 64, 65, 299), by_roles) == [64, 64, 128, 300]


def test_samples_of_several_rows_each():
    def function(x: Tensor, w: Tensor, count: Tensor) -> tuple[Tensor, ...]:
        return (valid_rows(torch.softmax(x * w, -1).view(30, 5, 8), count, 30),)

    args = R(150, 8), R(8)
    program = compiled(function, *args, count_of(30))
    for n in (1, 4, 30):
        (want,) = function(*args, count_of(n))
        (got,) = emulated(program, (*args, count_of(n)), [want])
        torch.testing.assert_close(got[:n], want[:n])
        assert int(got.isfinite().all(-1).all(-1).sum()) < 30 or n == 30


def test_sums_that_blocks_share(monkeypatch: pytest.MonkeyPatch):
    """The third task has the memory for partial results that the first one had: it waits until all of these are read, which
    it would do for ever if tiles that are left out did not post."""

    def function(x: Tensor, y: Tensor, z: Tensor, count: Tensor) -> tuple[Tensor, ...]:
        return tuple(valid_rows(torch.relu(one).sum(-1), count, 5) for one in (x, y, z))

    args = R(5, 60000), R(5, 60000), R(5, 60000)
    program = compiled(function, *args, count_of(5))
    assert [engine["pieces"] for engine in program.summary["engines"]] == [2] * 3
    assert all("at the count" in words for words in ends(program))
    for n in (1, 5):
        want = function(*args, count_of(n))
        for got, one in zip(emulated(program, (*args, count_of(n)), want, blocks=7), want, strict=True):
            torch.testing.assert_close(got[:n], one[:n])
            assert int(got.isfinite().sum()) == n
    monkeypatch.setattr(executor, "pass_over", lambda task, rest: None)
    monkeypatch.setattr(kernel, "SECONDS", 2.0)
    with pytest.raises(TimeoutError, match="waits for ever"):
        emulated(program, (*args, count_of(2)), want, blocks=7)
    emulated(program, (*args, count_of(5)), want, blocks=7)


def test_two_counts():
    def function(x: Tensor, y: Tensor, one: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        return valid_rows(torch.softmax(x, -1), one, 50), valid_rows(torch.softmax(y, -1), other, 40)

    args = R(50, 33), R(40, 65)
    program = compiled(function, *args, count_of(50), count_of(40))
    assert {words.split()[-2] for words in ends(program)} == {"2", "3"}
    for n, m in ((1, 40), (50, 1), (0, 7)):
        want = function(*args, count_of(n), count_of(m))
        got = emulated(program, (*args, count_of(n), count_of(m)), want)
        for g, w, rows in zip(got, want, (n, m), strict=True):
            torch.testing.assert_close(g[:rows], w[:rows])
            assert int(g.isfinite().all(-1).sum()) == rows


def test_what_mixes_rows_needs_all_of_them():
    """A mean over rows, and an engine whose loops do not end early: it, and what it reads, does all; the reason is said."""

    def mean(x: Tensor, w: Tensor, count: Tensor) -> tuple[Tensor, ...]:
        h = torch.softmax(x * w, -1)
        return (valid_rows(h - h.mean(0), count, 60),)

    def scan(x: Tensor, w: Tensor, count: Tensor) -> tuple[Tensor, ...]:
        return (valid_rows(torch.cumsum(torch.softmax(x * w, -1), -1), count, 60),)

    args = R(60, 40), R(40)
    program = compiled(mean, *args, count_of(60))
    assert not any("at the count" in words for words in ends(program))
    (want,) = mean(*args, count_of(4))
    torch.testing.assert_close(emulated(program, (*args, count_of(4)), [want])[0][:4], want[:4])
    program = compiled(scan, *args, count_of(60))
    assert ends(program) == ["", "with the last: engine 'scan' does all"]
    assert calls(program, scan, args, (3,)) == [60]


def test_without_a_count_code_is_as_before():
    def plain(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return (torch.softmax(x * w, -1),)

    program = compiled(plain, R(60, 40), R(40))
    assert ends(program) == [""]


def test_several_launches():
    """Each launch's tiles end at the count; what the ones before left out is NaN."""

    def function(x: Tensor, w: Tensor, count: Tensor) -> tuple[Tensor, ...]:
        turned = torch.softmax(x * w, -1).view(70, 5, 6).transpose(1, 2).reshape(70, 30)
        return (valid_rows(torch.softmax(turned * w, -1), count, 70),)

    args = R(70, 30), R(30)
    program = compiled(function, *args, count_of(70), schedule="separate")
    assert program.summary["launches"] == 3 and all("at the count" in words for words in ends(program))
    written = calls(program, function, args, (1, 9, 70), emulated_launches)
    assert written[0] < written[1] < written[2] == 70


def test_several_launches_with_an_engine_that_does_all():
    """It reads what nobody made, for rows that nobody wants."""

    def scan(x: Tensor, w: Tensor, count: Tensor) -> tuple[Tensor, ...]:
        return (valid_rows(torch.cumsum(torch.softmax(x * w, -1), -1), count, 60),)

    args = R(60, 40), R(40)
    program = compiled(scan, *args, count_of(60), schedule="separate")
    assert ends(program)[0].startswith("at the count") and ends(program)[1] == "with the last: engine 'scan' does all"
    for n in (3, 60):
        (want,) = scan(*args, count_of(n))
        (got,) = emulated_launches(program, (*args, count_of(n)), [want])
        torch.testing.assert_close(got[:n], want[:n])


def test_places_in_memory_are_all_made():
    """Integers that a launch makes may be places that another one reads at: none is left out."""

    def function(x: Tensor, w: Tensor, count: Tensor) -> tuple[Tensor, ...]:
        place = (x[:, 0].abs() * 3).long().clamp(max=19)
        table = torch.softmax(w, -1)
        return (valid_rows(torch.softmax(table[place] + x, -1), count, 60),)

    args = R(60, 40), R(20, 40)
    program = compiled(function, *args, count_of(60), schedule="separate")
    for n in (3, 60):
        (want,) = function(*args, count_of(n))
        (got,) = emulated_launches(program, (*args, count_of(n)), [want])
        torch.testing.assert_close(got[:n], want[:n])


def test_launches_are_chosen_with_a_count_too():
    def function(x: Tensor, w1: Tensor, w2: Tensor, count: Tensor) -> tuple[Tensor, ...]:
        normed = F.layer_norm(torch.softmax(F.layer_norm(x, (512,)) @ w1, -1) @ w2, (512,))
        return (valid_rows(normed, count, 1000),)

    args = B(1000, 512), B(512, 1024) / 23, B(1024, 512) / 32
    counted = compiled(function, *args, count_of(1000), schedule="auto")
    plain = compiled(lambda *given: (function(*given)[0] + 0,), *args, count_of(1000), schedule="auto")
    assert counted.summary["launches"] == plain.summary["launches"] > 1
    assert all("at the count" in words for words in ends(counted))


@pytest.mark.parametrize(
    "thresholds",
    [
        [0, 64, 128],
        [0, 12, 25, 38, 51],  # samples of five rows in tiles of 64
        [0] * 16 + [64] * 16 + [128] * 3,
    ],
)
def test_rates_that_are_met(thresholds: list[int]):
    found = rate_of(thresholds)
    assert found is not None and list(found.thresholds(len(thresholds))) == thresholds


def test_rates_that_are_not_are_nowhere_too_late():
    thresholds = [0, 0, 0, 5, 5, 5, 5, 5, 10, 10, 17]
    found = rate_of(thresholds)
    assert found is not None and 0 < found.extra < 6
    assert (found.thresholds(len(thresholds)) <= np.array(thresholds)).all()


@pytest.mark.parametrize("thresholds", [[0], [0, 0, 0, 0], [-1, 4]])
def test_places_that_are_always_done(thresholds: list[int]):
    assert rate_of(thresholds) is None
